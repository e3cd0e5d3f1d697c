"""The streams of one job and its root, on the Spark of the test process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.application.application import Application
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from penstock.testing.system_contract import read_all
from tests.support.jobs.home import DEADLINE_S


class SparkHome:
    """The streams of the system `local`, and runs of applications over them."""

    def __init__(
        self, folder: Path, spark: SparkSession, streams: Mapping[str, int], config: Mapping[str, Any]
    ) -> None:
        """`streams`: how many partitions each has."""
        self.folder = folder
        self.config: dict[str, Any] = {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "streams"),
            "job.batch.interval.ms": 20,
            **config,
        }
        self.system = LocalSystem("local", str(folder / "streams"))
        self._spark = spark
        for stream, partitions in streams.items():
            self.create(stream, partitions)

    def create(self, stream: str, partitions: int) -> None:
        self.system.admin().create_stream(stream, partitions)

    def append(self, stream: str, partition: int, *records: tuple[bytes | None, bytes | None]) -> None:
        """Append keys and values to one partition."""
        ssp = SystemStreamPartition("local", stream, partition)
        writer = self.system.writer(None)
        writer.append(ssp, [(5, key, value) for key, value in records])
        writer.close()

    def publish(self, stream: str, key: str, value: bytes | None) -> None:
        """Append a message to the partition of its key."""
        partition = partition_of(key.encode(), self.system.admin().partition_count(stream))
        self.append(stream, partition, (key.encode(), value))

    def spread(self, stream: str, values: Iterable[object]) -> None:
        """Append values in JSON without keys, to one partition after the other."""
        texts, partitions = (
            [json.dumps(value).encode() for value in values],
            self.system.admin().partition_count(stream),
        )
        for partition in range(partitions):
            self.append(stream, partition, *((None, text) for text in texts[partition::partitions]))

    def read(self, stream: str) -> Iterator[tuple[str, Any, int]]:
        """The key, the value and the timestamp of each message, by partition."""
        for partition in range(self.system.admin().partition_count(stream)):
            for _, timestamp, key, value, *_ in read_all(
                self.system, SystemStreamPartition("local", stream, partition)
            ):
                yield (key or b"").decode(), json.loads(value or b"null"), timestamp

    def checkpoints(self, job: str) -> tuple[CheckpointRecord, ...]:
        return CheckpointLog(FileObjectStore(self.folder / "jobs"), JobPaths(job, "1")).read().checkpoints

    def start(self, app: Application, **given: Any) -> ps.Job:
        """A run of the application; `given` are arguments of `Application.run`."""
        return app.run(self.config, spark=self._spark, **given)

    def run(self, app: Application, **given: Any) -> ps.Job:
        """A run up to the present ends of the inputs, which has ended."""
        job = self.start(app, until="latest", **given)
        assert job.await_termination(DEADLINE_S)
        return job
