"""Where a store's committed bytes live: RocksDB on disk, or a sorted map in memory."""

from __future__ import annotations

import shutil
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import rocksdict
from sortedcontainers import SortedDict

from penstock.config.model import StoreSettings
from penstock.config.table import EngineKind
from penstock.errors import CorruptError, PenstockError
from penstock.os_errors import explain, explained, os_error_in
from penstock.state.records import Changes, compress, decode_records, decompress, encode_records

_ENTRIES = "entries.zst"
"""The file of a copy of a MemoryEngine."""
_CHUNK_BYTES = 8 << 20
"""How much of a store is held in memory while it is read from one kind of engine into the other."""
_BULK = 1000
"""Fewer changes than this are not worth a table."""


_PLACE = "job.logged.store.base.dir"
"""The key that says where the engines' files are."""


class EngineFailedError(BaseException):
    """An engine failed: its files are damaged, the disk does not answer, it was closed. The state has to be restored.

    Not an Exception, because it travels up through the code of tasks, whose own `except Exception` must not swallow it.
    """


class Engine(ABC):
    """A map of bytes ordered by unsigned bytes. It changes only through `apply`."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value, or None if the key is absent."""

    @abstractmethod
    def apply(self, changes: Changes) -> None:
        """Make the changes, all or none as far as readers of this process see."""

    def load(self, changes: Changes) -> None:
        """As `apply`, for a restore: many at once, and nobody reads meanwhile."""
        self.apply(changes)

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order, as they were when the scan began."""

    @abstractmethod
    def copy_to(self, directory: Path) -> None:
        """Make the directory, which must not exist, with files that hold what is here now. Its cost does not grow with
        the state where the engine keeps immutable files: those are linked."""

    @abstractmethod
    def close(self) -> None:
        """Release it. No call follows."""


class _MemoryScan(Iterator[tuple[bytes, bytes]]):
    """A scan of a sorted map, some entries at a time; all that is left at once before the map changes."""

    def __init__(self, entries: SortedDict, lock: threading.Lock, start: bytes | None, end: bytes | None) -> None:
        self._map = entries
        self._lock = lock
        self._next, self._inclusive, self._end = start, True, end
        self._size = 4
        self._found: deque[tuple[bytes, bytes]] = deque()
        self._complete = False

    def __next__(self) -> tuple[bytes, bytes]:
        if not self._found:
            with self._lock:
                self.take(self._size)
            self._size = min(2 * self._size, 512)
            if not self._found:
                raise StopIteration
        return self._found.popleft()

    def take(self, most: int | None = None) -> None:
        """Copy what is left, at most so many entries. Under the lock."""
        if not self._complete:
            keys = list(islice(self._map.irange(self._next, self._end, inclusive=(self._inclusive, False)), most))
            self._found.extend((key, self._map[key]) for key in keys)
            self._complete = most is None or len(keys) < most
            if keys:
                self._next, self._inclusive = keys[-1], False


class MemoryEngine(Engine):
    """A sorted map in memory."""

    def __init__(self, path: Path | None = None) -> None:
        """With a path: what a copy in that folder holds, if there is one. Raises CorruptError."""
        self._map: SortedDict = SortedDict()
        self._scans: weakref.WeakSet[_MemoryScan] = weakref.WeakSet()
        self._lock = threading.Lock()
        if path is not None and (path / _ENTRIES).exists():
            self._map.update(_read_entries(path / _ENTRIES))

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._map.get(key)
        return value

    def apply(self, changes: Changes) -> None:
        with self._lock:
            for scan in self._scans:
                scan.take()
            self._scans.clear()
            for key, value in changes.items():
                if value is None:
                    self._map.pop(key, None)
                else:
                    self._map[key] = value

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        scan = _MemoryScan(self._map, self._lock, start, end)
        with self._lock:
            self._scans.add(scan)
        return scan

    def copy_to(self, directory: Path) -> None:
        """Write everything: the cost grows with the state."""
        directory.mkdir(parents=True)
        records = encode_records(self._map)
        (directory / _ENTRIES).write_bytes(len(records).to_bytes(8, "big") + compress(records))

    def close(self) -> None:
        self._map.clear()


def _read_entries(path: Path) -> dict[bytes, bytes | None]:
    with explained(f"the copy `{path}` could not be read", "job.logged.store.base.dir"):
        data = path.read_bytes()
    size = int.from_bytes(data[:8], "big")
    return decode_records(decompress(data[8:], size, f"the copy `{path}`"), str(path))


class RocksDbEngine(Engine):
    """RocksDB, opened for as long as the task stays in its container.

    The write-ahead log is off: what makes state durable is the commit's backup, and a directory whose process died
    is thrown away, never reopened.
    """

    def __init__(self, path: Path, *, block_cache_bytes: int, write_buffer_bytes: int, read_only: bool = False) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._options = options = _options(block_cache_bytes, write_buffer_bytes)
        access = rocksdict.AccessType.read_only() if read_only else rocksdict.AccessType.read_write()
        try:
            self._db: Any = rocksdict.Rdict(str(path), options, access_type=access)
        except Exception as error:
            raise engine_error(error, f"RocksDB cannot open `{path}`") from error
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
        with self._writing():
            self._db.write(batch, self._write_options)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the operating system refused, for example for want of space, says where and what to do about it."""
        try:
            yield
        except Exception as error:
            cause = os_error_in(str(error))
            if cause is None:
                raise
            raise explain(cause, f"RocksDB cannot write `{self._path}`", _PLACE) from error

    def load(self, changes: Changes) -> None:
        """Sorted, as a table of its own, which costs less than puts and leaves nothing to compact."""
        if len(changes) < _BULK:
            self.apply(changes)
            return
        with self._writing():
            self._load_table(changes, self._path.with_name(f"{self._path.name}.load"))

    def _load_table(self, changes: Changes, table: Path) -> None:
        writer = rocksdict.SstFileWriter(self._options)
        writer.open(str(table))
        for key in sorted(changes):
            value = changes[key]
            if value is None:
                del writer[key]
            else:
                writer[key] = value
        writer.finish()
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)
        self._db.ingest_external_file([str(table)], options)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        options = rocksdict.ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        # Before the first entry is asked for, so that later writes do not move it.
        return self._until_the_end(iter(self._db.items(from_key=start, read_opt=options)), start, end)

    def _until_the_end(
        self, items: Iterator[tuple[bytes, bytes]], start: bytes | None, end: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries, and CorruptError where the binding would merely end: at a block that is damaged."""
        last = start
        for entry in items:
            last = entry[0]
            yield entry
        options = rocksdict.ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        rest: Any = self._db.iter(options)
        if last is None:
            rest.seek_to_first()
        else:
            rest.seek(last)
            if rest.valid() and rest.key() == last:
                rest.next()
        try:
            rest.status()
        except Exception as error:
            raise engine_error(error, f"a scan of `{self._path}` failed") from error

    def copy_to(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with self._writing():
            rocksdict.Checkpoint(self._db).create_checkpoint(str(directory))

    def close(self) -> None:
        self._db.close()


def open_engine(settings: StoreSettings, directory: Path, *, read_only: bool = False) -> Engine:
    """The engine a store is configured to have, over a folder: new, or what a restore or copy has put there.

    Raises:
        CorruptError: the folder's files are damaged, or of the other kind of engine.
    """
    if _of_the_other_kind(settings, directory).exists():
        raise CorruptError(
            f"`{directory}` holds the files of another kind of store than stores.{settings.name}.factory="
            f"{settings.factory}. Set it back, or restore from a changelog backend, which fits both"
        )
    if settings.factory == "memory":
        return MemoryEngine(directory)
    return RocksDbEngine(
        directory,
        block_cache_bytes=settings.rocksdb_block_cache_bytes,
        write_buffer_bytes=settings.rocksdb_write_buffer_bytes,
        read_only=read_only,
    )


def open_restored(settings: StoreSettings, directory: Path) -> Engine:
    """The engine a store is configured to have, over a folder that a restore has filled. Files of the other kind, from
    before `stores.<name>.factory` was changed, are read into a new engine.

    Raises:
        CorruptError: the files are damaged.
    """
    if not _of_the_other_kind(settings, directory).exists():
        return open_engine(settings, directory)
    source_directory = directory.with_name(f"{directory.name}.other")
    shutil.rmtree(source_directory, ignore_errors=True)
    directory.rename(source_directory)
    try:
        with closing(open_whatever(settings, source_directory)) as source:
            engine = open_engine(settings, directory)
            try:
                for entries in _chunks(source.scan(None, None)):
                    engine.load(entries)
            except BaseException:
                engine.close()
                raise
    finally:
        shutil.rmtree(source_directory, ignore_errors=True)
    return engine


def _of_the_other_kind(settings: StoreSettings, directory: Path) -> Path:
    """A file that only the engine has which the store is not configured to have."""
    return directory / ("CURRENT" if settings.factory == "memory" else _ENTRIES)


def _chunks(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[Changes]:
    chunk: dict[bytes, bytes | None] = {}
    size = 0
    for key, value in entries:
        chunk[key] = value
        size += len(key) + len(value)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = {}, 0
    if chunk:
        yield chunk


def engine_error(error: Exception, what: str) -> PenstockError:
    """What RocksDB raised, as an error that begins with `what`: damage only where it is not the operating system that
    refused, for example for want of file descriptors."""
    cause = os_error_in(str(error))
    return CorruptError(f"{what}: {error}") if cause is None else explain(cause, what, _PLACE)


def engine_kind(directory: Path) -> EngineKind:
    """The kind of engine whose files are in the folder; `rocksdb` if there are none."""
    return "memory" if (directory / _ENTRIES).exists() else "rocksdb"


def open_whatever(settings: StoreSettings, directory: Path) -> Engine:
    """The engine whose files are in the folder, whatever the configuration says; a new one if there are none."""
    return open_engine(replace(settings, factory=engine_kind(directory)), directory)


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
