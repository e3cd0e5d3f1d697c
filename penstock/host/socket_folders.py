"""The folders for the sockets of containers and of Spark's Python workers, which nobody else can enter. A process that
is killed leaves its folder; a container that starts later removes it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from itertools import islice
from pathlib import Path

from penstock.host.folder import HostFolder
from penstock.host.posix import SOCKET_PATH_BYTES

_PREFIX = "pstk."
_MOST_AT_ONCE = 100
"""A limit for one container: these removals take milliseconds."""
_LONGEST = SOCKET_PATH_BYTES - len("/pstk.xxxxxxxx/")
_OWN_NAME = len("123456789")
"""Room for the sockets of the container's gate, beside its own."""
SPARK_NAME = len(".00000000-0000-0000-0000-000000000000.sock")
"""The form of Spark's socket names."""


def make_socket_folder(longest_name: int = _OWN_NAME) -> Path:
    """A new folder of this process, which holds a lock on it until it ends, however it ends. `longest_name`: the most
    bytes that the name of a socket may have."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base(longest_name)))
        try:
            if HostFolder.lock(path) is not None:  # otherwise a process that looked before the lock removes it
                return path  # the lock stays
        except OSError:
            return path  # a file system without locks: nobody removes the folder


def remove_dead_folders() -> int:
    """Remove folders of processes that have ended, at most 100 of them in a place. Returns their number."""
    return sum(_remove_dead(base) for base in {_base(_OWN_NAME), _base(SPARK_NAME)})


def _remove_dead(base: str) -> int:
    removed = 0
    with suppress(OSError), os.scandir(base) as found:
        for entry in islice((each for each in found if each.name.startswith(_PREFIX)), 10 * _MOST_AT_ONCE):
            if removed == _MOST_AT_ONCE:
                break
            with suppress(OSError):  # it is another user's
                if (dead := HostFolder.lock(Path(entry.path))) is not None:
                    dead.remove()
                    removed += 1
    return removed


def _base(longest_name: int) -> str:
    """The parent of the folders: the directory for temporary files, unless the path of a socket there would be too
    long."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) + longest_name <= _LONGEST else "/tmp"  # noqa: S108 - mkdtemp makes it safe
