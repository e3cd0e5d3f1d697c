"""One execution of (batch, stage, task): it reads packets until it has everything, and sends its own.

An attempt is finished only when trailers have named every source that it expects, each once, with the right counts. An
end of stream without them is a discarded attempt, however clean it looked.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from penstock.api.messages.headers import pack_headers
from penstock.arrays.sequences import ArrowSequence
from penstock.batch.batch import Batch, Due
from penstock.batch.portions import Portion, PortionRead
from penstock.errors import FIRED_OFFSET, FailedMessage, PenstockTimeoutError, SystemAwayError
from penstock.runtime.context import FiredPage, OperatorFailedError, Page, ReceivedPage, blaming
from penstock.runtime.hot_keys import HotKeys
from penstock.runtime.intermediate import read_user_messages
from penstock.runtime.messages.columns import Entry, Raw
from penstock.runtime.messages.dead_letters import encode_dead_letter
from penstock.runtime.messages.outlet import FLUSH_BYTES
from penstock.runtime.messages.packet import Packet, decode_columns, fired_origin, origin_code
from penstock.runtime.messages.router import Together, finish_output
from penstock.runtime.messages.sources import Sources
from penstock.runtime.operators.base import Firing, Firings
from penstock.runtime.reports import Report, engine_error
from penstock.runtime.stage.instance import StageInstance
from penstock.runtime.stage.watch import Watch, slot_for, watch_for
from penstock.runtime.steps import Step
from penstock.state.engines.engine import EngineFailedError
from penstock.state.records import deletes_in
from penstock.system.base import ColumnChunk, RawMessage, headers_in

AT_ONCE = 1024
"""Messages decoded before they are processed: enough that the cost of a block is small for each, and few enough that
they are still in the processor's cache."""

BLOCK = 1 << 15
"""As `AT_ONCE`, of messages that stay in columns."""


_Run: TypeAlias = Callable[[Entry, Raw, Raw, int], None]


def new_token() -> str:
    return secrets.token_hex(8)


class Attempt:
    """Runs a stage instance over its input, once."""

    def __init__(self, instance: StageInstance, token: str, tasks: int, batch: Batch) -> None:
        self.instance = instance
        self.batch = batch
        self.token = token
        self._sources = Sources(instance.topology.expected_sources(instance.stage, instance.task, tasks))
        self._failure: FailedMessage | None = None
        self._error: tuple[str, str] | None = None
        self._messages = 0
        self._fired = 0
        self._inputs: dict[int, PortionRead] = {}
        self._next_due: dict[str, Due] = {}
        self._at_once = AT_ONCE
        self._dead_letters = 0
        self._dead_letter: FailedMessage | None = None
        self._process_ns = 0
        self._dead_letter_mode = instance.settings.dead_letter
        self._started = False
        self.hot_keys: HotKeys | None = None
        """Sees the keys of the messages that come from other tasks."""
        self._slot = slot_for(instance, batch)
        self._watch = watch_for(instance, batch)
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
        return self._failure is not None or self._error is not None or self._sources.failed

    @property
    def processed(self) -> int:
        """Messages and firings so far. May be read by any thread."""
        return self._messages + self._fired

    # Stage 1 and later.

    def accept(self, packet: Packet) -> Iterator[Packet]:
        """Process a packet; yields packets that are ready to be sent on. Raises DiscardedAttemptError."""
        if not self._started:
            yield from self._start_input()
        for ready in self._sources.accept(packet):
            if not self.failed and ready.payload is not None:
                entry = self.instance.channel_entries[ready.channel]
                received = decode_columns(ready, entry.value_serde)
                keys, values = entry.received(received.keys, received.values)
                if self.hot_keys is not None:
                    self.hot_keys.look(keys)
                times, origins, offsets = received.places
                page = ReceivedPage(self.instance.ssps, times, origins, offsets, received.packed_headers)
                yield from self._run(entry, keys, values, page, ready.channel)

    # Stage 0.

    def accept_input(
        self, input_index: int, partition: int, messages: Sequence[RawMessage] | ColumnChunk
    ) -> Iterator[Packet]:
        """Process messages of an input's partition; yields packets that are ready to be sent on."""
        if not self._started:
            yield from self._start_input()
        if isinstance(messages, ColumnChunk):
            if not self.failed and len(messages):
                yield from self._accept_columns(input_index, partition, messages)
        elif not self.failed and messages:
            offsets, timestamps, keys, values, packed = _columns(messages)
            size = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
            origin = origin_code(input_index, partition)
            self._count(origin, offsets[-1], len(messages), size)
            if input_index >= self.instance.first_intermediate:
                messages, foreign = read_user_messages(list(messages))
                if foreign:
                    read = self._inputs[origin]
                    self._inputs[origin] = replace(read, foreign=read.foreign + foreign)
                if not messages:
                    return
                offsets, timestamps, keys, values, packed = _columns(messages)
            origins, entry = [origin] * len(messages), self.instance.input_entries[input_index]
            times = list(timestamps) if entry.gives_times else timestamps
            page = Page(self.instance.ssps, times, origins, offsets, packed)
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
        before = self._inputs.get(origin, PortionRead(0))
        self._inputs[origin] = replace(
            before, next_offset=last_offset + 1, messages=before.messages + count, bytes=before.bytes + size
        )

    def _note_times(self, origin: int, page: Page) -> None:
        if (ahead_ms := self.instance.settings.max_ahead_ms) is not None and not self.failed:
            highest = page.highest_time(self.batch.time_ms + ahead_ms)
            self._inputs[origin] = self._inputs[origin].with_times(*highest)

    def end_input(self, input_index: int, portion: Portion) -> None:
        """Called once the whole portion has come. If it had fewer messages than allowed, nothing more is in its
        range."""
        self.instance.router.end_input()
        origin = origin_code(input_index, portion.offsets.ssp.partition)
        read = self._inputs.get(origin, PortionRead(portion.offsets.start))
        if read.messages < portion.messages:
            self._inputs[origin] = replace(read, next_offset=portion.offsets.end)

    def finish(self, together: Together | None = None) -> Iterator[Packet]:
        """The rest of the output, the trailers unless it ends together with others, and the report. Raises
        DiscardedAttemptError.

        Args:
            together: the attempts of this stage, which end one after the other, that this one belongs to. They have
                their trailers in common, which are not among these packets (`Together.end`).
        """
        self._sources.check_complete()
        if not self._started:
            yield from self._start_input()
        if not self.failed:
            yield from self._fire_all(self.instance.on_end_of_input(self.batch))
        if not self.failed:
            self._reclaim()
        if not self.failed:
            self._find_next_due()
        if not self.failed:
            self._check_stores()
        yield from finish_output(self.instance.router, together, failed=self.failed)
        yield self.report().packet()

    @property
    def process_ns(self) -> int:
        """The time that messages took so far. May be read by any thread."""
        return self._process_ns

    @property
    def operator(self) -> str:
        """The operator that is busy now, by its id; empty if none is. May be read by any thread."""
        return self.instance.clock.current

    def report(self) -> Report:
        instance = self.instance
        instance.clock.take(instance.operator_metrics)
        return Report(
            stage=instance.stage,
            task=instance.task,
            token=self.token,
            read=self._sources.marks(),
            messages=self._messages,
            inputs=self._inputs,
            dead_letters=self._dead_letters,
            dead_letter=self._dead_letter,
            commit=instance.requests.commit_requested,
            shutdown=instance.requests.shutdown_requested,
            failed=self._failure,
            error=self._error,
            upstream_failed=self._sources.failed,
            next_due=self._next_due,
            process_ns=self._process_ns,
            changed={
                store: (len(overlay.net), deletes_in(overlay.net))
                for store, overlay in instance.overlays.items()
                if overlay.net
            },
            metrics=[*instance.metrics.take().rows(), *instance.operator_metrics.take().rows()],
        )

    def _check_stores(self) -> None:
        """Check the stores once everything is processed. The failure of an engine is found here at the latest: the
        application may have caught the error, or `init` met it."""
        self._lost_store()
        for store in self.instance.stores.values():
            try:
                store.check()
            except Exception as error:
                self._fail(OperatorFailedError(f"store {store.name}", error), None)

    def _lost_store(self) -> bool:
        """True if an engine failed: an error that the application then raises is not its failure, nor a dead letter."""
        failures = [store.failure for store in self.instance.stores.values() if store.failure is not None]
        if failures:
            self._error = engine_error(failures[0], self.instance.task)
        return bool(failures)

    def _is_to_blame(self, failure: OperatorFailedError | EngineFailedError) -> TypeGuard[OperatorFailedError]:
        """True if the application failed; False if a store did, or a system is away that it needs. The batch runs again
        then, and no message is a dead letter."""
        if self._lost_store() or isinstance(failure, EngineFailedError):
            return False
        if isinstance(failure.cause, SystemAwayError):
            self._error = (SystemAwayError.__name__, str(failure.cause))
            return False
        return True

    def _run(self, entry: Entry, keys: Raw, values: Raw, page: Page, way: int) -> Iterator[Packet]:
        """Process a page of messages; yields packets that are ready to be sent on. A failed message ends the attempt's
        work, or goes to the dead-letter stream. `way`: see `MessageId`."""
        self.instance.position.page = page
        router, first = self.instance.router, 0
        clock = time.perf_counter_ns
        while first < len(keys) and not self.failed:
            end = min(len(keys), first + (max(self._at_once, BLOCK) if entry.by_column else self._at_once))
            began = clock()
            self._run_piece(entry, keys[first:end], values[first:end], first, way)
            self._process_ns += clock() - began
            self._at_once = _next_piece(self._at_once, router.count_bytes())
            if not self.failed:
                yield from router.take_ready(page)
            first = end
        router.end_page(page)

    def _run_piece(self, entry: Entry, keys: Raw, values: Raw, first: int, way: int) -> None:
        run, slot, watch = self._run_undoable if self._dead_letter_mode else self._run_plain, self._slot, self._watch
        page, end = self.instance.position.page, first + len(keys)
        if watch is not None and watch.suspects(page, first, end):
            self._run_watched(watch, way, run, entry, keys, values, first)
        elif slot is None:
            run(entry, keys, values, first)
        else:
            slot.enter_piece(page.span(first, end))
            try:
                run(entry, keys, values, first)
            finally:
                slot.leave()

    def _run_plain(self, entry: Entry, keys: Raw, values: Raw, first: int) -> None:
        try:
            entry.run(keys, values, first)
        except (OperatorFailedError, EngineFailedError) as failure:
            if self._is_to_blame(failure):
                self._fail(failure, keys[self.instance.position.row - first])
        else:
            self._messages += len(keys)

    def _run_watched(self, watch: Watch, way: int, run: _Run, entry: Entry, keys: Raw, values: Raw, first: int) -> None:
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
                self._bury_message(entry, failure, key[0], value, row)
                self._messages += 1
                continue
            if slot is not None:
                slot.enter_message(message)
            try:
                run(entry, key, value, row)
            finally:
                if slot is not None:
                    slot.leave()

    def _run_undoable(self, entry: Entry, keys: Raw, values: Raw, first: int) -> None:
        """Undo what fails, and bury its message. Where all operators can take back many messages at once, a piece of
        them that fails is halved until the message is found; elsewhere each message is a piece."""
        instance, position = self.instance, self.instance.position
        count = len(keys)
        pieces = [(0, count)] if instance.undoes_many else [(number, number + 1) for number in reversed(range(count))]
        while pieces:
            begin, end = pieces.pop()
            position.row = first + begin
            mark = instance.mark()
            try:
                entry.run(keys[begin:end], values[begin:end], first + begin)
            except (OperatorFailedError, EngineFailedError) as failure:
                if not self._is_to_blame(failure):
                    return
                instance.undo(mark)
                if end - begin > 1:
                    middle = (begin + end) // 2
                    pieces += (middle, end), (begin, middle)
                else:
                    self._bury_message(entry, failure, keys[begin], values[begin:end], first + begin)
        self._messages += count

    def _bury_message(
        self, entry: Entry, failure: OperatorFailedError, key: bytes | None, value: Raw, row: int
    ) -> None:
        page, identities = self.instance.position.page, self.instance.settings.identities
        failed = failure.describe(page.ssp(row), page.offsets[row], key)
        repartitioned, identity = isinstance(page, ReceivedPage), identities.get(failed.stream)
        letter = encode_dead_letter(
            failed,
            key,
            entry.value_bytes(value),
            repartitioned=repartitioned,
            identity=identity,
            headers=page.headers(row),
        )
        self._bury(failed, key, letter)

    def _bury(self, failed: FailedMessage, key: bytes | None, letter: bytes) -> None:
        self._dead_letters += 1
        self._dead_letter = self._dead_letter or replace(failed, traceback="")
        self.instance.dead_letter_outlet().push_raw(key, letter)

    # Firings, which no message leads to, at the start and at the end of input.

    def _start_input(self) -> Iterator[Packet]:
        self._started = True
        if not self.failed:
            yield from self._fire_all(self.instance.on_start_of_input(self.batch))

    def _fire_all(self, firings: Iterator[tuple[str, Firing | Firings]]) -> Iterator[Packet]:
        instance, router = self.instance, self.instance.router
        origin, page = fired_origin(instance.task), FiredPage(instance.ssps)
        self._enter_step()
        while (due := self._next_firing(firings)) is not None and not self.failed:
            operator, fired = due
            done, count = 0, len(fired.keys) if isinstance(fired, Firings) else 1
            while done < count and not self.failed:
                end = min(count, done + self._at_once)
                if isinstance(fired, Firing) and fired.origin is not None:
                    first = page.add_message(fired.timestamp_ms, fired.origin, origin)
                else:
                    first = page.add(fired.timestamp_ms, origin, FIRED_OFFSET, end - done)
                instance.position.page, instance.position.row = page, first
                began = time.perf_counter_ns()
                if isinstance(fired, Firings):
                    fire = partial(self._fire_at_once, operator, fired, slice(done, end))
                    instance.clock.timed(operator, fire)(first)
                else:
                    instance.clock.timed(operator, partial(self._fire, operator))(fired)
                self._process_ns += time.perf_counter_ns() - began
                done = end
                if len(page.offsets) >= self._at_once and not self.failed:
                    self._at_once = _next_piece(self._at_once, router.count_bytes())
                    yield from router.take_ready(page)
                    router.end_page(page)
                    page = FiredPage(instance.ssps)
        router.end_page(page)
        if self._slot is not None:
            self._slot.leave()

    def _enter_step(self) -> None:
        if self._slot is not None:
            self._slot.enter_step("timers, windows or the end of input")

    def _next_firing(self, firings: Iterator[tuple[str, Firing | Firings]]) -> tuple[str, Firing | Firings] | None:
        try:
            return next(firings, None)
        except (OperatorFailedError, EngineFailedError) as failure:
            self._fail_without_message(failure)
        except PenstockTimeoutError as error:
            self._error = (PenstockTimeoutError.__name__, str(error))
        return None

    def _reclaim(self) -> None:
        try:
            self.instance.reclaim()
        except EngineFailedError as failure:
            self._fail_without_message(failure)

    def _find_next_due(self) -> None:
        try:
            self._next_due = self.instance.next_due()
        except (OperatorFailedError, EngineFailedError) as failure:
            self._fail_without_message(failure)

    def _fail_without_message(self, failure: OperatorFailedError | EngineFailedError) -> None:
        if self._is_to_blame(failure):
            self._failure = self._described(failure, None)

    def _fire(self, operator: str, firing: Firing) -> None:
        mark = self.instance.mark() if self._dead_letter_mode and not firing.must_succeed else None
        try:
            if self._watch is not None:
                self._look_at(self._watch, operator, firing, can_be_buried=mark is not None)
            with blaming(operator):
                firing.run()
        except (OperatorFailedError, EngineFailedError) as failure:
            if not self._is_to_blame(failure):
                return
            page, row = self.instance.position.page, self.instance.position.row
            failed = failure.describe(page.ssp(row), page.offsets[row], firing.key, firing.what)
            if mark is None:
                self._failure = failed
                return
            self.instance.undo(mark)
            time_ms = firing.timestamp_ms if firing.time_ms is None else firing.time_ms
            letter = encode_dead_letter(
                failed,
                firing.key,
                firing.value,
                repartitioned=True,
                identity=self.instance.settings.identities.get(failed.stream) if firing.origin is not None else None,
                fired={"name": firing.name, "timestamp": time_ms} if firing.origin is None else None,
                headers=page.headers(row),
            )
            self._bury(failed, firing.key, letter)
        finally:
            if self._watch is not None:
                self._enter_step()
        self._fired += 1

    def _look_at(self, watch: Watch, operator: str, firing: Firing, *, can_be_buried: bool) -> None:
        """Name a firing on the page. Raises OperatorFailedError if it must not be run."""
        page, row = self.instance.position.page, self.instance.position.row
        message = watch.firing(operator, firing, page.origins[row], page.offsets[row])
        if can_be_buried and (failure := watch.failure(message, operator)) is not None:
            raise failure
        if self._slot is not None:
            self._slot.enter_message(message, f"{firing.what or firing.name} of operator `{operator}`")

    def _fire_at_once(self, operator: str, firings: Firings, some: slice, first: int) -> None:
        """Run firings together. In dead-letter mode those that fail are undone and halved, as messages are."""
        instance, position, keys = self.instance, self.instance.position, firings.keys
        undoes, count = self._dead_letter_mode, some.stop - some.start
        pieces = [(0, count)]
        if undoes and not instance.undoes_many:
            pieces = [(number, number + 1) for number in reversed(range(count))]
        while pieces:
            begin, end = pieces.pop()
            position.row = first + begin
            mark = instance.mark() if undoes else None
            try:
                with blaming(operator):
                    firings.run(slice(some.start + begin, some.start + end), first + begin)
            except (OperatorFailedError, EngineFailedError) as failure:
                if not self._is_to_blame(failure):
                    return
                if mark is None:
                    self._failure = self._described(failure, keys[some.start + position.row - first])
                    return
                instance.undo(mark)
                if end - begin > 1:
                    middle = (begin + end) // 2
                    pieces += (middle, end), (begin, middle)
                else:
                    key, fired = keys[some.start + begin], {"name": firings.name, "timestamp": firings.timestamp_ms}
                    failed = self._described(failure, key)
                    self._bury(failed, key, encode_dead_letter(failed, key, None, repartitioned=True, fired=fired))
        self._fired += count

    def _described(self, failure: OperatorFailedError, key: bytes | None, what: str = "") -> FailedMessage:
        instance = self.instance
        return failure.describe(instance.ssps[fired_origin(instance.task)], FIRED_OFFSET, key, what)

    def _fail(self, failure: OperatorFailedError, key: bytes | None) -> None:
        page, row = self.instance.position.page, self.instance.position.row
        self._failure = failure.describe(page.ssp(row), page.offsets[row], key)


def _columns(messages: Sequence[RawMessage]) -> tuple[Any, Any, Any, Any, dict[int, bytes] | None]:
    """The offsets, timestamps, keys and values, and by row the packed headers of the messages that have some."""
    widths = set(map(len, messages))
    if widths == {4}:
        return *zip(*messages, strict=True), None  # type: ignore[return-value]
    packed = {row: pack_headers(own) for row, message in enumerate(messages) if (own := headers_in(message))}
    return *zip(*(message[:4] for message in messages), strict=True), packed


def _next_piece(messages: int, sent_bytes: int) -> int:
    if sent_bytes > FLUSH_BYTES:
        return max(1, messages * FLUSH_BYTES // sent_bytes)
    return min(AT_ONCE, 2 * messages)
