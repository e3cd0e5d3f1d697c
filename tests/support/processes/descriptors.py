"""Open files of this process, and running out of file descriptors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process may open so many more files."""
    taken = [os.dup(0)]
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    try:
        while taken[-1] < highest:  # fill the gaps: the limit is on the number of a descriptor
            taken.append(os.dup(0))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + count, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    finally:
        for descriptor in taken:
            os.close(descriptor)


def open_under(root: Path) -> set[str]:
    """The files of partitions under a folder that this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {path for path in found if path.startswith(f"{root}/") and path.endswith(".db")}
