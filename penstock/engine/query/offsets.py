"""Spark's log of what each batch of a query reads: `offsets/` in the query's checkpoint location."""

from __future__ import annotations

import hashlib
from typing import Any

from pyspark.sql import SparkSession

from penstock.errors import PenstockError


class OffsetLog:
    """The log of one checkpoint location. Writes nothing."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """
        Args:
            location: the checkpoint location, as Spark names it.
        """
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._folder = self._path(location, "offsets")
        self._files = self._folder.getFileSystem(session.sessionState().newHadoopConf())

    @classmethod
    def of(cls, spark: SparkSession, query: str) -> OffsetLog:
        """That of a query that runs, by its id."""
        running: Any = spark.streams.get(query)
        if running is None:
            raise PenstockError(f"the query {query} has ended")
        return cls(spark, str(running._jsq.streamingQuery().resolvedCheckpointRoot()))  # noqa: SLF001

    def last(self) -> bytes | None:
        """What it says of the last batch that was begun; None if there was none."""
        if not self._files.exists(self._folder):
            return None
        names = [str(each.getPath().getName()) for each in self._files.listStatus(self._folder)]
        batches = [int(name) for name in names if name.isdigit()]
        return self._read(self._at(max(batches))) if batches else None

    def plan(self, batch: int) -> str:
        """What tells a batch from every other one of its number: Spark writes once what it reads, and when it planned
        that. Empty if the log does not have the batch."""
        file = self._at(batch)
        return plan_of(self._read(file)) if self._files.exists(file) else ""

    def _read(self, file: Any) -> bytes:
        stream = self._files.open(file)
        try:
            content: bytes = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return content

    def _at(self, batch: int) -> Any:
        return self._path(self._folder, str(batch))

    def _path(self, folder: Any, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(folder, name)


def plan_of(content: bytes) -> str:
    """See `OffsetLog.plan`.

    Args:
        content: of the file of the batch.
    """
    return hashlib.sha256(content).hexdigest()
