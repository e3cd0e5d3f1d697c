"""Permissions of the files that Penstock makes: only its user may read them, except for outputs, which are for
others."""

from __future__ import annotations

import os
from contextlib import suppress

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
