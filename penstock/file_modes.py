"""Who may read the files that Penstock makes: its user alone, but for outputs, which are for others."""

from __future__ import annotations

import os

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
UMASK = "PENSTOCK_UMASK"
"""The variable of the environment with the umask that the user has chosen, in octal digits. It is there in processes
that have another one."""


def go_private() -> None:
    """Nobody else can read what this process and its children make from now on. To be called before it has threads."""
    chosen = os.umask(0o077)
    os.environ.setdefault(UMASK, f"{chosen:03o}")


def chosen_mode(mode: int) -> int | None:
    """The mode of a file for others, which the process's own umask would make private; None if it does not."""
    chosen = os.environ.get(UMASK)
    return None if chosen is None else mode & ~int(chosen, 8)
