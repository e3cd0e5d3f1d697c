"""The checkpoint location of a query, on any file system that Spark knows.

Spark's log of the offsets of the query's batches is in it, as `offsets/`.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Struct
from pyspark.sql import SparkSession

from penstock.base.documents import decode
from penstock.errors import IncompatibleError, NotFoundError, PenstockError

HEARTBEAT = "penstock.heartbeat"
"""Marks the offset of the source that makes batches without rows."""
_ADDED = f'\n{{"{HEARTBEAT}":-1}}'.encode()
"""The offset of this source in batches that were planned without it. The source itself counts from 0."""


class OffsetLog:
    """The log of one checkpoint location."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """
        Args:
            location: the checkpoint location, as Spark names it.
        """
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._active: Any = session.sharedState().activeStreamingQueries()
        self._folder, self._metadata = self._path(location, "offsets"), self._path(location, "metadata")
        self._commits = self._path(location, "commits")
        self._conf = session.sessionState().newHadoopConf()
        self._files = self._folder.getFileSystem(self._conf)

    @classmethod
    def of(cls, spark: SparkSession, query: str) -> OffsetLog:
        running: Any = spark.streams.get(query)
        if running is None:
            raise PenstockError(f"the query {query} has ended")
        return cls(spark, str(running._jsq.streamingQuery().resolvedCheckpointRoot()))  # noqa: SLF001

    def newest(self) -> dict[int, bytes]:
        """The entries of the last two batches that were begun, which a start of Spark reads."""
        if not self._files.exists(self._folder):
            return {}
        names = [str(each.getPath().getName()) for each in self._files.listStatus(self._folder)]
        batches = sorted(int(name) for name in names if name.isdigit())
        return {batch: self._read(self._at(batch)) for batch in batches[-2:]}

    def query(self) -> str | None:
        """The id of the query; None if it has had no batch."""
        if not self._files.exists(self._metadata):
            return None
        return query_in(self._read(self._metadata), str(self._metadata.toString()))

    def is_read(self) -> bool:
        """True if the query runs in any session of this program."""
        query = self.query()
        return query is not None and bool(self._active.containsKey(self._jvm.java.util.UUID.fromString(query)))

    def add_heartbeat(self, batch: int, content: bytes) -> None:
        """Give a batch an offset of the source that makes batches without rows, behind those of its other sources. The
        file is replaced as a whole.

        Args:
            content: of the file of the batch.
        """
        streaming = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        manager = streaming.CheckpointFileManager.create(self._folder, self._conf)
        if manager.isLocal():
            # Hadoop replaces a local file and its checksum one after the other, and reads no file whose checksum is
            # another one's. A file without one can be read.
            manager.delete(self._path(self._folder, f".{batch}.crc"))
        stream = manager.createAtomic(self._at(batch), True)
        try:
            stream.write(bytearray(content + _ADDED))
            stream.close()
        except BaseException:
            stream.cancel()
            raise

    def plan(self, batch: int) -> str:
        """Distinguishes a batch from every other one of its number: Spark writes once its offsets and the time of
        planning. Empty if the log does not have the batch."""
        file = self._at(batch)
        return plan_of(self._read(file)) if self._files.exists(file) else ""

    def is_committed(self, batch: int) -> bool:
        """True if Spark will not ask for the batch again. May be called from any thread."""
        return bool(self._files.exists(self._path(self._commits, str(batch))))

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


def query_in(content: bytes, path: str) -> str:
    """The id of the query whose file `metadata` has this content. Raises CorruptError."""
    return decode(_Query, content, f"`{path}` is damaged").id


class _Query(Struct):
    id: str


def plan_of(content: bytes) -> str:
    """See `OffsetLog.plan`. It is the same before and after `OffsetLog.add_heartbeat`.

    Args:
        content: of the file of the batch.
    """
    return hashlib.sha256(content.removesuffix(_ADDED)).hexdigest()


class CheckpointLocation:
    """The files of a checkpoint location, as Spark itself finds them. See `CheckpointFiles`."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """
        Args:
            location: the checkpoint location, as Spark names it.
        """
        jvm: Any = spark._jvm  # noqa: SLF001
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._jvm = jvm
        self._log = OffsetLog(spark, location)
        path = self._path(location)
        self._files = path.getFileSystem(session.sessionState().newHadoopConf())
        self._root = self._files.makeQualified(path)
        self.url = str(self._root.toString())

    def get(self, key: str) -> bytes:
        path = self._path(self._root, key)
        if not self._files.exists(path):
            raise NotFoundError(f"`{path.toString()}` does not exist")
        stream = self._files.open(path)
        try:
            content: bytes = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return content

    def is_read(self) -> bool:
        return self._log.is_read()

    def has_begun(self) -> bool:
        return bool(self._files.exists(self._path(self._root, "offsets")))

    def operators(self) -> list[int]:
        state = self._path(self._root, "state")
        if not self._files.exists(state):
            return []
        names = [str(each.getPath().getName()) for each in self._files.listStatus(state)]
        known = [int(name) for name in names if name.isdigit()]
        return sorted(each for each in known if self._files.exists(self._path(self._root, f"state/{each}/_metadata")))

    def set_aside(self, operator: int, batch: int) -> None:
        """Make Spark forget that the query had a stateful operator: it refuses to continue without one otherwise. The
        state remains."""
        below = f"state/{operator}/_metadata"
        if not self._files.rename(self._path(self._root, below), self._path(self._root, f"{below}.until-{batch}")):
            raise IncompatibleError(f"{self.url}: {below} could not be renamed")

    def list(self, prefix: str) -> list[str]:
        folder = self._path(self._root, prefix)
        if not self._files.exists(folder):
            return []
        found, listed = list[str](), self._files.listFiles(folder, True)
        while listed.hasNext():
            found.append(str(listed.next().getPath().toString()).removeprefix(f"{self.url.rstrip('/')}/"))
        return sorted(found)

    def _path(self, *parts: Any) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(*parts)
