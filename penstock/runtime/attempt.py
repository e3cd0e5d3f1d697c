"""One execution of (batch, stage, task): it reads packets until every source's trailer matches, and sends its own.

An attempt is finished only when it has exactly one trailer, with the right counts, from every source it expects.
An end of stream without them is a discarded attempt, however clean it looked.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.errors import ContainerLostError, FailedMessage, RetryableError
from penstock.runtime.batch import Batch
from penstock.runtime.columns import Way
from penstock.runtime.context import OperatorFailedError, Page
from penstock.runtime.instance import StageInstance
from penstock.runtime.packet import REPORT_STAGE, Kind, Packet, decode_messages, origin_code
from penstock.runtime.router import FLUSH_BYTES
from penstock.state.engines.engine import EngineFailedError
from penstock.system.base import RawMessage

_AT_ONCE = 1024
"""Messages decoded before they are processed: so many that what is paid once for all of them is little, so few that
they are still in the processor's cache."""


class DiscardedAttemptError(RetryableError):
    """The attempt's input was not complete or not of one piece. It is dropped; Spark or the run loop tries again."""


def new_token() -> str:
    """A random name for an attempt."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Report:
    """What an attempt tells the driver: who it was, whose rows it read, and what came of it."""

    stage: int
    task: int
    token: str
    read: dict[int, dict[int, str]]
    """Source stage -> source task -> the token that was read."""
    messages: int = 0
    """Messages read."""
    dead_letters: int = 0
    written: dict[str, int] = field(default_factory=dict)
    """Output stream -> messages written (sink stage)."""
    commit: bool = False
    shutdown: bool = False
    failed: FailedMessage | None = None
    error: tuple[str, str] | None = None
    """Kind and text of an error that is not the application's: a range that no longer exists, a fenced writer, a store
    whose engine failed."""
    upstream_failed: bool = False
    """A source failed, so this attempt did nothing."""
    input_bytes: dict[int, int] = field(default_factory=dict)
    """Number of an input -> bytes of keys and values that were read of it (stage 0)."""

    def packet(self) -> Packet:
        """The report as a packet to the driver."""
        payload = orjson.dumps(self, option=orjson.OPT_NON_STR_KEYS)
        return Packet(self.task, REPORT_STAGE, Kind.REPORT, self.stage, self.task, self.token, -1, -1, 0, 0, payload)

    @classmethod
    def from_payload(cls, payload: bytes) -> Report:
        """Read a report packet's payload."""
        fields: dict[str, Any] = orjson.loads(payload)
        fields["read"] = {int(s): {int(t): token for t, token in r.items()} for s, r in fields["read"].items()}
        fields["input_bytes"] = {int(index): size for index, size in fields["input_bytes"].items()}
        if fields["failed"] is not None:
            fields["failed"] = FailedMessage(**fields["failed"])
        if fields["error"] is not None:
            fields["error"] = tuple(fields["error"])
        return cls(**fields)


class Sources:
    """What an attempt has received from each source. Puts each source's packets in sequence, checks the trailers."""

    def __init__(self, expected: frozenset[tuple[int, int]]) -> None:
        self._expected = expected
        self._tokens: dict[tuple[int, int], str] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._waiting: dict[tuple[int, int], dict[int, Packet]] = {}
        self._messages: dict[tuple[int, int], int] = {}
        self._trailers: dict[tuple[int, int], Packet] = {}
        self.failed = False
        """A source sent a failed trailer."""

    def accept(self, packet: Packet) -> Iterator[Packet]:
        """Take a packet; yields the data packets that are next in their source's sequence."""
        source = (packet.source_stage, packet.source_task)
        if source not in self._expected:
            raise DiscardedAttemptError(f"rows came from {_name(source)}, which does not send here")
        token = self._tokens.setdefault(source, packet.token)
        if token != packet.token:
            raise DiscardedAttemptError(f"rows of two attempts of {_name(source)} came: {token} and {packet.token}")
        if packet.kind != Kind.DATA:
            if source in self._trailers:
                raise DiscardedAttemptError(f"a second trailer came from {_name(source)}")
            self._trailers[source] = packet
            self.failed = self.failed or packet.kind == Kind.FAILED_TRAILER
            return
        waiting = self._waiting.setdefault(source, {})
        if packet.seq in waiting or packet.seq < self._next.get(source, 0):
            raise DiscardedAttemptError(f"packet {packet.seq} came twice from {_name(source)}")
        waiting[packet.seq] = packet
        while (ready := waiting.pop(self._next.get(source, 0), None)) is not None:
            self._next[source] = ready.seq + 1
            self._messages[source] = self._messages.get(source, 0) + ready.messages
            yield ready

    def check_complete(self) -> None:
        """Raise DiscardedAttemptError unless everything from every source has come."""
        missing = self._expected - self._trailers.keys()
        if missing:
            raise DiscardedAttemptError(
                f"the rows ended without the trailer of {', '.join(_name(s) for s in sorted(missing))}"
            )
        if self.failed:
            return
        for source, trailer in self._trailers.items():
            got = (self._next.get(source, 0), self._messages.get(source, 0))
            if self._waiting.get(source) or got != (trailer.seq, trailer.messages):
                raise DiscardedAttemptError(
                    f"{_name(source)} sent {trailer.seq} packets with {trailer.messages} messages, but "
                    f"{got[0]} packets with {got[1]} messages came"
                )

    def tokens(self) -> dict[int, dict[int, str]]:
        """Source stage -> source task -> token."""
        read: dict[int, dict[int, str]] = {}
        for (stage, task), token in self._tokens.items():
            read.setdefault(stage, {})[task] = token
        return read


def _name(source: tuple[int, int]) -> str:
    return f"stage {source[0]} task {source[1]}"


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
        self._input_bytes: dict[int, int] = {}
        self._at_once = _AT_ONCE
        self._dead_letters = 0
        self._dead_letter_mode = instance.settings.dead_letter
        instance.begin(token)

    @property
    def failed(self) -> bool:
        """Whether user code failed here or before, or a store did: its writes must not be applied."""
        return self._failure is not None or self._error is not None or self._sources.failed

    @property
    def processed(self) -> int:
        """Messages so far. May be read by any thread."""
        return self._messages

    # Stage 1 and later.

    def accept(self, packet: Packet) -> Iterator[Packet]:
        """Process a packet; yields packets that are ready to be sent on. Raises DiscardedAttemptError."""
        for ready in self._sources.accept(packet):
            if not self.failed and ready.payload is not None:
                messages = decode_messages(ready.payload)
                keys, values = messages.column(0).to_pylist(), messages.column(1).to_pylist()
                origins = (messages.column(i).to_numpy().tolist() for i in range(2, 5))
                page = Page(self.instance.ssps, *origins)
                yield from self._run(self.instance.channel_ways[ready.channel], keys, values, page)

    # Stage 0.

    def accept_input(self, input_index: int, partition: int, messages: Sequence[RawMessage]) -> Iterator[Packet]:
        """Process messages of an input's partition; yields packets that are ready to be sent on."""
        if not self.failed and messages:
            offsets, timestamps, keys, values = zip(*messages, strict=True)
            size = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
            self._input_bytes[input_index] = self._input_bytes.get(input_index, 0) + size
            origins = [origin_code(input_index, partition)] * len(messages)
            page = Page(self.instance.ssps, timestamps, origins, offsets)
            yield from self._run(self.instance.input_ways[input_index], keys, values, page)

    def finish(self) -> Iterator[Packet]:
        """The rest of the output, the trailers and the report. Raises DiscardedAttemptError."""
        self._sources.check_complete()
        if not self.failed:
            self._check_stores()
        yield from self.instance.router.finish(failed=self.failed)
        yield self.report().packet()

    def report(self) -> Report:
        """What the driver is told."""
        instance = self.instance
        return Report(
            stage=instance.stage,
            task=instance.task,
            token=self.token,
            read=self._sources.tokens(),
            messages=self._messages,
            input_bytes=self._input_bytes,
            dead_letters=self._dead_letters,
            commit=instance.requests.commit_requested,
            shutdown=instance.requests.shutdown_requested,
            failed=self._failure,
            error=self._error,
            upstream_failed=self._sources.failed,
        )

    def _check_stores(self) -> None:
        """What the stores say once everything is processed. That an engine failed is known here at the latest: the
        application may have caught the error, or `init` met it."""
        self._lost_store()
        for store in self.instance.stores.values():
            try:
                store.check()
            except Exception as error:
                self._fail(OperatorFailedError(f"store {store.name}", error), None)

    def _lost_store(self) -> bool:
        """Whether an engine failed: what the application then raises is not its failure, nor a dead letter."""
        failures = [store.failure for store in self.instance.stores.values() if store.failure is not None]
        if failures:
            self._error = engine_error(failures[0], self.instance.task)
        return bool(failures)

    def _run(
        self, ways: Sequence[Way], keys: Sequence[bytes | None], values: Sequence[bytes | None], page: Page
    ) -> Iterator[Packet]:
        """Process a page of messages; yields packets that are ready to be sent on. A failed message ends the attempt's
        work, or goes to the dead-letter stream."""
        self.instance.position.page = page
        router, first = self.instance.router, 0
        run = self._run_undoable if self._dead_letter_mode else self._run_plain
        while first < len(keys) and not self.failed:
            end = first + self._at_once
            run(ways, keys[first:end], values[first:end], first)
            self._at_once = _next_piece(self._at_once, router.count_bytes())
            if not self.failed:
                yield from router.take_ready(page)
            first = end
        router.end_page(page)

    def _run_plain(
        self, ways: Sequence[Way], keys: Sequence[bytes | None], values: Sequence[bytes | None], first: int
    ) -> None:
        position = self.instance.position
        try:
            for way in ways:
                way.run(keys, values, first, position)
        except (OperatorFailedError, EngineFailedError) as failure:
            if not self._lost_store() and isinstance(failure, OperatorFailedError):
                self._fail(failure, keys[position.row - first])
        else:
            self._messages += len(keys)

    def _run_undoable(
        self, ways: Sequence[Way], keys: Sequence[bytes | None], values: Sequence[bytes | None], first: int
    ) -> None:
        instance, position = self.instance, self.instance.position
        for row, (key, value) in enumerate(zip(keys, values, strict=True), first):
            position.row = row
            mark = instance.mark()
            try:
                for way in ways:
                    way.run((key,), (value,), row, position)
            except (OperatorFailedError, EngineFailedError) as failure:
                if self._lost_store() or isinstance(failure, EngineFailedError):
                    return
                instance.undo(mark)
                self._dead_letters += 1
                failed = failure.describe(position.page.ssp(row), position.page.offsets[row], key)
                instance.dead_letter_outlet().push_raw(key, _dead_letter(failed, key, value))
        self._messages += len(keys)

    def _fail(self, failure: OperatorFailedError, key: bytes | None) -> None:
        page, row = self.instance.position.page, self.instance.position.row
        self._failure = failure.describe(page.ssp(row), page.offsets[row], key)


def engine_error(error: EngineFailedError, task: int) -> tuple[str, str]:
    """A failed engine as an attempt's error: the answer to it is that to a lost container, a new epoch in which the
    task is restored."""
    return ContainerLostError.__name__, f"task {task}: {error}"


def _next_piece(messages: int, sent_bytes: int) -> int:
    """How many messages to process at once, after so many were turned into so many bytes."""
    if sent_bytes > FLUSH_BYTES:
        return max(1, messages * FLUSH_BYTES // sent_bytes)
    return min(_AT_ONCE, 2 * messages)


def _dead_letter(failed: FailedMessage, key: bytes | None, value: bytes | None) -> bytes:
    """A dead letter: where the message was, why it failed, and its bytes in hexadecimal."""
    return orjson.dumps(
        {
            "stream": failed.stream,
            "partition": failed.partition,
            "offset": failed.offset,
            "operator": failed.operator,
            "reason": failed.reason,
            "traceback": failed.traceback,
            "key": None if key is None else key.hex(),
            "value": None if value is None else value.hex(),
        }
    )


__all__ = ["Attempt", "DiscardedAttemptError", "Report", "Sources", "engine_error", "new_token"]
