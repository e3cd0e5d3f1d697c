"""The checkpoint location of a query, on any file system that Spark knows."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from penstock.errors import IncompatibleError, NotFoundError
from penstock.spark.query.offsets import OffsetLog


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
