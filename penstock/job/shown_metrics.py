"""A run's progress and metrics, on a board for commands and the next start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import orjson

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import Count, decoding
from penstock.job.board import FORMAT, Board, last_run
from penstock.job.paths import JobPaths
from penstock.job.shown_work import RunWork
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
    driver: str = ""
    """The token of the driver's lease: a start after a crash keeps the id of the run, and counts from 0."""
    now_at: Mapping[tuple[int, SystemStreamPartition], int] = field(default_factory=dict)
    """The present positions, where they differ from `reached`: the run reads again what it had read."""
    work: RunWork = field(default_factory=RunWork)
    """The running batch, and the keys with the most messages."""

    @property
    def positions(self) -> Mapping[SystemStreamPartition, int]:
        """The present position in each partition; of several tasks that of the slowest."""
        found: dict[SystemStreamPartition, int] = {}
        for (_, ssp), offset in {**self.reached, **self.now_at}.items():
            found[ssp] = min(offset, found.get(ssp, offset))
        return found


_Row: TypeAlias = tuple[Count, str, str, Count, Count]


class _RunFields(msgspec.Struct):
    run_id: str
    time_ms: Count
    metrics: list[Row]
    reached: list[_Row]
    driver: str = ""
    now_at: list[_Row] = []
    work: RunWork = msgspec.field(default_factory=RunWork)


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
                "reached": _rows(document.reached),
                **({"driver": document.driver} if document.driver else {}),
                **({"now_at": _rows(document.now_at)} if document.now_at else {}),
                **({"work": msgspec.to_builtins(document.work)} if document.work != RunWork() else {}),
            }
        )

    def decode(self, data: bytes) -> ShownRun:
        with decoding(self.damage):
            fields = self._convert(_RunFields, data)
            metrics = Snapshot.of_rows(fields.metrics)
            reached, now_at = _positions(fields.reached), _positions(fields.now_at)
            return ShownRun(fields.run_id, fields.time_ms, metrics, reached, fields.driver, now_at, fields.work)


def _rows(positions: Mapping[tuple[int, SystemStreamPartition], int]) -> list[_Row]:
    return [(task, ssp.system, ssp.stream, ssp.partition, offset) for (task, ssp), offset in sorted(positions.items())]


def _positions(rows: list[_Row]) -> dict[tuple[int, SystemStreamPartition], int]:
    return {
        (task, SystemStreamPartition(system, stream, partition)): offset
        for task, system, stream, partition, offset in rows
    }
