"""Reads the stores of a job in Spark's Python workers: each task is restored to scratch where it is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.model import JobConfig
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.spark.state_frames.columns import StateColumns
from penstock.state.reading.diff import diff
from penstock.state.reading.reader import StateReader
from penstock.state.reading.store_version import StoreVersion
from penstock.system.registry import open_systems

_SCRATCH = "penstock-read-"


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A store of a job, and the backend to restore it from. Picklable."""

    config: JobConfig
    paths: JobPaths
    store: str
    backend: str | None

    @contextmanager
    def versions(self, *records: CheckpointRecord) -> Iterator[list[StoreVersion]]:
        """The store as of these checkpoints, while the block runs. Nothing is restored yet."""
        with (
            worker_scratch() as scratch,
            closing(open_job_root(self.config.job)) as objects,
        ):
            log = CheckpointLog(objects, self.paths)
            systems = open_systems(self.config)
            reader = StateReader(self.config, self.paths, objects, systems, scratch=scratch)
            with reader, ExitStack() as stack:
                versions = [StoreVersion(reader, log, record, self.store, self.backend) for record in records]
                yield [stack.enter_context(version) for version in versions]


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """A function for `map_in_arrow`: the entries of the tasks that the rows name."""

    source: StoreSource
    record: CheckpointRecord
    columns: StateColumns

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the columns task, key, value."""
        for task in _tasks(rows):
            with self.source.versions(self.record) as (version,):
                found = version.scan(tasks=[task])
                if self.columns.view is not None:
                    found = self.columns.view(found, self.record.batch_time_ms)
                yield from self.columns.entries(task, ((each.key, each.value) for each in found))


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """A function for `map_in_arrow`: the differences between two checkpoints in the tasks that the rows name."""

    source: StoreSource
    before: CheckpointRecord
    after: CheckpointRecord
    columns: StateColumns

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the columns change, task, key, before, after."""
        for task in _tasks(rows):
            with self.source.versions(self.before, self.after) as (before, after):
                found = diff(before, after, [task], self.columns.view)
                yield from self.columns.changes(
                    task, ((each.change, each.key, each.before, each.after) for each in found)
                )


def _tasks(rows: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in rows:
        yield from batch.column(0).to_pylist()


@contextmanager
def worker_scratch() -> Iterator[Path | None]:
    """A folder of this process in Spark's scratch folder, which Spark removes when the executor ends; None where there
    is none. Spark kills a worker whose rows nobody wants any more, as after `limit`: its folder is removed by the next
    read on that executor."""
    base = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0])
    if base == Path() or not base.is_dir():
        yield None
        return
    for left in base.glob(f"{_SCRATCH}*"):
        if not _lives(left.name.removeprefix(_SCRATCH)):
            shutil.rmtree(left, ignore_errors=True)
    own = base / f"{_SCRATCH}{os.getpid()}"
    own.mkdir(exist_ok=True)
    try:
        yield own
    finally:
        with suppress(OSError):  # another read of this process uses it
            own.rmdir()


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):  # somebody else's process, or not a folder of ours
        return True
    return True
