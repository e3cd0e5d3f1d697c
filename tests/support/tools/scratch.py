"""One folder for all temporary files of a run of tests, which is removed in the end, whatever the tests left in it.

With `--in-memory` it is in memory, where that has room: tests wait for disks longer than for anything else. What a test
kills loses nothing by it: what a dead process has written is there afterwards, whether it was synced or not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30
_PREFIX = "penstock-tests-"


def begin(*, in_memory: bool) -> Path:
    """Make the folder, for this process and for all that it starts. Folders of earlier runs that failed go now."""
    usual, base = Path(tempfile.gettempdir()), where(in_memory=in_memory)
    _remove_earlier({base, usual})
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
    folder.chmod(0o711)  # tests that become another user get to their own folders
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    # Without compiled files, each process that a test starts would compile all modules again.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(folder / "compiled"))
    return folder


def where(*, in_memory: bool) -> Path:
    """The place for temporary folders. A disk may take longer than the tests themselves."""
    return _MEMORY if in_memory and _has_room(_MEMORY) else Path(tempfile.gettempdir())


def end(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _has_room(folder: Path) -> bool:
    """True if there is such a folder, and memory for it besides."""
    try:
        room = min(shutil.disk_usage(folder).free, psutil.virtual_memory().available // 2)
    except OSError:
        return False
    return room >= _ROOM_BYTES and os.access(folder, os.W_OK)


def _remove_earlier(bases: set[Path]) -> None:
    for found in (each for base in bases for each in base.glob(f"{_PREFIX}*")):
        with contextlib.suppress(ValueError, OSError):
            owner = int(found.name.removeprefix(_PREFIX).partition("-")[0])
            if not psutil.pid_exists(owner) and found.stat().st_uid == os.getuid():
                end(found)
