"""A run's progress and metrics, on a board for commands and the next start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import orjson

from penstock.api.ssp import SystemStreamPartition
from penstock.documents import Count, decoding
from penstock.job.board import FORMAT, Board, last_run
from penstock.job.paths import JobPaths
from penstock.metrics.snapshot import Row, Snapshot
from penstock.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run at one moment."""

    run_id: str
    time_ms: int
    """The moment, in epoch milliseconds."""
    metrics: Snapshot
    reached: Mapping[tuple[int, SystemStreamPartition], int] = field(default_factory=dict)
    """The next offset of every task in every partition that it reads, the furthest that it came. Batches up to there
    have ended; the last checkpoint may be older."""


class _RunFields(msgspec.Struct):
    run_id: str
    time_ms: Count
    metrics: list[Row]
    reached: list[tuple[Count, str, str, Count, Count]]


class MetricsBoard(Board[ShownRun]):
    """The board that the driver replaces from time to time."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        damage = "does not hold the metrics of a run. Delete it, and the next run writes it. The cause"
        super().__init__(objects, last_run(paths, "metrics"), ShownRun, damage)

    def encode(self, document: ShownRun) -> bytes:
        return orjson.dumps(
            {
                "format": FORMAT,
                "run_id": document.run_id,
                "time_ms": document.time_ms,
                # JSON has no NaN and no infinity: a gauge that an application set to one is left out.
                "metrics": [row for row in document.metrics.rows() if all(map(math.isfinite, row[4]))],
                "reached": [
                    [task, ssp.system, ssp.stream, ssp.partition, offset]
                    for (task, ssp), offset in sorted(document.reached.items())
                ],
            }
        )

    def decode(self, data: bytes) -> ShownRun:
        with decoding(self.damage):
            fields = self._convert(_RunFields, data)
            reached = {
                (task, SystemStreamPartition(system, stream, partition)): offset
                for task, system, stream, partition, offset in fields.reached
            }
            return ShownRun(fields.run_id, fields.time_ms, Snapshot.of_rows(fields.metrics), reached)
