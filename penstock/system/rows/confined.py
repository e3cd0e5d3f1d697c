"""Files of this machine that are below a folder, whatever links somebody has put there.

Whoever writes a folder of an input is trusted with messages alone. A link in it could lead to any file that the job's
user may read, and its content would come out in an output.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import SystemRefusedError

_OPEN_FILES = Path("/proc/self/fd")


def leads_out(base: str, path: str) -> str | None:
    """The place outside of a folder that a path below it leads to; None if it stays inside."""
    real, inside = os.path.realpath(path), os.path.realpath(base)
    return None if real == inside or real.startswith(f"{inside.rstrip('/')}/") else real


@contextmanager
def opened_inside(base: str, path: str, advice: str = "") -> Iterator[str]:
    """A path of the very file that was found to be below a folder: a link that somebody puts in its place meanwhile
    changes nothing. Systems without `/proc` lack this last step.

    Args:
        base: the folder.
        path: the path of the file, which begins with that of the folder.
        advice: ends the error.

    Raises:
        SystemRefusedError: it leads out of the folder.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe keeps nobody waiting
    try:
        known = _OPEN_FILES / str(descriptor)
        own = str(known) if _OPEN_FILES.exists() else path
        if (outside := leads_out(base, own)) is not None:
            raise refused(path, outside, advice)
        yield own
    finally:
        os.close(descriptor)


def refused(path: str, outside: str, advice: str = "") -> SystemRefusedError:
    """The error for a path that leads out of its folder."""
    return SystemRefusedError(f"`{path}` leads out of its folder, to `{outside}`, and is not read{advice}")
