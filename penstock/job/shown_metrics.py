"""How far a job's last run came, and its metrics: one object in the job's folder, for commands and the next start."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStreamPartition
from penstock.documents import Count, decode_format, decoding
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.job.shown import show
from penstock.metrics.snapshot import Row, Snapshot
from penstock.objects.store import ObjectStore

FORMAT = 1


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run at one moment."""

    run_id: str
    time_ms: int
    """When that was, in epoch milliseconds."""
    metrics: Snapshot
    reached: Mapping[tuple[int, SystemStreamPartition], int] = field(default_factory=dict)
    """The next offset of every task in every partition that it reads, the furthest that it came. Batches up to there
    have ended; the last checkpoint may be older."""

    def encode(self) -> bytes:
        """The written form."""
        reached = [[n, s.system, s.stream, s.partition, offset] for (n, s), offset in sorted(self.reached.items())]
        return orjson.dumps(
            {
                "format": FORMAT,
                "run_id": self.run_id,
                "time_ms": self.time_ms,
                # JSON has no NaN and no infinity: a gauge that an application set to one is left out.
                "metrics": [row for row in self.metrics.rows() if all(map(math.isfinite, row[4]))],
                "reached": reached,
            }
        )

    @classmethod
    def decode(cls, data: bytes, key: str) -> ShownRun:
        """Read it.

        Raises:
            CorruptError: it is damaged; names the key.
            IncompatibleError: a newer Penstock wrote it.
        """
        what = f"`{key}` does not hold the metrics of a run. Delete it, and the next run writes it. The cause"
        with decoding(what):
            written = decode_format(_Written, data, what, f"`{key}`", FORMAT)
            reached = {
                (task, SystemStreamPartition(system, stream, partition)): offset
                for task, system, stream, partition, offset in written.reached
            }
            return cls(written.run_id, written.time_ms, Snapshot.of_rows(written.metrics), reached)


class _Written(Struct):
    run_id: str
    time_ms: Count
    metrics: list[Row]
    reached: list[tuple[Count, str, str, Count, Count]]


class ShownMetrics:
    """The object, which the driver replaces from time to time."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        self._objects = objects
        self._key = paths.metadata("metrics", "last-run")

    def put(
        self, run_id: str, metrics: Snapshot, reached: Mapping[tuple[int, SystemStreamPartition], int] | None = None
    ) -> None:
        """Replace what is shown. If another driver does so at the same time, one of both is shown. Raises
        RetryableError."""
        shown = ShownRun(run_id, time.time_ns() // 1_000_000, metrics, reached or {})
        show(self._objects, self._key, shown.encode())

    def get(self) -> ShownRun | None:
        """The run as it was some seconds ago, or at the end of the last one; None if no run has put anything yet.

        Raises:
            CorruptError: it cannot be read.
            IncompatibleError: a newer Penstock wrote it.
            RetryableError: the object store failed.
        """
        try:
            data = self._objects.get(self._key)
        except NotFoundError:
            return None
        return ShownRun.decode(data, self._key)
