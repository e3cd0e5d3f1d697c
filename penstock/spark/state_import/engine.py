"""The RocksDB of a partition, put together from a snapshot, to which the changelogs after it are applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.errors import CorruptError, PenstockError
from penstock.spark.state_import.files.changelog import RecordKind, read_changelog
from penstock.state.engines.rocksdb import RocksDbEngine, engine_error

_CACHE_BYTES = 8 << 20
_BUFFER_BYTES = 16 << 20
_BATCH = 10_000


class PartitionEngine(RocksDbEngine):
    """A scratch copy of one partition of Spark's state. Damage in it is reported, wherever it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_BUFFER_BYTES, foreign=True)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from super().scan(start, end)
        except CorruptError as error:
            raise self._damaged(error) from error

    def replay(self, data: bytes, name: str) -> None:
        """Apply a changelog in its order. Raises as `read_changelog`."""
        try:
            self._replay(data, name)
        except PenstockError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def _replay(self, data: bytes, name: str) -> None:
        pending: dict[bytes, bytes | None] = {}
        for kind, key, value in read_changelog(data, name):
            if kind is RecordKind.PUT:
                pending[key] = value
            elif kind is RecordKind.DELETE:
                pending[key] = None
            elif kind is RecordKind.MERGE:
                before = pending[key] if key in pending else self.get(key)
                pending[key] = value if before is None else before + value
            else:
                self.apply(pending)
                pending = {inside: None for inside, _ in self.scan(key, value)}
            if len(pending) >= _BATCH:
                self.apply(pending)
                pending = {}
        self.apply(pending)

    def _damaged(self, error: Exception) -> PenstockError:
        return engine_error(error, f"the RocksDB files of the snapshot, copied to `{self._path}`, cannot be read")
