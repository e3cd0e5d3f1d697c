"""Puts dead letters back to the input that they came from, as `penstock stream replay`."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field

from penstock.admin.stream.found import (
    FoundStream,
    audited_stream,
    closed_to_others,
    no_stream,
    open_stream,
    refuse_shadow,
)
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.errors import ConfigError, CorruptError, NotFoundError
from penstock.runtime.messages.stored import DeadLetter, decode_dead_letter
from penstock.system.base import OffsetRange, Progress, RawMessage, RawRecord, SystemWriter, WriterIdentity
from penstock.system.contract.messages import unreadable_row

_CHUNK = 1000
_SHOWN = 10
_CORRECT = "correct it in another file, which the job reads as any other"


@dataclass(frozen=True, slots=True)
class ReplayedLetters:
    """The result of `replay`."""

    messages: Mapping[str, int]
    """Messages that were put back, by stream."""
    earlier: int
    """Letters that an earlier replay handled: it put them back, or reported that it could not."""
    repeated: int
    """Further letters of a message that was put back."""
    refused: int
    """Letters that cannot be put back."""
    reasons: tuple[str, ...]
    """Reasons for the first of the refused letters."""
    unmarked: tuple[str, ...]
    """Streams whose systems keep no progress: another replay puts their messages back again."""


def replay(dead: FoundStream, to: FoundStream | None = None) -> ReplayedLetters:
    """Put the messages of all dead letters back to the partitions that they came from, behind what is there.

    A message has the key, the value and the partition that it had, and its event time as the timestamp. If it failed
    behind a `partition_by`, it is read again from its input. Each input message is put back once, however many letters
    it has. In the same step, the input keeps how far this is: a replay that ends early, or is run again, continues.

    Args:
        dead: the dead-letter stream.
        to: the stream to put them into; None for the input that each came from.

    Raises:
        NotFoundError: a stream does not exist.
        ConfigError: `to` is written by a job alone, or the configuration is that of a shadow.
        FencedError: another replay of the same letters has begun.
        PenstockError: a system failed. What was put back is kept.

    Example:
        >>> _ = admin.create_stream(admin.open_stream("dead"), 1)
        >>> admin.replay(admin.open_stream("dead")).messages
        {}
    """
    refuse_shadow(dead.system)
    with ExitStack() as stack:
        return _Replay(dead, to, stack).run()


class _RefusedError(Exception):
    """A letter cannot be put back. Its text says why."""


@dataclass
class _Counts:
    messages: Counter[str] = field(default_factory=Counter)
    earlier: int = 0
    repeated: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)


class _Replay:
    def __init__(self, dead: FoundStream, to: FoundStream | None, stack: ExitStack) -> None:
        self._dead, self._to, self._stack = dead, to, stack
        self._counts = _Counts()
        self._inputs: dict[SystemStream, _Input] = {}
        self._epoch = SYSTEM_CLOCK.now_ms()
        self._known = stack.enter_context(closing(sqlite3.connect("")))  # in a temporary file, beyond some memory
        self._known.execute(
            "CREATE TABLE places (stream TEXT, partition INT, at INT, PRIMARY KEY (stream, partition, at))"
        )

    def run(self) -> ReplayedLetters:
        admin = self._stack.enter_context(closing(self._dead.system.admin()))
        reader = self._stack.enter_context(closing(self._dead.system.reader()))
        if self._to is not None and (reason := self._input(self._to.stream).closed) is not None:
            raise ConfigError(reason)
        try:
            ends, identity = admin.offsets(self._dead.stream.stream), admin.stream_identity(self._dead.stream.stream)
        except NotFoundError:
            raise no_stream(self._dead.stream) from None
        parts = []
        for partition, end in ends.items():
            ssp = SystemStreamPartition(self._dead.stream.system, self._dead.stream.stream, partition)
            writers = _Writers(f"replay-{ssp}-{identity or ''}", self._epoch, self._stack)
            parts.append((OffsetRange(ssp, end.oldest, end.upcoming), writers))
        for offsets, writers in parts:
            for letters in reader.read(offsets, _CHUNK):
                self._learn(letters, writers)
        counts, inputs = self._counts, self._inputs
        targets = [each.found for each in inputs.values()]
        with audited_stream(targets, "stream replay", {"dead letters": str(self._dead.stream)}) as changes:
            for offsets, writers in parts:
                for letters in reader.read(offsets, _CHUNK):
                    self._put_back(offsets.ssp, letters, writers)
            changes |= {f"messages of {name}": f"{count} put back" for name, count in counts.messages.items()}
        unmarked = [str(name) for name, each in inputs.items() if not each.marks and str(name) in counts.messages]
        reasons = tuple(counts.reasons)
        return ReplayedLetters(
            dict(counts.messages), counts.earlier, counts.repeated, counts.refused, reasons, tuple(sorted(unmarked))
        )

    def _learn(self, letters: list[RawMessage], writers: _Writers) -> None:
        """Note the messages that an earlier replay handled: another letter of the same message may follow, in any
        partition."""
        for offset, _, _, data, *_ in letters:
            with suppress(_RefusedError, CorruptError):
                letter = decode_dead_letter(data)
                if offset <= writers.marked(*self._target(letter)):
                    self._is_new(letter)

    def _put_back(self, dead: SystemStreamPartition, letters: list[RawMessage], writers: _Writers) -> None:
        """Put back the messages of some letters, those for a partition in one atomic step with the mark."""
        records: dict[_Input, dict[SystemStreamPartition, list[RawRecord]]] = defaultdict(lambda: defaultdict(list))
        marks: dict[SystemStreamPartition, Progress] = {}
        for offset, timestamp, _, data, *_ in letters:
            try:
                letter = decode_dead_letter(data)
                source, target = self._target(letter)
                if offset <= writers.marked(source, target):
                    self._counts.earlier += 1
                    continue
                record = self._record(letter, timestamp)
            except (_RefusedError, CorruptError) as error:
                self._counts.refused += 1
                if len(self._counts.reasons) < _SHOWN:
                    self._counts.reasons.append(f"`{dead}` offset {offset}: {error}")
                continue
            if self._is_new(letter):
                records[source][target].append(record)
                marks[target] = Progress(offset, 0)
            else:
                self._counts.repeated += 1
        for source, parts in records.items():
            with writers.of(source).begin() as transaction:
                for target, own in parts.items():
                    transaction.append(target, own)
                    if source.marks:
                        transaction.mark(target, marks[target])
            self._counts.messages[str(source.found.stream)] += sum(map(len, parts.values()))

    def _target(self, letter: DeadLetter) -> tuple[_Input, SystemStreamPartition]:
        if letter.offset < 0:
            raise _RefusedError(
                f"no input message led to it: operator `{letter.operator}` failed at a timer, a window or the end of "
                "input, or for a message that was made there"
            )
        source = self._input(letter.ssp.system_stream if self._to is None else self._to.stream)
        if source.closed is not None:
            raise _RefusedError(source.closed)
        stream = source.found.stream
        if letter.ssp.partition >= source.partitions:
            raise _RefusedError(f"`{stream}` has no partition {letter.ssp.partition}")
        return source, SystemStreamPartition(stream.system, stream.stream, letter.ssp.partition)

    def _is_new(self, letter: DeadLetter) -> bool:
        place = (f"{letter.ssp.system_stream} {letter.identity}", letter.ssp.partition, letter.offset)
        return self._known.execute("INSERT OR IGNORE INTO places VALUES (?, ?, ?)", place).rowcount > 0

    def _record(self, letter: DeadLetter, timestamp: int) -> RawRecord:
        if letter.unreadable:
            raise _RefusedError(f"the row at offset {letter.offset} of `{letter.ssp}` could not be read: {_CORRECT}")
        if not letter.repartitioned:
            record = (timestamp, letter.key, letter.value)
            return (*record, letter.headers) if letter.headers else record
        source = self._input(letter.ssp.system_stream)
        if letter.identity not in (None, source.identity):
            raise _RefusedError(f"`{letter.ssp.system_stream}` was deleted and created again since then")
        found = source.message(letter.ssp, letter.offset)
        if found is None:
            raise _RefusedError(f"the message at offset {letter.offset} of `{letter.ssp}` is no longer there")
        if (row := unreadable_row(found[3])) is None:
            return found[1:]
        if row.data is None:
            raise _RefusedError(f"{row.reason}: {_CORRECT}")
        return (found[1], found[2], row.data)

    def _input(self, stream: SystemStream) -> _Input:
        if stream not in self._inputs:
            sources = self._dead.sources
            found = self._to if self._to is not None and self._to.stream == stream else None
            found = found or open_stream(str(stream), sources.file, sources.assignments, overrides=sources.overrides)
            self._inputs[stream] = _Input(found, self._stack)
        return self._inputs[stream]


class _Input:
    """A stream that dead letters are put back to, or came from."""

    def __init__(self, found: FoundStream, stack: ExitStack) -> None:
        self.found = found
        self.marks = found.system.keeps_progress
        self._stack = stack
        self._read: Callable[[OffsetRange, int], Iterator[list[RawMessage]]] | None = None
        with closing(found.system.admin()) as admin:
            try:
                self.partitions = admin.partition_count(found.stream.stream)
            except NotFoundError:
                raise no_stream(found.stream) from None
            self.identity = admin.stream_identity(found.stream.stream)
            self.closed = closed_to_others(found.stream, admin.owner(found.stream.stream))
        """The reason why nothing can be put into it; None if messages can."""

    def message(self, ssp: SystemStreamPartition, offset: int) -> RawMessage | None:
        """The message with this offset; None if it is gone."""
        if self._read is None:
            self._read = self._stack.enter_context(closing(self.found.system.reader())).read
        try:
            chunks = list(self._read(OffsetRange(ssp, offset, offset + 1), 1))
        except NotFoundError:
            self._read = None  # a reader is not used again after an error
            return None
        return next((message for chunk in chunks for message in chunk), None)


class _Writers:
    """The writers of one partition of dead letters, one for each system, and their earlier progress."""

    def __init__(self, name: str, epoch: int, stack: ExitStack) -> None:
        self._identity = WriterIdentity(name, epoch)
        self._stack = stack
        self._writers: dict[str, SystemWriter] = {}
        self._marked: dict[SystemStreamPartition, int] = {}

    def of(self, target: _Input) -> SystemWriter:
        system = target.found.system
        if system.name not in self._writers:
            made = system.writer(self._identity if target.marks else None)
            self._writers[system.name] = self._stack.enter_context(closing(made))
        return self._writers[system.name]

    def marked(self, target: _Input, ssp: SystemStreamPartition) -> int:
        """The offset of the last letter that an earlier replay has put back to the partition; -1 if there is none."""
        if ssp not in self._marked:
            found = self.of(target).progress([ssp]) if target.marks else {}
            self._marked[ssp] = found[ssp].slot if ssp in found else -1
        return self._marked[ssp]
