"""Output that its program survives: what cannot be written is dropped and counted.

A full disk under a log, or a reader of a pipe that has gone, is no failure of the code that prints and logs.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DroppedLines:
    """Lines that could not be written."""

    lines: int = 0
    why: str = ""
    """The last reason, in words."""

    def __bool__(self) -> bool:
        return self.lines > 0

    def __str__(self) -> str:
        return f"{self.lines:,} line{'' if self.lines == 1 else 's'} could not be written and were dropped: {self.why}"


class LossyStream(io.RawIOBase):
    """Bytes for a descriptor. `write` never raises OSError: it says that all was written. Thread-safe.

    The first write that succeeds after others have failed begins with a line that says how many lines are missing.
    """

    def __init__(self, descriptor: int, piece_bytes: int = 1 << 20) -> None:
        """`piece_bytes`: the most that is written at once."""
        self._descriptor = descriptor
        self._piece_bytes = piece_bytes
        self._lock = threading.Lock()
        self._missing = DroppedLines()
        """Since the last write that succeeded."""
        self._torn = False
        """True if the last write that got through ended within a line."""
        self.note: Callable[[str], str] = str
        """Makes the line that says what is missing, without its end."""
        self.dropped = DroppedLines()
        """Since the start."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        missing = self._missing
        try:
            if missing:
                self._write_all(memoryview(self._told(missing)))
                with self._lock:
                    self._missing = DroppedLines(max(0, self._missing.lines - missing.lines), missing.why)
            self._write_all(view)
        except OSError as error:
            self._drop(view, error)
        return len(view)

    def _told(self, missing: DroppedLines) -> bytes:
        begin = "\n" if self._torn else ""
        return f"{begin}{self.note(str(missing))}\n".encode(errors="backslashreplace")

    def _write_all(self, view: memoryview) -> None:
        begun = False
        try:
            while view:
                count = os.write(self._descriptor, view[: self._piece_bytes])
                begun, view = True, view[count:]
                self.written()
            self._torn = False
        except OSError:
            self._torn = begun or self._torn
            raise

    def written(self) -> None:
        """Called after each piece. May raise OSError, which counts as one of the write."""

    def _drop(self, view: memoryview, error: OSError) -> None:
        lines, why = max(1, bytes(view).count(b"\n")), error.strerror or str(error)
        with self._lock:
            self._missing = DroppedLines(self._missing.lines + lines, why)
            self.dropped = DroppedLines(self.dropped.lines + lines, why)


def print_lossily() -> None:
    """Make this process survive that its standard output and error take nothing: prints are dropped then."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            _as_buffer(LossyStream(descriptor)), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        for descriptor in (1, 2)
    )


def _as_buffer(raw: LossyStream) -> Any:
    return raw
