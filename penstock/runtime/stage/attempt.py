"""One execution of (batch, stage, task): it takes its whole input, and sends its own packets.

Stage 0 reads inputs (`InputAttempt`), later stages take packets (`PacketAttempt`). An attempt that takes packets is
finished only when trailers have named every source that it expects, each once, with the right counts. An end of stream
without them is a discarded attempt, however clean it looked.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np

from penstock.api.messages import pack_headers
from penstock.arrays.given import ArrowSequence
from penstock.batch.batch import Batch, Due
from penstock.batch.portions import Portion, PortionRead
from penstock.runtime.context import MessagePage, OperatorFailedError, ReceivedPage
from penstock.runtime.messages.columns import Raw
from penstock.runtime.messages.entry import StageEntry
from penstock.runtime.messages.incoming import Sources
from penstock.runtime.messages.packet import Packet, PacketKind, decode_columns, decode_messages, origin_code
from penstock.runtime.messages.router import JointOutput, finish_output
from penstock.runtime.messages.stored import encode_dead_letter, read_user_messages
from penstock.runtime.meters import HotKeys
from penstock.runtime.operators.base import Partial, Step
from penstock.runtime.reports import Report
from penstock.runtime.stage.failures import AttemptFailures, MessageWatch, slot_for, watch_for
from penstock.runtime.stage.firings import AttemptPace, FiringRuns
from penstock.runtime.stage.instance import StageInstance
from penstock.state.engines.engine import EngineFailedError, deletes_in
from penstock.system.base import ColumnChunk, RawMessage, headers_in

_Run: TypeAlias = Callable[[StageEntry, Raw, Raw, int], None]


def new_token() -> str:
    return secrets.token_hex(8)


class Attempt(ABC):
    """Runs a stage instance over its input, once. A kind of attempt says what the input consists of."""

    def __init__(self, instance: StageInstance, token: str, batch: Batch) -> None:
        self.instance = instance
        self.batch = batch
        self.token = token
        self._messages = 0
        self._next_due: dict[str, Due] = {}
        self._started = False
        self._slot = slot_for(instance, batch)
        self._watch = watch_for(instance, batch)
        self._failures = AttemptFailures(instance)
        self._pace = AttemptPace()
        self._firings = FiringRuns(instance, self._failures, self._pace, self._slot, self._watch)
        self._run_some: _Run = self._run_undoable if self._failures.buries else self._run_plain
        instance.begin(token, batch)

    @property
    def stage(self) -> int:
        return self.instance.stage

    @property
    def task(self) -> int:
        return self.instance.task

    @property
    def step(self) -> Step | None:
        """The step without a message that runs now; None while messages are processed. May be read by any thread."""
        return self.instance.step

    def progress(self) -> object:
        """A value that changes whenever another message has been processed. May be called by any thread."""
        return self.instance.position.progress()

    def describe(self) -> str:
        """The current message or step in words. May be called by any thread."""
        step = self.step
        return self.instance.position.describe() if step is None else str(step)

    @property
    def failed(self) -> bool:
        """True if user code failed here or in a source, or a store failed: its writes must not be applied."""
        return self._failures.end_work

    @property
    def processed(self) -> int:
        """Messages and firings so far. May be read by any thread."""
        return self._messages + self._firings.count

    @property
    def process_ns(self) -> int:
        """The time that messages took so far. May be read by any thread."""
        return self._pace.process_ns

    @property
    def operator(self) -> str:
        """The operator that is busy now, by its id; empty if none is. May be read by any thread."""
        return self.instance.clock.current

    # The end.

    def finish(self, together: JointOutput | None = None) -> Iterator[Packet]:
        """The rest of the output, the trailers unless it ends together with others, and the report.

        Args:
            together: the attempts of this stage, which end one after the other, that this one belongs to. They have
                their trailers in common, which are not among these packets (`JointOutput.end`).
        """
        yield from self._start_input()
        if not self.failed:
            yield from self._firings.run(self.instance.on_end_of_input(self.batch))
        for end in (self.instance.reclaim, self._find_next_due, self._failures.check_stores):
            if not self.failed:
                self._run_without_message(end)
        yield from finish_output(self.instance.router, together, failed=self.failed)
        yield self.report().packet()

    def _find_next_due(self) -> None:
        self._next_due = self.instance.next_due()

    def _run_without_message(self, run: Callable[[], None]) -> None:
        try:
            run()
        except (OperatorFailedError, EngineFailedError) as failure:
            self._failures.note_without_message(failure)

    @abstractmethod
    def report(self) -> Report:
        """The report of what it has done so far."""

    def _report(self) -> Report:
        """The part of the report that every kind of input has."""
        instance, failures = self.instance, self._failures
        instance.clock.take(instance.operator_metrics)
        return Report(
            stage=instance.stage,
            task=instance.task,
            token=self.token,
            read={},
            messages=self._messages,
            dead_letters=failures.dead_letters,
            dead_letter=failures.first_dead_letter,
            commit=instance.requests.commit_requested,
            shutdown=instance.requests.shutdown_requested,
            failed=failures.message,
            error=failures.error,
            next_due=self._next_due,
            process_ns=self.process_ns,
            changed={
                store: (len(overlay.net), deletes_in(overlay.net))
                for store, overlay in instance.overlays.items()
                if overlay.net
            },
            metrics=[*instance.metrics.take().rows(), *instance.operator_metrics.take().rows()],
        )

    # Messages.

    def _start_input(self) -> Iterator[Packet]:
        """Run what fires before the first message, once."""
        if not self._started:
            self._started = True
            if not self.failed:
                yield from self._firings.run(self.instance.on_start_of_input(self.batch))

    def _run(self, entry: StageEntry, keys: Raw, values: Raw, page: MessagePage, way: int) -> Iterator[Packet]:
        """Process a page of messages; yields packets that are ready to be sent on. A failed message ends the attempt's
        work, or goes to the dead-letter stream. `way`: see `MessageId`."""
        self.instance.position.page = page
        router, pace, first = self.instance.router, self._pace, 0
        while first < len(keys) and not self.failed:
            end = min(len(keys), first + pace.of(by_column=entry.by_column))
            began = perf_counter_ns()
            self._run_piece(entry, keys[first:end], values[first:end], first, way)
            pace.process_ns += perf_counter_ns() - began
            pace.sent(router.count_bytes())
            if not self.failed:
                yield from router.take_ready(page)
            first = end
        router.end_page(page)

    def _run_piece(self, entry: StageEntry, keys: Raw, values: Raw, first: int, way: int) -> None:
        run, slot, watch = self._run_some, self._slot, self._watch
        page, end = self.instance.position.page, first + len(keys)
        if watch is not None and watch.suspects(page, first, end):
            self._run_watched(watch, way, entry, keys, values, first)
        elif slot is None:
            run(entry, keys, values, first)
        else:
            slot.enter_piece(page.span(first, end))
            try:
                run(entry, keys, values, first)
            finally:
                slot.leave()

    def _run_plain(self, entry: StageEntry, keys: Raw, values: Raw, first: int) -> None:
        try:
            entry.run(keys, values, first)
        except (OperatorFailedError, EngineFailedError) as failure:
            if self._failures.is_applications(failure):
                self._failures.note(failure, keys[self.instance.position.row - first], entry.source)
        else:
            self._messages += len(keys)

    def _run_undoable(self, entry: StageEntry, keys: Raw, values: Raw, first: int) -> None:
        """Undo what fails, and bury its message."""
        position = self.instance.position

        def run(begin: int, end: int) -> None:
            position.row = first + begin
            entry.run(keys[begin:end], values[begin:end], first + begin)

        def bury(failure: OperatorFailedError, number: int) -> None:
            self._bury(entry, failure, keys[number], values[number : number + 1], first + number)

        if self._failures.run_undoable(len(keys), run, bury):
            self._messages += len(keys)

    def _run_watched(
        self, watch: MessageWatch, way: int, entry: StageEntry, keys: Raw, values: Raw, first: int
    ) -> None:
        """Process one message after the other, each of them named on the page. Those that must not be processed are
        buried."""
        slot, page = self._slot, self.instance.position.page
        for number in range(len(keys)):
            if self.failed:
                return
            key, value, row = keys[number : number + 1], values[number : number + 1], first + number
            message = watch.message(way, page, row, key[0], partial(entry.value_bytes, value))
            if (failure := watch.failure(message, entry.source)) is not None:
                self.instance.position.row = row
                self._bury(entry, failure, key[0], value, row)
                self._messages += 1
                continue
            if slot is not None:
                slot.enter_message(message)
            try:
                self._run_some(entry, key, value, row)
            finally:
                if slot is not None:
                    slot.leave()

    def _bury(self, entry: StageEntry, failure: OperatorFailedError, key: bytes | None, value: Raw, row: int) -> None:
        page, identities = self.instance.position.page, self.instance.settings.identities
        failed = failure.describe(page.ssp(row), page.offsets[row], key, sender=entry.source)
        letter = encode_dead_letter(
            failed,
            key,
            entry.value_bytes(value),
            repartitioned=isinstance(page, ReceivedPage),
            identity=identities.get(failed.stream),
            headers=page.headers(row),
        )
        self._failures.bury(failed, key, letter)


class InputAttempt(Attempt):
    """An attempt of stage 0. It reads the portions of one task."""

    def __init__(self, instance: StageInstance, token: str, batch: Batch) -> None:
        super().__init__(instance, token, batch)
        self._read: dict[int, PortionRead] = {}
        """By origin code of a partition."""

    def accept(
        self, input_index: int, partition: int, messages: Sequence[RawMessage] | ColumnChunk
    ) -> Iterator[Packet]:
        """Process messages of an input's partition; yields packets that are ready to be sent on."""
        yield from self._start_input()
        if self.failed or not len(messages):
            return
        if isinstance(messages, ColumnChunk):
            yield from self._accept_columns(input_index, partition, messages)
        else:
            yield from self._accept_rows(input_index, partition, messages)

    def _accept_rows(self, input_index: int, partition: int, messages: Sequence[RawMessage]) -> Iterator[Packet]:
        offsets, timestamps, keys, values, packed = _columns(messages)
        size = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
        origin = origin_code(input_index, partition)
        self._count(origin, offsets[-1], len(messages), size)
        if input_index >= self.instance.first_intermediate:
            messages, foreign = read_user_messages(list(messages))
            if foreign:
                read = self._read[origin]
                self._read[origin] = replace(read, foreign=read.foreign + foreign)
            if not messages:
                return
            offsets, timestamps, keys, values, packed = _columns(messages)
        origins, entry = [origin] * len(messages), self.instance.input_entries[input_index]
        times = list(timestamps) if entry.gives_times else timestamps
        page = MessagePage(self.instance.ssps, times, origins, offsets, packed)
        try:
            yield from self._run(entry, keys, values, page, -1 - input_index)
            self._note_times(origin, page)
        except (TypeError, ValueError, OverflowError) as error:
            if (reported := page.without_time()) is not None:
                raise reported from error
            raise

    def _accept_columns(self, input_index: int, partition: int, messages: ColumnChunk) -> Iterator[Packet]:
        origin, count = origin_code(input_index, partition), len(messages)
        self._count(origin, int(messages.offsets[-1]), count, messages.keys.nbytes + messages.values.nbytes)
        entry = self.instance.input_entries[input_index]
        page = ReceivedPage(self.instance.ssps, messages.timestamps, np.full(count, origin, np.int64), messages.offsets)
        keys, values = ArrowSequence(messages.keys), ArrowSequence(messages.values)
        yield from self._run(entry, keys, values, page, -1 - input_index)
        self._note_times(origin, page)

    def _count(self, origin: int, last_offset: int, count: int, size: int) -> None:
        before = self._read.get(origin, PortionRead(0))
        self._read[origin] = replace(
            before, next_offset=last_offset + 1, messages=before.messages + count, bytes=before.bytes + size
        )

    def _note_times(self, origin: int, page: MessagePage) -> None:
        if (ahead_ms := self.instance.settings.max_ahead_ms) is not None and not self.failed:
            highest = page.highest_time(self.batch.time_ms + ahead_ms)
            self._read[origin] = self._read[origin].with_times(*highest)

    def end_portion(self, input_index: int, portion: Portion) -> None:
        """Called once the whole portion has come. If it had fewer messages than allowed, nothing more is in its
        range."""
        self.instance.router.end_input()
        origin = origin_code(input_index, portion.offsets.ssp.partition)
        read = self._read.get(origin, PortionRead(portion.offsets.start))
        if read.messages < portion.messages:
            self._read[origin] = replace(read, next_offset=portion.offsets.end)

    def report(self) -> Report:
        return replace(self._report(), inputs=self._read)


class PacketAttempt(Attempt):
    """An attempt of a later stage. Its input is the packets of the stages before."""

    def __init__(self, instance: StageInstance, token: str, tasks: int, batch: Batch) -> None:
        super().__init__(instance, token, batch)
        self._sources = Sources(instance.topology.expected_sources(instance.stage, instance.task, tasks))
        self.hot_keys: HotKeys | None = None
        """Sees the keys of the messages."""

    @property
    def failed(self) -> bool:
        return self._sources.failed or super().failed

    def accept(self, packet: Packet) -> Iterator[Packet]:
        """Process a packet; yields packets that are ready to be sent on. Raises DiscardedAttemptError."""
        yield from self._start_input()
        for ready in self._sources.accept(packet):
            if not self.failed and ready.kind == PacketKind.PARTIAL:
                self._merge(ready)
            elif not self.failed and ready.payload is not None:
                entry = self.instance.channel_entries[ready.channel]
                received = decode_columns(ready, entry.value_serde)
                keys, values = entry.received(received.keys, received.values)
                if self.hot_keys is not None:
                    self.hot_keys.look(keys)
                times, origins, offsets = received.places
                page = ReceivedPage(self.instance.ssps, times, origins, offsets, received.packed_headers)
                yield from self._run(entry, keys, values, page, ready.channel)

    def _merge(self, packet: Packet) -> None:
        """Add the states of a packet to those of the operator that they are of."""
        partial_states = Partial(*decode_messages(packet.payload or b"").columns[:3])
        began = perf_counter_ns()
        self._run_without_message(partial(self.instance.partial_entries[packet.channel], partial_states))
        self._pace.process_ns += perf_counter_ns() - began
        self._messages += packet.messages

    def finish(self, together: JointOutput | None = None) -> Iterator[Packet]:
        """See `Attempt.finish`. Raises DiscardedAttemptError unless all packets have come."""
        self._sources.check_complete()
        yield from super().finish(together)

    def report(self) -> Report:
        return replace(self._report(), read=self._sources.marks(), upstream_failed=self._sources.failed)


def _columns(messages: Sequence[RawMessage]) -> tuple[Any, Any, Any, Any, dict[int, bytes] | None]:
    """The offsets, timestamps, keys and values, and by row the packed headers of the messages that have some."""
    widths = set(map(len, messages))
    if widths == {4}:
        return *zip(*messages, strict=True), None  # type: ignore[return-value]
    packed = {row: pack_headers(own) for row, message in enumerate(messages) if (own := headers_in(message))}
    return *zip(*(message[:4] for message in messages), strict=True), packed
