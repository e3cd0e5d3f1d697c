"""The last words of a driver on its host, for a job root that takes nothing any more: the disk is full, for example.

Room for them is taken when the driver starts. Words are written into it in place, which needs no free block of a disk.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_ROOM_BYTES = 32 << 10
_KEPT = 20
"""Files of drivers that did not end by themselves."""


class WordsOnHost:
    """The file of one driver, named by the token of its lease."""

    def __init__(self, folder: Path, driver: str) -> None:
        """Nothing is read or written yet. `folder`: the folder of all jobs' logs."""
        self._folder = folder
        self._path = folder / f"driver-{driver}.words"

    def reserve(self) -> None:
        """Take the room, and delete old files. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        others = sorted(self._folder.glob("driver-*.words"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[_KEPT:]:
            path.unlink(missing_ok=True)
        self._path.write_bytes(b" " * _ROOM_BYTES)

    def write(self, words: bytes) -> None:
        """Raises OSError if there is no room."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(words.ljust(_ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> bytes | None:
        """The words; None if there are none on this host."""
        with suppress(OSError):
            return self._path.read_bytes().strip() or None
        return None

    def release(self) -> None:
        """Give the room back, unless there are words in it."""
        with suppress(OSError):
            if self.read() is None:
                self._path.unlink(missing_ok=True)
