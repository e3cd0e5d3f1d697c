"""Folders of this host that processes lock, and that outlive them."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from penstock.base.files import open_lock

logger = logging.getLogger(__name__)


class HostFolder:
    """A folder that this object has locked, until `release` or the end of the process, however it ends.

    * Who uses a folder holds its lock: alone, or shared if others may use it at the same time.
    * Who removes a folder holds its lock alone. What a sweep can lock belonged to processes that have ended, so it
      removes that, and nothing that somebody uses.
    * The lock is on the folder itself and follows it when it is renamed, so that one that was made under another name
      is in use from the moment it is published. Where content comes and goes while the folder is in use, the lock is on
      the file `<name>.lock` instead.
    * Another process may remove the folder, or its lock file, before it is locked. Then it is not the one that has the
      name, and does not count.
    * Content that is removed first gets the name `<name>.leaving`. What a process leaves of it that dies meanwhile is
      no content, and is removed by the next `empty`, `remove` or sweep.
    """

    def __init__(self, path: Path, lock: int, lock_file: Path | None = None) -> None:
        self.path = path
        self._lock: int | None = lock
        self._lock_file = lock_file

    @classmethod
    def lock(cls, path: Path, *, shared: bool = False) -> Self | None:
        """The folder that has this path now; None if there is none, or others' locks forbid it. Raises OSError if the
        file system has no locks, or the folder is not ours."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        with suppress(FileNotFoundError):
            lock = _locked(path, _open_folder, kind)
            return None if lock is None else cls(path, lock)
        return None

    @classmethod
    def lock_beside(cls, path: Path) -> Self | None:
        """The folder, which need not exist, locked by `<name>.lock`; None if somebody has it, in this process or
        another.

        Raises:
            OSError: the file system has no locks, is full, or is not ours.
        """
        lock_file = beside(path, "lock")
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # somebody removed the folder, and the lock with it, before it was ours
                lock = _locked(lock_file, open_lock, fcntl.LOCK_EX)
                return None if lock is None else cls(path, lock, lock_file)

    def empty(self) -> None:
        """Remove the content. Raises OSError if it cannot be removed."""
        leaving = beside(self.path, "leaving")
        shutil.rmtree(leaving, ignore_errors=True)
        if self.path.exists():
            self.path.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder and let go of it. Files that cannot be removed stay until the next time."""
        if self._lock is None:
            return
        try:
            self.empty()
            if self._lock_file is not None:
                self._lock_file.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("`%s` could not be removed: %s", self.path, error)
        self.release()

    def release(self) -> None:
        """Let others have the folder. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _locked(path: Path, opened: Callable[[Path], int], kind: int) -> int | None:
    """A descriptor of what has this path now, with its lock; None if others' locks forbid it. Raises FileNotFoundError
    if nothing has the path."""
    while True:
        descriptor = opened(path)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
