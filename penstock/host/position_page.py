"""The page of a process: where each of its tasks is, for those who ask why the process ended.

The page is a small file that is written before and after each piece of messages. What is written survives the process,
whichever way it ends, because the kernel has it. Where nothing can be written, as on a full disk, nothing is known.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import orjson

Doing: TypeAlias = Literal["piece", "message", "step"]
_DOING: Final[tuple[Doing, ...]] = ("piece", "message", "step")
_HEAD_BYTES = 4096
_SLOT_BYTES = 256
_FORM = struct.Struct("<12qd")
_TEXT_BYTES = _SLOT_BYTES - 1 - 4 - 2 - _FORM.size
_SLOTS = 1 << 14
"""More tasks and stages have no process that could hold them."""
_SUFFIX = ".page"
KEPT_PAGES = 20
TIMER = -1_000_000
"""The way of a firing, which no message leads to."""


@dataclass(frozen=True, slots=True)
class MessageId:
    """One message on its way: the same in every run of the job that reads it again."""

    stage: int
    task: int
    way: int
    """The channel by which it comes to the stage; `-1 - n`: it is of the application's input n; TIMER: a firing."""
    origin: int
    """The code of the input's partition that it was made from (`origin_code`)."""
    offset: int
    mark: int
    """Tells messages of one offset apart: a number where their order is always the same, else a digest."""


@dataclass(frozen=True, slots=True)
class Span:
    """The input messages that some messages were made from: bounds of the codes of their partitions, and of their
    offsets."""

    first_origin: int
    last_origin: int
    first_offset: int
    last_offset: int

    def holds(self, origin: int, offset: int) -> bool:
        return self.first_origin <= origin <= self.last_origin and self.first_offset <= offset <= self.last_offset

    def meets(self, other: Span) -> bool:
        """True if a message may be in both."""
        return (
            self.first_origin <= other.last_origin
            and other.first_origin <= self.last_origin
            and self.first_offset <= other.last_offset
            and other.first_offset <= self.last_offset
        )


@dataclass(frozen=True, slots=True)
class Spot:
    """The work of an attempt when its process ended."""

    doing: Doing
    epoch: int
    """-1 if the process has only one, or does not know it."""
    batch: int
    run: int
    stage: int
    task: int
    span: Span
    message: MessageId | None
    """The message or firing that was processed; None for more than one, and for other steps."""
    since: float
    """When that began, in seconds of the wall clock."""
    streams: tuple[str, ...] = ()
    """The application's inputs."""
    text: str = ""
    """A step in words."""

    def __str__(self) -> str:
        return f"{self._what} in task {self.task}, stage {self.stage}"

    @property
    def _what(self) -> str:
        span = self.span
        if self.doing == "step":
            return self.text or "a step without a message"
        if span.first_origin < 0:
            return self.text or "a firing, or what it led to"
        index, partition = span.first_origin >> 32, span.first_origin & 0xFFFFFFFF
        stream = self.streams[index] if index < len(self.streams) else f"input {index}"
        if span.first_origin != span.last_origin:
            return (
                f"one of the messages with the offsets {span.first_offset} to {span.last_offset} of several partitions"
            )
        where = f"of stream `{stream}` partition {partition}"
        if span.first_offset == span.last_offset:
            return f"offset {span.first_offset} {where}"
        return f"one of the offsets {span.first_offset} to {span.last_offset} {where}"


class PositionPage:
    """The page of this process. Slots may be used by several threads, each slot by one."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of a file for this page alone, which stays open as long as the process lives."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._streams: tuple[str, ...] | None = None
        self.epoch = -1
        """The epoch of the entries from now on."""
        self._slots: dict[tuple[int, int], PositionSlot] = {}

    @classmethod
    def create(cls, path: Path) -> PositionPage | None:
        """A new page at this path, locked until the process ends. None if there cannot be one."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:
            return None
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(descriptor)

    def slot(self, stage: int, task: int, streams: tuple[str, ...]) -> PositionSlot:
        """The place on the page for a task's attempts. `streams`: the application's inputs, for readers."""
        with self._lock:
            if streams != self._streams:
                self._streams = streams
                head = orjson.dumps(streams)
                _write(self._descriptor, (head if len(head) <= _HEAD_BYTES else b"").ljust(_HEAD_BYTES), 0)
            found = self._slots.get((stage, task))
            if found is None:
                number = len(self._slots) % _SLOTS
                found = self._slots[stage, task] = PositionSlot(
                    self._descriptor, _HEAD_BYTES + number * _SLOT_BYTES, stage, task
                )
        found.epoch = self.epoch
        return found

    def close(self) -> None:
        """Give the page up, as it is."""
        os.close(self._descriptor)

    def void(self) -> None:
        """Empty the page: the end that follows is no doing of a message."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)


class PositionSlot:
    """The place of one task and stage on a page."""

    def __init__(self, descriptor: int, offset: int, stage: int, task: int) -> None:
        self._descriptor, self._offset = descriptor, offset
        self._stage, self._task = stage, task
        self._run = (-1, -1)
        self.epoch = -1

    def begin(self, batch: int, run: int) -> None:
        """Note the run that the following belongs to."""
        self._run = (batch, run)

    def enter_piece(self, span: Span) -> None:
        self._enter(0, span, None, "")

    def enter_message(self, message: MessageId, text: str = "") -> None:
        origin, offset = message.origin, message.offset
        self._enter(1, Span(origin, origin, offset, offset), message, text)

    def enter_step(self, text: str) -> None:
        self._enter(2, _NOWHERE, None, text)

    def leave(self) -> None:
        _write(self._descriptor, b"\0", self._offset)

    def _enter(self, doing: int, span: Span, message: MessageId | None, text: str) -> None:
        way, mark = (0, 0) if message is None else (message.way, message.mark)
        numbers = _FORM.pack(
            doing, self.epoch, *self._run, self._stage, self._task, way, mark, span.first_origin, span.last_origin,
            span.first_offset, span.last_offset, time.time(),
        )  # fmt: skip
        said = text.encode(errors="backslashreplace")[:_TEXT_BYTES]
        body = numbers + len(said).to_bytes(2, "little") + said
        _write(self._descriptor, b"\1" + zlib.crc32(body).to_bytes(4, "little") + body, self._offset)


_NOWHERE = Span(-1, -1, -1, -1)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    with suppress(OSError):
        os.pwrite(descriptor, data, offset)


def read_page(path: Path) -> tuple[Spot, ...]:
    """The work of the attempts of an ended process; empty if it is not known."""
    try:
        data = path.read_bytes()
    except OSError:
        return ()
    return spots_in(data)


def spots_in(data: bytes) -> tuple[Spot, ...]:
    """The spots in the content of a page."""
    try:
        streams = orjson.loads(data[:_HEAD_BYTES].strip())
    except orjson.JSONDecodeError:
        streams = []
    known = isinstance(streams, list) and all(isinstance(each, str) for each in streams)
    return tuple(_spots(data, tuple(streams) if known else ()))


def _spots(data: bytes, streams: tuple[str, ...]) -> Iterator[Spot]:
    for at in range(_HEAD_BYTES, len(data), _SLOT_BYTES):
        slot = data[at : at + _SLOT_BYTES]
        if slot[:1] != b"\1" or len(slot) < 7 + _FORM.size:
            continue
        body = slot[5:]
        size = int.from_bytes(body[_FORM.size : _FORM.size + 2], "little")
        body = body[: _FORM.size + 2 + size]
        if zlib.crc32(body) != int.from_bytes(slot[1:5], "little"):
            continue  # it was being written
        doing, epoch, batch, run, stage, task, way, mark, *bounds, since = _FORM.unpack(body[: _FORM.size])
        if not 0 <= doing < len(_DOING):
            continue  # of another Penstock
        span = Span(*bounds)
        message = MessageId(stage, task, way, span.first_origin, span.first_offset, mark) if doing == 1 else None
        text = body[_FORM.size + 2 :].decode(errors="replace")
        yield Spot(_DOING[doing], epoch, batch, run, stage, task, span, message, since, streams, text)


_present: PositionPage | None = None


def use_page(page: PositionPage | None) -> None:
    """Make it the page of this process."""
    global _present
    _present = page


def present_page() -> PositionPage | None:
    """The page of this process; None if nobody would read it."""
    return _present


def void_page() -> None:
    """Empty the page of this process, which ends for another reason than what it processes."""
    if _present is not None:
        _present.void()


# The pages of processes that nobody has an address of: Spark's Python workers.


def worker_page(folder: Path) -> PositionPage | None:
    """A new page in a folder. Of the pages of processes that have ended, the newest `KEPT_PAGES` stay there."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        ended = [path for path in folder.glob(f"worker-*{_SUFFIX}") if not _is_held(path)]
        for path in sorted(ended, key=lambda p: p.stat().st_mtime, reverse=True)[KEPT_PAGES:]:
            path.unlink(missing_ok=True)
    return PositionPage.create(folder / f"worker-{os.getpid()}-{os.urandom(4).hex()}{_SUFFIX}")


def pages_of_ended(folder: Path) -> tuple[Spot, ...]:
    """The work of the workers that have ended."""
    found: list[Spot] = []
    with suppress(OSError):
        for path in folder.glob(f"worker-*{_SUFFIX}"):
            if not _is_held(path):
                found.extend(read_page(path))
    return tuple(found)


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except OSError:
        return True
