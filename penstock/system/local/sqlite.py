"""SQLite as the local system uses it: pooled connections that never cross a fork, and errors in our own words.

SQLite must not carry an open connection into a forked child: the child inherits the library's belief that locks
are held which the kernel did not inherit. So every pool closes its connections before the process forks, and both
sides open new ones when they next need them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import quote

from penstock.base.documents import Count, convert, decoding
from penstock.errors import ConfigError, CorruptError, PenstockError, PenstockTimeoutError, RetryableError

T = TypeVar("T")
_LEAST_FREE_BYTES = 64 << 10
"""A disk with less than this is full: SQLite lengthens a shared file by 32 KB."""
_AT_ONCE = 4
_QUICK_SECONDS = 0.002
"""Steps that are quicker than this are taken one after the other: threads would only get in each other's way."""
_CONSTRAINTS_ON_VALUES = (sqlite3.SQLITE_CONSTRAINT_CHECK, sqlite3.SQLITE_CONSTRAINT_NOTNULL)


def connect(path: str, busy_timeout_ms: int, *, create: bool = False) -> sqlite3.Connection:
    """Open one file in autocommit mode with durable commits; only with `create` may the file be new.

    In WAL mode `synchronous=FULL` syncs the log at every commit, so a commit that returned survives a power cut;
    NORMAL, WAL's usual companion, would not promise that.
    """
    uri = f"file:{quote(path)}?mode={'rwc' if create else 'rw'}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: a plain fsync leaves the data in the drive's cache
        connection.execute("PRAGMA journal_size_limit=67108864")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A write transaction: the write lock is taken first, everything commits or nothing does."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some failures have rolled back already
            connection.execute("ROLLBACK")
        raise


def in_parallel(step: Callable[[T], object], items: Sequence[T]) -> None:
    """Take the step for every item, and wait for all of them. Once a step was slow, because a sync takes long or there
    is much to write, the rest are taken some at a time. If several steps fail, raise a permanent error in preference to
    a RetryableError."""
    errors: list[BaseException] = []
    left = deque(items)
    slow = False
    while left and not slow:
        began = time.perf_counter()
        try:
            step(left.popleft())
        except Exception as error:
            errors.append(error)
        slow = time.perf_counter() - began > _QUICK_SECONDS
    if left:
        with ThreadPoolExecutor(min(len(left), _AT_ONCE), thread_name_prefix="local-system") as threads:
            futures = [threads.submit(step, item) for item in left]
            errors += filter(None, [future.exception() for future in futures])
    if errors:
        raise min(errors, key=lambda failure: isinstance(failure, RetryableError))


def translate(error: sqlite3.Error, path: str, busy_timeout_ms: int) -> PenstockError:
    """An error that a caller can act on, naming the file."""
    extended: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return PenstockTimeoutError(
            f"another process kept `{path}` locked for {busy_timeout_ms} ms (`busy_timeout_ms` of the local system); "
            "find the process that holds the file, or raise the timeout"
        )
    full = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(path)
    if code == sqlite3.SQLITE_FULL or full:
        return RetryableError(
            f"no space is left for `{path}`: nothing of this step was stored; free some space and try again"
        )
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM):
        return RetryableError(f"`{path}` could not be read or written ({error}): nothing of this step was stored")
    if code == sqlite3.SQLITE_CANTOPEN:
        return _cannot_open(error, path)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return ConfigError(f"`{path}` or its folder is not writable by this user ({error})")
    if extended in _CONSTRAINTS_ON_VALUES or code in (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH):
        return ConfigError(
            f"a record for `{path}` is not (timestamp in epoch milliseconds: int, key: bytes or None, value: bytes "
            f"or None), or is too big ({error}); nothing was appended"
        )
    return CorruptError(
        f"`{path}` is not an intact partition of a local stream ({error}); keep a copy of it, and restore the file "
        "or publish the stream again"
    )


def _is_full(path: str) -> bool:
    """True if the disk has no space or no inodes left. If SQLite cannot lengthen the file that its processes share, it
    reports only that input or output failed."""
    try:
        disk = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def data_version(connection: sqlite3.Connection) -> int:
    """Another number than before if another connection has committed anything since."""
    found: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return found


def stored_integer(value: object, path: str, what: str) -> int:
    """A whole number read from a file: SQLite does not enforce the type of a column. Raises CorruptError."""
    if type(value) is int and value >= 0:
        return value
    with decoding(f"`{path}` is damaged: {what}"):
        return convert(Count, value)


def _cannot_open(error: sqlite3.Error, path: str) -> PenstockError:
    if not os.path.exists(path):
        return CorruptError(f"`{path}` is missing though the stream's `stream.json` names it; restore the file")
    if not os.path.isfile(path):
        return CorruptError(f"`{path}` is not a file; a partition of a local stream should be there")
    if not (os.access(path, os.R_OK | os.W_OK) and os.access(os.path.dirname(path), os.W_OK)):
        return ConfigError(f"`{path}` and its folder must be readable and writable by this user ({error})")
    return RetryableError(f"`{path}` or its log could not be opened ({error})")


class ConnectionPool:
    """One open connection per file, opened when first needed. Thread-safe: one user at a time.

    A connection whose file was replaced or removed is not used again, and one that failed is closed.
    """

    def __init__(self, busy_timeout_ms: int, opener: Callable[[str], sqlite3.Connection]) -> None:
        """`opener(path)` opens a file and checks that it belongs there."""
        self._lock = threading.Lock()
        self._open: dict[str, tuple[sqlite3.Connection, tuple[int, int]]] = {}
        self._busy_timeout_ms = busy_timeout_ms
        self._opener = opener
        with _registry_lock:
            _pools.add(self)

    @contextmanager
    def use(self, path: str) -> Iterator[sqlite3.Connection]:
        """The connection to `path`, for one short step.

        Raises:
            PenstockTimeoutError, RetryableError, ConfigError, CorruptError: as in `translate`.
        """
        with self._lock:
            try:
                yield self._get(path)
            except sqlite3.Error as error:
                self._drop(path)
                raise translate(error, path, self._busy_timeout_ms) from error
            except UnicodeDecodeError as error:  # SQLite's words for damage quote the file's bytes
                self._drop(path)
                raise CorruptError(f"`{path}` is damaged: {error}") from error
            except (OverflowError, UnicodeEncodeError) as error:
                raise ConfigError(f"a value for `{path}` cannot be stored: {error}") from error

    def close(self) -> None:
        """Close every connection. The pool opens new ones if it is used again."""
        with self._lock:
            self._close_all()

    def __del__(self) -> None:
        # A connection is part of a reference cycle, so one that is only dropped stays open, across forks too, until
        # the garbage collector comes by.
        self.close()

    def suspend(self) -> None:
        """Close every connection and keep the pool shut until `resume`: called just before a fork."""
        self._lock.acquire()
        self._close_all()

    def resume(self) -> None:
        """Let the pool be used again: called after a fork, on both sides."""
        self._lock.release()

    def _get(self, path: str) -> sqlite3.Connection:
        found = self._open.get(path)
        if found is not None:
            if found[1] == _inode(path):
                return found[0]
            self._drop(path)
        inode = _inode(path)
        connection = self._opener(path)
        self._open[path] = (connection, inode)
        return connection

    def _drop(self, path: str) -> None:
        found = self._open.pop(path, None)
        if found is not None:
            found[0].close()

    def _close_all(self) -> None:
        for path in list(self._open):
            self._drop(path)


def _inode(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return (-1, -1)  # opening it will fail and say so
    return (status.st_dev, status.st_ino)


_pools: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()
_registry_lock = threading.Lock()
_suspended: list[ConnectionPool] = []


def _before_fork() -> None:
    _registry_lock.acquire()
    _suspended.extend(_pools)
    for pool in _suspended:
        pool.suspend()


def _after_fork() -> None:
    for pool in _suspended:
        pool.resume()
    _suspended.clear()
    _registry_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
