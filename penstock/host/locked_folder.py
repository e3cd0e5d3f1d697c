"""A folder that one process at a time uses, for as long as it lives.

<name>/           the content
<name>.lock       locked while somebody uses it
<name>.load       a sorted file that RocksDB was about to take over when its process died
<name>.damaged    exists once the content turned out to be damaged
<name>.leaving/   the old content, while it is removed
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from pathlib import Path

logger = logging.getLogger(__name__)


class LockedFolder:
    """A folder whose lock this object holds."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def lock(cls, path: Path) -> LockedFolder | None:
        """The folder, which need not exist; None if somebody has it, in this process or another.

        The system lets go of the lock when the process dies, however it dies.

        Raises:
            OSError: the file system has no locks, is full, or is not ours.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(_beside(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_file(descriptor, _beside(path, "lock")):
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # somebody removed the folder, and the lock with it, before it was ours

    @property
    def damaged(self) -> bool:
        return _beside(self.path, "damaged").exists()

    def mark_damaged(self) -> None:
        """Keep everybody from using the content again. Any thread may call it."""
        try:
            _beside(self.path, "damaged").touch()
        except OSError:
            logger.exception("`%s` is damaged, and this could not be recorded in it. Remove the folder", self.path)

    def empty(self) -> None:
        """Remove the content. If the process dies meanwhile, files that remain do not count as content.

        Raises:
            OSError: it cannot be removed.
        """
        leaving = _beside(self.path, "leaving")
        shutil.rmtree(leaving, ignore_errors=True)
        if self.path.exists():
            self.path.rename(leaving)
        _beside(self.path, "damaged").unlink(missing_ok=True)
        _beside(self.path, "load").unlink(missing_ok=True)
        shutil.rmtree(leaving, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder and let go of it. Files that cannot be removed stay until the next time."""
        if self._descriptor is None:
            return
        try:
            self.empty()
            _beside(self.path, "lock").unlink(missing_ok=True)
        except OSError as error:
            logger.warning("`%s` could not be removed: %s", self.path, error)
        self.release()

    def release(self) -> None:
        """Let others have the folder. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)
