"""RocksDB on disk as an engine."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import rocksdict

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Flags
from penstock.base.files import explain, os_error_in
from penstock.errors import CorruptError, PenstockError
from penstock.metrics.snapshot import CounterValue, TimerValue
from penstock.state.engines.engine import Changes, Engine, EngineSnapshot, found_in, released

_BULK = 1000
"""For fewer changes than this, a table is not worth it."""
_AT_ONCE = 2000
"""The keys that one call of the binding writes or reads. It keeps Python's lock for as long as the call takes, and any
other thread waits, such as the one that answers heartbeats."""
_KEYS = "rocksdb.estimate-num-keys"
_PROPERTIES = (
    _KEYS,
    "rocksdb.live-sst-files-size",
    "rocksdb.cur-size-all-mem-tables",
    "rocksdb.block-cache-usage",
    "rocksdb.estimate-table-readers-mem",
    "rocksdb.estimate-pending-compaction-bytes",
    "rocksdb.num-running-compactions",
)
_STATISTICS = "rocksdb.options-statistics"
"""A text with a line for each number that RocksDB counts."""
_COUNTERS = {
    "block-cache-hits": "rocksdb.block.cache.hit",
    "block-cache-misses": "rocksdb.block.cache.miss",
    "compaction-bytes-read": "rocksdb.compact.read.bytes",
    "compaction-bytes-written": "rocksdb.compact.write.bytes",
    "flush-bytes-written": "rocksdb.flush.write.bytes",
}
_TIMERS = {
    "get-ns": "rocksdb.db.get.micros",
    "write-ns": "rocksdb.db.write.micros",
    "seek-ns": "rocksdb.db.seek.micros",
    "write-stall-ns": "rocksdb.db.write.stall",
}
"""Name of a metric -> RocksDB's histogram, in microseconds."""
_LINE = re.compile(r"^(\S+) (?:.* P100 : ([\d.]+) )?COUNT : (\d+)(?: SUM : (\d+))?$", re.MULTILINE)
_ABSENT = "key not found"
"""The binding's message for a key that a snapshot does not hold, raised as a plain Exception."""
_FIRST_CHUNK, _LARGEST_CHUNK = 8, 512
"""The number of entries that a scan of a snapshot reads at a time: first, and at most."""
_TABLES = "rocksdb.aggregated-table-properties"
_ARENA_BYTES = 64 << 10
"""Write buffers that share their memory grow by this much. By default they do by an eighth of their size, so that a
hundred nearly empty ones take hundreds of megabytes."""
_ENTRIES = re.compile(r"# entries=(\d+)")
_NEVER_WAIT = {"level0_slowdown_writes_trigger": "1000000", "level0_stop_writes_trigger": "1000000"}
"""By default RocksDB delays writes at 20 unmerged files, and stops them at 36."""
_PLACE = "job.logged.store.base.dir"
_OPENING = threading.Lock()
"""Held while a database is opened. The binding keeps Python's lock meanwhile, for some syncs of the disk. If many
threads opened at once, any other, such as the one that answers heartbeats, would wait for all of them at every step."""


class RocksDbEngine(Engine):
    """RocksDB, opened for as long as the task stays in its container.

    The write-ahead log is off: state becomes durable by the commit's backup, and a directory whose process died is
    thrown away, never reopened.
    """

    def __init__(
        self,
        path: Path,
        *,
        block_cache_bytes: int,
        write_buffer_bytes: int,
        total_bytes: int | None = None,
        read_only: bool = False,
        foreign: bool = False,
    ) -> None:
        """
        Args:
            total_bytes: of the cache and the write buffers of all engines in this process together; None: this engine
                has a cache for itself.
            foreign: other software wrote the files, which are opened with their own options: their values may need its
                merge operator.
        """
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._options = options = _options(block_cache_bytes, write_buffer_bytes, total_bytes)
        access = rocksdict.AccessType.read_only() if read_only else rocksdict.AccessType.read_write()
        # The binding opens a folder again as it was opened before, if it is not told what the column family is to have.
        families = None if foreign else {"default": options}
        try:
            with _OPENING:
                self._db: Any = rocksdict.Rdict(str(path), options, families, access)
        except Exception as error:
            raise engine_error(error, f"RocksDB cannot open `{path}`") from error
        self._measured: dict[str, CounterValue | TimerValue] = {}
        self._measured_before: dict[str, CounterValue | TimerValue] = {}
        self._failed = False
        self._write_options = rocksdict.WriteOptions()
        setattr(self._write_options, "disable_wal", True)  # noqa: B010 - rocksdict's stub calls this setter a method

    @property
    def has_failed(self) -> bool:
        return self._failed

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception:
            self._failed = True
            raise
        return value

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        """As `Engine.get_many`. Neighbours are in the same blocks, so keys in order take half the time of any order."""
        array = keys.to_arrow()
        order = pc.sort_indices(array)
        ordered = array.take(order)
        found: list[bytes | None] = []
        try:
            for start in range(0, len(array), _AT_ONCE):
                found += self._db.get(ordered.slice(start, _AT_ONCE).to_pylist())
        except Exception:
            self._failed = True
            raise
        values: list[bytes | None] = [None] * len(found)
        for place, value in zip(order.to_pylist(), found, strict=True):
            values[place] = value
        return found_in(values)

    def apply(self, changes: Changes) -> None:
        """Write the changes in pieces. If a piece fails, the engine has failed, and its store is restored."""
        items = iter(changes.items())
        while piece := list(islice(items, _AT_ONCE)):
            batch = rocksdict.WriteBatch(raw_mode=True)
            put, delete = batch.put, batch.delete
            for key, value in piece:
                if value is None:
                    delete(key)
                else:
                    put(key, value)
            with self._writing():
                self._db.write(batch, self._write_options)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Explain errors of the operating system, such as a full disk: which path, and the remedy."""
        try:
            yield
        except Exception as error:
            self._failed = True
            cause = os_error_in(str(error))
            if cause is None:
                raise
            raise explain(cause, f"RocksDB cannot write `{self._path}`", _PLACE) from error

    def load(self, changes: Changes) -> None:
        """Writes a sorted, separate table, which costs less than puts and leaves nothing to compact."""
        if len(changes) < _BULK:
            self.apply(changes)
            return
        with self._writing():
            self._load_table(changes, self._path.with_name(f"{self._path.name}.load"))

    def _load_table(self, changes: Changes, table: Path) -> None:
        writer = rocksdict.SstFileWriter(self._options)
        writer.open(str(table))
        for key in _in_order(changes):
            value = changes[key]
            if value is None:
                del writer[key]
            else:
                writer[key] = value
        writer.finish()
        self._db.flush()  # the call below would do it, but keep Python's lock meanwhile
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)
        self._db.ingest_external_file([str(table)], options)

    def ingest(self, tables: Iterable[Path]) -> None:
        """Take over sorted tables, which are moved. No two may have the same key. Raises CorruptError if one of them is
        damaged."""
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)
        for table in tables:
            try:
                self._db.flush()
                self._db.ingest_external_file([str(table)], options)
            except Exception as error:
                raise engine_error(error, f"RocksDB cannot take `{table}` into `{self._path}`") from error

    def count(self) -> int:
        """The exact number of entries in the files. Raises CorruptError if a file does not have it."""
        try:
            found = _ENTRIES.search(self._db.property_value(_TABLES) or "")
        except Exception as error:
            raise engine_error(error, f"RocksDB cannot read `{self._path}`") from error
        if found is None:
            raise CorruptError(f"the tables in `{self._path}` do not say how many entries they have")
        return int(found[1])

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
            self._failed = True
            raise engine_error(error, f"a scan of `{self._path}` failed") from error

    def moment(self) -> RocksDbMoment:
        """The present content. It costs some microseconds, and RocksDB keeps no file for it, only the values that
        compactions would drop."""
        return RocksDbMoment(self._db, self._path)

    def snapshot(self) -> EngineSnapshot:
        """The present content. It costs some microseconds, and keeps its files and memory until it is released.
        Not to be called while another thread writes."""
        return _RocksDbSnapshot(self._db, self._path)

    def compact_in_background(self, wanted: bool) -> None:
        """Turn the merging of files in the background on or off; without this call it is on. Many writes in a row are
        faster without it, and reads are faster after it. From the first call on, writes never wait until files are
        merged: there may be very many when it begins, and a write that waits stops every thread of Python."""
        self._db.set_options({"disable_auto_compactions": "false" if wanted else "true", **_NEVER_WAIT})

    def flush(self) -> None:
        """Write the content of memory to files, so that it survives the process."""
        with self._writing():
            self._db.flush()

    def copy_to(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with self._writing():
            self._db.flush()  # as in `_load_table`
            rocksdict.Checkpoint(self._db).create_checkpoint(str(directory))

    def statistics(self) -> dict[str, int]:
        try:
            found = {name: self._db.property_int_value(name) for name in _PROPERTIES}
        except Exception:  # it was closed meanwhile
            return {}
        keys = found.pop(_KEYS)
        return {"keys": keys or 0, **{name: number for name, number in found.items() if number is not None}}

    def measurements(self) -> dict[str, CounterValue | TimerValue]:
        with suppress(Exception):  # it was closed meanwhile
            found = measurements_in(self._db.property_value(_STATISTICS) or "")
            self._measured = {name: _since(value, self._measured_before.get(name)) for name, value in found.items()}
        return self._measured

    def measure_anew(self) -> None:
        with suppress(Exception):
            self._measured_before = measurements_in(self._db.property_value(_STATISTICS) or "")

    def close(self) -> None:
        self.measurements()
        self._db.close()


class RocksDbMoment:
    """RocksDB's own snapshot, for gets: later writes do not change what it shows."""

    def __init__(self, database: Any, path: Path) -> None:
        self._snapshot: Any = database.snapshot()
        self._path = path

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes = self._snapshot[key]
        except Exception as error:
            if error.args == (_ABSENT,):
                return None
            if self._snapshot is None:
                raise released() from None
            raise engine_error(error, f"`{self._path}` cannot be read") from error
        return value

    def release(self) -> None:
        self._snapshot = None


class _RocksDbSnapshot(RocksDbMoment, EngineSnapshot):
    """A moment with an iterator of the same moment for scans.

    The binding's snapshot cannot be scanned: its iterators show later writes. An iterator that is made together with it
    shows the same moment; all scans share it, in turn, some entries at a time.
    """

    def __init__(self, database: Any, path: Path) -> None:
        super().__init__(database, path)
        self._iterator: Any = database.iter()
        self._lock = threading.Lock()
        """Guards the iterator."""

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        following, size, complete = start, _FIRST_CHUNK, False
        while not complete:
            chunk = self._chunk(following, end, size)
            yield from chunk
            complete = len(chunk) < size
            if chunk:
                following, size = chunk[-1][0] + b"\0", min(2 * size, _LARGEST_CHUNK)

    def _chunk(self, start: bytes | None, end: bytes | None, size: int) -> list[tuple[bytes, bytes]]:
        with self._lock:
            iterator = self._iterator
            try:
                if iterator is None:
                    raise released()
                return _entries(iterator, start, end, size, self._path)
            finally:
                del iterator  # an error that somebody keeps has this frame: it would keep the database open

    def release(self) -> None:
        super().release()
        with self._lock:
            self._iterator = None


def _entries(iterator: Any, start: bytes | None, end: bytes | None, most: int, path: Path) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    try:
        if start is None:
            iterator.seek_to_first()
        else:
            iterator.seek(start)
        while iterator.valid() and len(found) < most:
            key = iterator.key()
            if end is not None and key >= end:
                return found
            found.append((key, iterator.value()))
            iterator.next()
        try:
            iterator.status()
        except Exception as error:
            raise engine_error(error, f"a scan of `{path}` failed") from error
        return found
    finally:
        del iterator


def _in_order(keys: Iterable[bytes]) -> Iterator[bytes]:
    """The keys by their bytes. Arrow lets other threads run while it sorts."""
    found = pa.array(list(keys), pa.binary())
    ordered = found.take(pc.sort_indices(found))
    for start in range(0, len(ordered), _AT_ONCE):
        yield from ordered.slice(start, _AT_ONCE).to_pylist()


def measurements_in(statistics: str) -> dict[str, CounterValue | TimerValue]:
    found = {name: (highest, count, total) for name, highest, count, total in _LINE.findall(statistics)}
    counters = {ours: CounterValue(int(found[name][1])) for ours, name in _COUNTERS.items() if name in found}
    timers = {
        ours: TimerValue(int(count), int(total or 0) * 1000, round(float(highest or 0) * 1000))
        for ours, name in _TIMERS.items()
        if name in found
        for highest, count, total in [found[name]]
    }
    return {**counters, **timers}


def _since(now: CounterValue | TimerValue, before: CounterValue | TimerValue | None) -> CounterValue | TimerValue:
    """The difference between two moments; the highest of all times stays."""
    if isinstance(now, CounterValue):
        return CounterValue(now.count - before.count) if isinstance(before, CounterValue) else now
    if not isinstance(before, TimerValue):
        return now
    return TimerValue(now.count - before.count, now.total_ns - before.total_ns, now.max_ns)


def engine_error(error: Exception, what: str) -> PenstockError:
    """An error of RocksDB as one of Penstock's that begins with `what`. It is damage (CorruptError) only if the
    operating system did not refuse the call, for example for lack of file descriptors."""
    cause = os_error_in(str(error))
    return CorruptError(f"{what}: {error}") if cause is None else explain(cause, what, _PLACE)


@lru_cache(maxsize=1)
def _shared_memory(total_bytes: int) -> tuple[Any, Any]:
    """A block cache of this size for all engines of this process, and the manager of their write buffers, which count
    as part of the cache. Once they take a third of it, buffers are written."""
    cache = rocksdict.Cache(total_bytes)
    buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(total_bytes // 3, False, cache)
    return cache, buffers


def _options(block_cache_bytes: int, write_buffer_bytes: int, total_bytes: int | None) -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.enable_statistics()
    options.set_stats_dump_period_sec(0)  # they would be written to RocksDB's log as well
    table = rocksdict.BlockBasedOptions()
    if total_bytes is None:
        table.set_block_cache(rocksdict.Cache(block_cache_bytes))
    else:
        cache, buffers = _shared_memory(total_bytes)
        table.set_block_cache(cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options.set_write_buffer_manager(buffers)
        options.set_arena_block_size(_ARENA_BYTES)
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
