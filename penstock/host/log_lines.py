"""Lines of a log, and output that its program survives.

Here are the form of lines, the work that they belong to, and the lines that a container passes on to its driver.
What cannot be written is dropped and counted: a full disk under a log, or a reader of a pipe that has gone, is no
failure of the code that prints and logs.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from penstock.base.secrets import without_secrets
from penstock.config.settings import LogFormat


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
        """Makes the line that says how many lines are missing, without its line end."""
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


LINES_AT_ONCE = 20
"""The most lines that a container passes on with one beat. The others stay in its log."""
LINE_CHARACTERS = 1_000
"""The most characters of a line that is passed on, and of a printed text without a line break."""
TRACEBACK_CHARACTERS = 4_000
"""The most characters of a traceback that goes with such a line: its end."""
PRINTED = "printed"
"""The name of the logger in the records of what the application prints."""
_OWN = "penstock"


@dataclass(frozen=True, slots=True)
class Work:
    """The work that a thread does. -1: none in particular."""

    epoch: int = -1
    batch: int = -1
    task: int = -1

    def __str__(self) -> str:
        numbers = (("epoch", self.epoch), ("batch", self.batch), ("task", self.task))
        return " ".join(f"{name} {number}" for name, number in numbers if number >= 0)


_work: ContextVar[Work] = ContextVar("penstock-work", default=Work())  # noqa: B039 - it is frozen


def work_now() -> Work:
    """The work of this thread."""
    return _work.get()


@contextmanager
def at_work(work: Work) -> Iterator[None]:
    """Meanwhile, lines of this thread belong to this work."""
    token = _work.set(work)
    try:
        yield
    finally:
        _work.reset(token)


class PassedLine(msgspec.Struct, frozen=True):
    """A line that a container passes on."""

    level: int
    text: str
    epoch: int
    batch: int
    task: int


class LineFormatter(logging.Formatter):
    """One form of lines for the logs of drivers and containers: a text that begins with the time (UTC), the level and
    the work, or an object of JSON with the same."""

    def __init__(self, form: LogFormat, job: str = "", *, shown: Callable[[str], str] = str) -> None:
        """
        Args:
            form: text, or JSON.
            job: the job, for JSON.
            shown: called with each message.
        """
        super().__init__()
        self._form = form
        self._job = job
        self._shown = shown

    def format(self, record: logging.LogRecord) -> str:
        work: Work = getattr(record, "work", None) or work_now()
        # A line of a container says its task in other people's forms of logs. Here the work does.
        message = without_secrets(self._shown(getattr(record, "bare", None) or record.getMessage()))
        trace = self._trace(record)
        if self._form == "json":
            return _json_line(record, work, self._job, message, trace)
        place = str(work)
        line = f"{utc(record.created)} {record.levelname}{f' [{place}]' if place else ''} {message}"
        return f"{line}\n{trace}" if trace else line

    def _trace(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[0] is None:
            return ""
        return without_secrets(self.formatException(record.exc_info))


def utc(seconds: float) -> str:
    """A moment in UTC, with milliseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds * 1000) % 1000:03d}Z"


def _json_line(record: logging.LogRecord, work: Work, job: str, message: str, trace: str) -> str:
    fields = {
        "time": utc(record.created),
        "level": record.levelname,
        "logger": record.name,
        "job": job,
        **{name: n for name in ("epoch", "batch", "task") if (n := getattr(work, name)) >= 0},
        "message": message,
        **({"traceback": trace} if trace else {}),
    }
    try:
        return orjson.dumps(fields).decode()
    except TypeError:  # lone surrogates, such as those of file names
        plain = {
            key: v.encode(errors="backslashreplace").decode() if type(v) is str else v for key, v in fields.items()
        }
        return orjson.dumps(plain).decode()


class PassedOn(logging.Handler):
    """Keeps the newest lines of the application for the driver: what it prints, and logs at INFO and above. Lines of
    Penstock stay in the container's log."""

    def __init__(self, dropped: Callable[[], DroppedLines] = DroppedLines) -> None:
        """`dropped` tells the lines that the container's log has not taken."""
        super().__init__(logging.INFO)
        self._lines: deque[PassedLine] = deque()
        self._left_out = 0
        self.dropped = dropped

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == _OWN or record.name.startswith(f"{_OWN}."):
            return
        if len(self._lines) >= LINES_AT_ONCE:
            self._left_out += 1
            return
        try:
            line = self._line(record)
        except Exception:
            return  # arguments that do not fit the text: the handler of the log says so, and nothing is raised
        self._lines.append(line)

    def _line(self, record: logging.LogRecord) -> PassedLine:
        work = work_now()
        message = without_secrets(record.getMessage())[:LINE_CHARACTERS]
        if record.exc_info and record.exc_info[0] is not None:
            trace = logging.Formatter().formatException(record.exc_info)
            message = f"{message}\n{without_secrets(trace)[-TRACEBACK_CHARACTERS:]}"
        text = message.encode(errors="backslashreplace").decode()
        return PassedLine(record.levelno, text, work.epoch, work.batch, work.task)

    def take(self) -> tuple[list[PassedLine], int]:
        """The lines since the last call, and how many were left out."""
        self.acquire()  # as `handle` does around `emit`
        try:
            found, left_out = list(self._lines), self._left_out
            self._lines.clear()
            self._left_out = 0
        finally:
            self.release()
        return found, left_out


class PrintedText(io.TextIOBase):
    """A standard output whose lines become lines of the log. Thread-safe: each thread has its own begun line.

    The lines go to the handlers and not through `logging`: a handler of the application may itself print, and its
    levels are not meant for what it prints.
    """

    def __init__(self, level: int, buffer: Any, handlers: Sequence[logging.Handler]) -> None:
        """`buffer` takes bytes, which go into the log as they are."""
        self.buffer = buffer
        self._level = level
        self._handlers = handlers
        self._begun = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def write(self, text: str) -> int:
        lines = (getattr(self._begun, "text", "") + text).split("\n")
        rest = lines.pop()
        if len(rest) > LINE_CHARACTERS:
            lines.append(rest)
            rest = ""
        self._begun.text = rest
        for line in lines:
            record = logging.LogRecord(PRINTED, self._level, "", 0, "%s", (line,), None)
            for handler in self._handlers:
                handler.handle(record)
        return len(text)
