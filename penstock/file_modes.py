"""Permissions of the files that Penstock makes: only its user may read them, except for outputs, which are for
others."""

from __future__ import annotations

import os

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
