"""The folders for the sockets of containers and of Spark's Python workers, which nobody else can enter. A process that
is killed leaves its folder; a container that starts later removes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from itertools import islice
from pathlib import Path

_PREFIX = "pstk."
_MOST_AT_ONCE = 100
"""A limit for one container: these removals take milliseconds."""
_LONGEST = 107 - len("/pstk.xxxxxxxx/")
"""A socket's path has at most 107 bytes."""
_OWN_NAME = len("123456789")
"""Room for the sockets of the container's gate, beside its own."""
SPARK_NAME = len(".00000000-0000-0000-0000-000000000000.sock")
"""The form of Spark's socket names."""


def make_socket_folder(longest_name: int = _OWN_NAME) -> Path:
    """A new folder of this process, which holds a lock on it until it ends, however it ends. `longest_name`: the most
    bytes that the name of a socket may have."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base(longest_name)))
        try:
            descriptor = _locked(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # a process that looked before the lock removes it
        except OSError:
            return folder  # a file system without locks: nobody removes the folder
        if folder.exists():
            return folder  # the descriptor stays open
        os.close(descriptor)


def remove_dead_folders() -> int:
    """Remove folders of processes that have ended, at most 100 of them in a place. Returns their number."""
    return sum(_remove_dead(base) for base in {_base(_OWN_NAME), _base(SPARK_NAME)})


def _remove_dead(base: str) -> int:
    removed = 0
    with suppress(OSError), os.scandir(base) as found:
        for entry in islice((each for each in found if each.name.startswith(_PREFIX)), 10 * _MOST_AT_ONCE):
            if removed == _MOST_AT_ONCE:
                break
            with suppress(OSError):  # its process lives, or somebody else removes it, or it is another user's
                descriptor = _locked(Path(entry.path))
                try:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    removed += 1
                finally:
                    os.close(descriptor)
    return removed


def _base(longest_name: int) -> str:
    """The parent of the folders: the directory for temporary files, unless the path of a socket there would be too
    long."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) + longest_name <= _LONGEST else "/tmp"  # noqa: S108 - mkdtemp makes it safe


def _locked(folder: Path) -> int:
    """A descriptor with the folder's lock. Raises BlockingIOError if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
