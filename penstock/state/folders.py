"""Folders that engines are restored into."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path


def make_empty(directory: Path) -> None:
    """Make an empty folder, in the place of whatever was there.

    Raises:
        OSError: the old folder cannot be removed. Nothing may be restored over it.
    """
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
