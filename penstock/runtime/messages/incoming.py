"""Packets that come to an attempt, in sequence from each source, complete once the trailers match.

Trailers say which attempts of a stage have ended their output, and how much each of them has sent to a task. A
trailer is for one task, and names every attempt whose output left in one stream. With a trailer for each pair of
tasks, a batch of 1,000 tasks would have a million of them.

Payloads that wait for the end of the input are in a spool: some in memory, the others in a file. Streams that are
read at the same time have threads of their own, and their items are merged.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from penstock.base.documents import decoder, decoding
from penstock.errors import RetryableError
from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import Packet, PacketKind

Place: TypeAlias = tuple[int, int]
"""A stage and a task."""
Count: TypeAlias = tuple[int, int]
"""Data packets, and the messages in them."""

_Named: TypeAlias = list[tuple[str, bool, list[int]]]
"""A token, whether its attempts failed, and their tasks. The attempts of a stream usually share their token."""
_Counts: TypeAlias = dict[int, Count]
_MARKS = 1 << 64


class EndedAttempt(NamedTuple):
    """An attempt that has ended its output."""

    task: int
    token: str
    failed: bool
    """It failed in user code: its output must not be used."""
    sent: Mapping[Place, Count]


class Trailer(NamedTuple):
    """A trailer as its task reads it."""

    tokens: Mapping[Place, str]
    """The attempts that it names."""
    sent: Mapping[Place, Count]
    """The counts of each attempt that sent something to this task."""
    failed: bool
    """One of them failed."""
    mark: int
    """See `mark_of`."""


def mark_of(stage: int, attempts: Iterable[tuple[int, str]]) -> int:
    """A number of 64 bits for some attempts (task, token) of a stage, in any order. The marks of two groups that have
    none in common add up to the mark of both together: see `add_marks`."""
    return sum(xxh3_64_intdigest(f"{stage} {task} {token}".encode()) for task, token in attempts) % _MARKS


def add_marks(one: int, other: int) -> int:
    return (one + other) % _MARKS


def trailers(topology: Topology, stage: int, tasks: int, ended: Iterable[EndedAttempt]) -> Iterator[Packet]:
    """The trailers of these attempts of a stage, for every task that they may send to."""
    ended = list(ended)
    everyone = _encode(ended)
    counts: dict[Place, _Counts] = {}
    for each in ended:
        for place, count in each.sent.items():
            counts.setdefault(place, {})[each.task] = count
    for target in topology.targets_of(stage):
        if topology.is_shuffled(target):
            named = [(dest, everyone) for dest in range(tasks)]
        else:
            named = [(each.task, _encode([each])) for each in ended]
        for dest, names in named:
            sent = msgspec.msgpack.encode(counts.get((target, dest), {}))
            yield Packet(dest, target, PacketKind.TRAILER, stage, -1, "", -1, -1, 0, 0, names, sent)


def read_trailer(packet: Packet) -> Trailer:
    """Raises CorruptError if it is damaged."""
    stage = packet.source_stage
    tokens, failed, mark = _decode(stage, bytes(packet.payload or b""))
    with decoding("the counts of a trailer are damaged"):
        counts = decoder(_Counts).decode(packet.places or b"")
    return Trailer(tokens, {(stage, task): count for task, count in counts.items()}, failed, mark)


def _encode(ended: Iterable[EndedAttempt]) -> bytes:
    named: dict[tuple[str, bool], list[int]] = {}
    for each in ended:
        named.setdefault((each.token, each.failed), []).append(each.task)
    return msgspec.msgpack.encode([(*name, tasks) for name, tasks in named.items()])


@lru_cache(maxsize=64)  # the trailers of a lane name the same attempts, and tasks read them in turn
def _decode(stage: int, names: bytes) -> tuple[Mapping[Place, str], bool, int]:
    with decoding("the names in a trailer are damaged"):
        named = decoder(_Named).decode(names)
    tokens = {(stage, task): token for token, _, tasks in named for task in tasks}
    mark = mark_of(stage, ((task, token) for (_, task), token in tokens.items()))
    return tokens, any(failed for _, failed, _ in named), mark


class DiscardedAttemptError(RetryableError):
    """The attempt's input was incomplete or came from two attempts. It is dropped; Spark or the run loop tries
    again."""


class Sources:
    """The packets that an attempt has received. Puts those of each source in sequence, and checks the trailers."""

    def __init__(self, expected: frozenset[Place]) -> None:
        self._expected = expected
        self._tokens: dict[Place, str] = {}
        self._next: dict[Place, int] = {}
        self._waiting: dict[Place, dict[int, Packet]] = {}
        self._messages: dict[Place, int] = {}
        self._ended: set[Place] = set()
        """The sources that a trailer has named."""
        self._sent: dict[Place, Count] = {}
        """As the trailers say."""
        self._marks: dict[int, int] = {}
        self.failed = False

    def accept(self, packet: Packet) -> Iterator[Packet]:
        """Take a packet; yields the data packets that are next in their source's sequence."""
        if packet.kind == PacketKind.TRAILER:
            self._end(packet)
            return
        source = (packet.source_stage, packet.source_task)
        if source not in self._expected:
            raise DiscardedAttemptError(f"rows came from {_name(source)}, which does not send here")
        self._check_token(source, self._tokens.setdefault(source, packet.token), packet.token)
        waiting = self._waiting.setdefault(source, {})
        if packet.seq in waiting or packet.seq < self._next.get(source, 0):
            raise DiscardedAttemptError(f"packet {packet.seq} came twice from {_name(source)}")
        waiting[packet.seq] = packet
        while (ready := waiting.pop(self._next.get(source, 0), None)) is not None:
            self._next[source] = ready.seq + 1
            self._messages[source] = self._messages.get(source, 0) + ready.messages
            yield ready

    def _end(self, packet: Packet) -> None:
        trailer = read_trailer(packet)
        sources = trailer.tokens.keys()
        if foreign := sources - self._expected:
            raise DiscardedAttemptError(f"a trailer came from {_name(min(foreign))}, which does not send here")
        if twice := sources & self._ended:
            raise DiscardedAttemptError(f"a second trailer came from {_name(min(twice))}")
        for source in sources & self._tokens.keys():
            self._check_token(source, self._tokens[source], trailer.tokens[source])
        self._tokens.update(trailer.tokens)
        self._ended.update(sources)
        self._sent.update(trailer.sent)
        stage = packet.source_stage
        self._marks[stage] = add_marks(self._marks.get(stage, 0), trailer.mark)
        self.failed = self.failed or trailer.failed

    @staticmethod
    def _check_token(source: Place, known: str, token: str) -> None:
        if known != token:
            raise DiscardedAttemptError(f"rows of two attempts of {_name(source)} came: {known} and {token}")

    def check_complete(self) -> None:
        """Raise DiscardedAttemptError unless everything from every source has come."""
        missing = self._expected - self._ended
        if missing:
            raise DiscardedAttemptError(
                f"the rows ended without the trailer of {', '.join(_name(s) for s in sorted(missing))}"
            )
        if self.failed:
            return
        for source in self._sent.keys() | self._waiting.keys():
            sent = self._sent.get(source, (0, 0))
            got = (self._next.get(source, 0), self._messages.get(source, 0))
            if self._waiting.get(source) or got != sent:
                raise DiscardedAttemptError(
                    f"{_name(source)} sent {sent[0]} packets with {sent[1]} messages, but "
                    f"{got[0]} packets with {got[1]} messages came"
                )

    def marks(self) -> Mapping[int, int]:
        """By source stage, the mark of the attempts that ended (`mark_of`)."""
        return self._marks


def _name(source: Place) -> str:
    return f"stage {source[0]} task {source[1]}"


MEMORY_BYTES = 64 << 20


class _FilePart(NamedTuple):
    """The place of a payload in the file."""

    start: int
    size: int


class SpoolLevel(NamedTuple):
    """The fill level of a spool."""

    left: int
    """Bytes that still fit into memory."""
    end: int


SpooledPayload: TypeAlias = bytes | pa.Buffer | _FilePart
"""The handle that `Spool.put` returns."""


class Spool:
    """Holds payloads: the first ones in memory, up to `memory_bytes`, the others in a temporary file without a name.

    Used by one thread. The file goes with the process, if it is not closed before.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, folder: str | None = None) -> None:
        """`folder`: for the file; by default Spark's scratch folder on this host."""
        self._left = memory_bytes
        self._folder = folder or _folder()
        self._file: BinaryIO | None = None
        self._end = 0

    def put(self, payload: bytes | pa.Buffer) -> SpooledPayload:
        """Keep a payload. Raises RetryableError if the disk is full or failing."""
        size = len(payload)
        if size <= self._left:
            self._left -= size
            return payload
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - it stays open
            rest = memoryview(payload)
            while rest:
                rest = rest[os.pwrite(self._file.fileno(), rest, self._end + size - len(rest)) :]
        except OSError as error:
            what = f"messages that wait for an output cannot be kept in {self._folder}"
            raise RetryableError(f"{what}: {error}") from error
        place = _FilePart(self._end, size)
        self._end += size
        return place

    def get(self, spooled: SpooledPayload) -> bytes | pa.Buffer:
        """A payload that was put. May be called again for it. Raises RetryableError if the disk fails."""
        if not isinstance(spooled, _FilePart):
            return spooled
        if self._file is None:
            raise ValueError("the spool is closed")
        try:
            data = os.pread(self._file.fileno(), spooled.size, spooled.start)
        except OSError as error:
            raise RetryableError(f"messages that wait for an output cannot be read again: {error}") from error
        if len(data) < spooled.size:
            raise RetryableError(f"of {spooled.size} bytes that wait for an output, {len(data)} are left")
        return data

    def level(self) -> SpoolLevel:
        return SpoolLevel(self._left, self._end)

    def level_with(self, level: SpoolLevel, spooled: SpooledPayload) -> SpoolLevel:
        if isinstance(spooled, _FilePart):
            return SpoolLevel(level.left, max(level.end, spooled.start + spooled.size))
        return SpoolLevel(level.left - len(spooled), level.end)

    def cut(self, level: SpoolLevel) -> None:
        self._left, self._end = level

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _folder() -> str:
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return folders[0] if os.path.isdir(folders[0]) else tempfile.gettempdir()


T = TypeVar("T")

IDLE_SECONDS = 1.0
CAPACITY = 4
"""Items that may wait. Batches of packets are some megabytes each."""


def run_together(*sources: Iterator[T], when_idle: Callable[[], T | None]) -> Generator[T, None, None]:
    """Yield the items of all sources. Each source runs in its own thread.

    At most `CAPACITY` items wait to be taken; a source that has another one waits as well. Whenever nothing came for
    `IDLE_SECONDS`, `when_idle` is asked for an item; None means no item. The first error of a source is raised. Once
    this generator ends or is closed, each source is closed in its thread when it yields next.
    """
    channel: _Channel[T] = _Channel()
    for source in sources:
        threading.Thread(target=_run, args=(source, channel), name="stream", daemon=True).start()
    left = len(sources)
    try:
        while left:
            item = channel.get(IDLE_SECONDS)
            match item:
                case None:
                    sign = when_idle()
                    if sign is not None:
                        yield sign
                case _End(error):
                    if error is not None:
                        raise error
                    left -= 1
                case _Item(value):
                    yield value
    finally:
        channel.close()


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a source, with an error or without."""

    error: BaseException | None


class _Channel(Generic[T]):
    """A bounded queue whose reader may leave."""

    def __init__(self) -> None:
        self._items: deque[_Item[T] | _End] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: _Item[T] | _End) -> bool:
        """Wait for room; False if the reader has left."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < CAPACITY)
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self, timeout_s: float) -> _Item[T] | _End | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout_s):
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def _run(source: Iterator[T], channel: _Channel[T]) -> None:
    try:
        for value in source:
            if not channel.put(_Item(value)):
                break
        if isinstance(source, Generator):
            source.close()  # releases what it holds, if it was left before its end
    except BaseException as error:
        channel.put(_End(error))
    else:
        channel.put(_End(None))
