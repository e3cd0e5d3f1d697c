"""Where a store's committed bytes live: RocksDB on disk, or a sorted map in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import rocksdict
from sortedcontainers import SortedDict

Changes: TypeAlias = Mapping[bytes, bytes | None]
"""Net changes of a store: key to new value, None for a deleted key."""


class Engine(ABC):
    """A map of bytes ordered by unsigned bytes. It changes only through `apply`."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value, or None if the key is absent."""

    @abstractmethod
    def apply(self, changes: Changes) -> None:
        """Make the changes, all or none as far as readers of this process see."""

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order, as they were when the scan began."""

    @abstractmethod
    def close(self) -> None:
        """Release it. No call follows."""


class MemoryEngine(Engine):
    """A sorted map in memory."""

    def __init__(self) -> None:
        self._map: SortedDict = SortedDict()

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._map.get(key)
        return value

    def apply(self, changes: Changes) -> None:
        for key, value in changes.items():
            if value is None:
                self._map.pop(key, None)
            else:
                self._map[key] = value

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        keys = list(self._map.irange(start, end, inclusive=(True, False)))
        return iter([(key, self._map[key]) for key in keys])

    def close(self) -> None:
        self._map.clear()


class RocksDbEngine(Engine):
    """RocksDB, opened for as long as the task stays in its container.

    The write-ahead log is off: what makes state durable is the commit's backup, and a directory whose process died
    is thrown away, never reopened.
    """

    def __init__(self, path: Path, *, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._db: Any = rocksdict.Rdict(str(path), _options(block_cache_bytes, write_buffer_bytes))
        self._write_options = rocksdict.WriteOptions()
        setattr(self._write_options, "disable_wal", True)  # noqa: B010 - rocksdict's stub calls this setter a method

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(key)
        return value

    def apply(self, changes: Changes) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in changes.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        self._db.write(batch, self._write_options)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        options = rocksdict.ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        return iter(self._db.items(from_key=start, read_opt=options))

    def close(self) -> None:
        self._db.close()


def _options(block_cache_bytes: int, write_buffer_bytes: int) -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(block_cache_bytes))
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
