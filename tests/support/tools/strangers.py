"""Another local user, for tests from an attacker's side. Only root can be one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
"""An interpreter that others can run, too: that of the tests may be in a private folder."""
needs_strangers = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
_LOCK = """
import fcntl, sys
try:
    file = open(sys.argv[1], "rb")
    if len(sys.argv) > 2:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, int(sys.argv[3]), int(sys.argv[2]))
    else:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    print("locked", flush=True)
except OSError as error:
    print(error, flush=True)
sys.stdin.readline()
"""


def identity() -> dict[str, Any]:
    """The keywords of `subprocess` that make a process another user's."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}


def as_stranger(*command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, check=False, timeout=60, **identity())


@contextmanager
def stranger_locks(path: Path, *bytes_of_lock: int) -> Iterator[str]:
    """Another user who holds a read lock on a file meanwhile; the answer is `locked`, or the reason why not.

    Args:
        bytes_of_lock: the first byte and the number of bytes, for a lock of POSIX; none, for `flock`.
    """
    command = [PYTHON, "-c", _LOCK, str(path), *map(str, bytes_of_lock)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **identity())
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate("\n", 60)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that everybody can enter, as those of tests cannot be, with a umask that keeps nothing private."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    before = os.umask(0)
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        os.umask(before)
        shutil.rmtree(folder)
