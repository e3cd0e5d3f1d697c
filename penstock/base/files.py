"""Files of the operating system: who may read them, what its errors ask for, and the hashes of known ones.

Only the user of a process may read the files that Penstock makes, except for outputs, which are for others. None of
the errors here says that stored bytes are damaged.

A file that this process has made or hashed before is not hashed again. It is known by its inode, size and time of
change. Only immutable files are listed: RocksDB tables and files of copies. If one was written again all the same,
its time differs and it is hashed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeAlias

from penstock.errors import ConfigError, PenstockError, RetryableError

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
UMASK = "PENSTOCK_UMASK"
"""The environment variable with the umask that the user has chosen, in octal digits. Only set in processes that run
with another one."""


def go_private() -> None:
    """Make all files that this process and its children create from now on private. Called before the process has
    threads."""
    chosen = os.umask(0o077)
    os.environ.setdefault(UMASK, f"{chosen:03o}")


def chosen_mode(mode: int) -> int | None:
    """The mode of a file for others, which the process's own umask would make private; None if it does not."""
    chosen = os.environ.get(UMASK)
    return None if chosen is None else mode & ~int(chosen, 8)


def open_lock(path: str | os.PathLike[str], *, for_writers: bool = False) -> int:
    """A descriptor of the file of a lock, which is made if there is none. Nobody else can read it: a user who can
    read a file can lock it, and hold up every process that waits for the lock.

    Args:
        for_writers: other users who may write, by the user's umask, may take the lock. Those who may only read cannot.

    Raises:
        OSError: the file belongs to somebody else, or the folder cannot be written.
    """
    mode = 0o622 if for_writers else PRIVATE_FILE
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, mode)
    found = os.fstat(descriptor).st_mode & 0o777
    wanted = (chosen_mode(mode) or found & mode) if for_writers else mode
    if found != wanted:  # made under another umask than the user's, or by an earlier version
        with suppress(PermissionError):  # it is another user's
            os.fchmod(descriptor, wanted)
    return descriptor


_TOLD = (
    *(errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, errno.ENOMEM, errno.ESTALE, errno.EAGAIN, errno.ENAMETOOLONG),
)
_BY_TEXT = {os.strerror(code): code for code in _TOLD}


@contextmanager
def explained(what: str, setting: str) -> Iterator[None]:
    """Turn an OSError into an error that begins with `what`, and names the remedy; see `explain`."""
    try:
        yield
    except OSError as error:
        raise explain(error, what, setting) from error


def explain(error: OSError, what: str, setting: str) -> PenstockError:
    """A RetryableError or ConfigError that says `what` could not be done, why, and what to do about it.

    `setting` is the key of the configuration that names the place.
    """
    said = f"{what}: {error.strerror or error}"
    match error.errno:
        case errno.EMFILE | errno.ENFILE:
            return RetryableError(f"{said}. Raise the limit of open files of this process (`ulimit -n`)")
        case errno.ENOSPC | errno.EDQUOT:
            return RetryableError(f"{said}. Free space there, or name a larger place with `{setting}`")
        case errno.EFBIG:
            return RetryableError(f"{said}. Raise the file size limit of this process (`ulimit -f`)")
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return ConfigError(f"{said}. Let this user read and write there, or name another place with `{setting}`")
        case errno.EOPNOTSUPP | errno.ENOTSUP | errno.ENOSYS:
            return ConfigError(f"{said}. The file system needs hard links and locks: choose another for `{setting}`")
        case errno.ENOTDIR | errno.EEXIST:
            return ConfigError(f"{said}. A file is where a folder is needed: remove it or choose another `{setting}`")
        case errno.ENAMETOOLONG:
            return ConfigError(f"{said}. Shorten the names of the job or its stores")
        case _:
            return RetryableError(f"{said}. Look for trouble of the disk or its mount, then try again")


def os_error_in(text: str) -> OSError | None:
    """The error of the operating system that a library reports in words only; None if the text has none that this
    module knows. A missing file is not among them: its meaning depends on the caller."""
    found = next((words for words in _BY_TEXT if words in text), None)
    return None if found is None else OSError(_BY_TEXT[found], text)


_Identity: TypeAlias = tuple[int, int, int, int]

_MOST = 65_536


class KnownFiles:
    """Remembers the hashes of the files that were used last. Thread-safe."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._hashes: OrderedDict[_Identity, str] = OrderedDict()

    def hash_of(self, path: Path) -> str:
        """The SHA-256 of a file, in hexadecimal."""
        identity = _identity(path)
        with self._lock:
            known = self._hashes.get(identity)
        found = known or _hash(path)
        if known is None and _identity(path) != identity:  # it changed meanwhile
            return found
        self._note(identity, found)
        return found

    def note(self, path: Path, sha256: str) -> None:
        """Note the hash of a file that was written or verified just now."""
        self._note(_identity(path), sha256)

    def _note(self, identity: _Identity, sha256: str) -> None:
        with self._lock:
            self._hashes[identity] = sha256
            self._hashes.move_to_end(identity)
            while len(self._hashes) > self._most:
                self._hashes.popitem(last=False)


@cache
def known_files() -> KnownFiles:
    return KnownFiles()


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _hash(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
