"""The failures of an attempt: whose they are, and what becomes of their messages.

An attempt that cannot run at all sends failed trailers to everyone it sends to, and a report. A failed Spark task
would be tried again and end in a Java stack trace; a mistake of the application or a message that no longer exists
would fail the same way each time.

A process may end with the attempt. So the attempt has entries on the page of its process, and a task in which a
process has ended is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TypeGuard

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch, WatchedTask
from penstock.errors import FIRED_OFFSET, FailedMessage, SystemAwayError
from penstock.graph.topology import Topology
from penstock.host.position_page import TIMER, MessageId, PositionSlot, present_page
from penstock.runtime.context import MessagePage, OperatorFailedError, Position, SspTable
from penstock.runtime.messages.packet import Packet, fired_origin
from penstock.runtime.messages.router import JointOutput, Router, finish_output
from penstock.runtime.operators.base import Firing
from penstock.runtime.reports import Report, engine_error
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.instance import StageInstance
from penstock.state.engines.engine import EngineFailedError


class AttemptFailures:
    """The failures of an attempt so far. With a dead-letter stream, a failure of the application is undone, and its
    message buried there; without one it ends the attempt's work. Any other failure ends it in both cases."""

    def __init__(self, instance: StageInstance) -> None:
        self._instance = instance
        self.message: FailedMessage | None = None
        """The message or the firing that the application failed for."""
        self.error: tuple[str, str] | None = None
        """Kind and text of an error that is not the application's."""
        self.dead_letters = 0
        self.first_dead_letter: FailedMessage | None = None
        self.buries = instance.settings.dead_letter
        """There is a dead-letter stream."""

    @property
    def end_work(self) -> bool:
        """True if nothing more is to be processed: the writes so far must not be applied."""
        return self.message is not None or self.error is not None

    def is_applications(self, failure: OperatorFailedError | EngineFailedError) -> TypeGuard[OperatorFailedError]:
        """True if the application failed; False if a store did, or a system is away that it needs. The batch runs again
        then, and no message is a dead letter."""
        if self._lost_store() or isinstance(failure, EngineFailedError):
            return False
        if isinstance(failure.cause, SystemAwayError):
            self.error = (SystemAwayError.__name__, str(failure.cause))
            return False
        return True

    def check_stores(self) -> None:
        """Check the stores once everything is processed. The failure of an engine is found here at the latest: the
        application may have caught the error, or `init` met it."""
        self._lost_store()
        for store in self._instance.stores.values():
            try:
                store.check()
            except Exception as error:
                self.note(OperatorFailedError(f"store {store.name}", error), None)

    def _lost_store(self) -> bool:
        """True if an engine failed: an error that the application then raises is not its failure, nor a dead letter."""
        failures = [store.failure for store in self._instance.stores.values() if store.failure is not None]
        if failures:
            self.error = engine_error(failures[0], self._instance.task)
        return bool(failures)

    def note(self, failure: OperatorFailedError, key: bytes | None, sender: str = "") -> None:
        """Note that the application failed for the message at the position. `sender`: see `at_position`."""
        self.message = self.at_position(failure, key, sender=sender)

    def note_without_message(self, failure: OperatorFailedError | EngineFailedError) -> None:
        """Note that something failed for no message or firing."""
        if self.is_applications(failure):
            self.message = self.of_firing(failure, None)

    def at_position(
        self, failure: OperatorFailedError, key: bytes | None, what: str = "", sender: str = ""
    ) -> FailedMessage:
        """The failure for the message or firing at the position. `sender`: the operator that a message came from."""
        page, row = self._instance.position.page, self._instance.position.row
        return failure.describe(page.ssp(row), page.offsets[row], key, what, sender)

    def of_firing(self, failure: OperatorFailedError, key: bytes | None) -> FailedMessage:
        return failure.describe(self._instance.ssps[fired_origin(self._instance.task)], FIRED_OFFSET, key)

    def bury(self, failed: FailedMessage, key: bytes | None, letter: bytes) -> None:
        """Send a dead letter."""
        self.dead_letters += 1
        self.first_dead_letter = self.first_dead_letter or replace(failed, traceback="")
        self._instance.dead_letter_outlet().push_raw(key, letter)

    def run_undoable(
        self, count: int, run: Callable[[int, int], None], bury: Callable[[OperatorFailedError, int], None]
    ) -> bool:
        """Run `count` messages or firings, undo those that fail, and bury them. Where all operators can take back many
        at once, a piece of them that fails is halved until the failing one is found; elsewhere each is a piece.

        Args:
            run: called with the number of the first one of a piece, and of the one after its last.
            bury: called with the failure of one, and its number.

        Returns:
            False if something else failed than the application.
        """
        instance = self._instance
        pieces = [(0, count)] if instance.undoes_many else [(number, number + 1) for number in reversed(range(count))]
        while pieces:
            begin, end = pieces.pop()
            mark = instance.mark()
            try:
                run(begin, end)
            except (OperatorFailedError, EngineFailedError) as failure:
                if not self.is_applications(failure):
                    return False
                instance.undo(mark)
                if end - begin > 1:
                    middle = (begin + end) // 2
                    pieces += (middle, end), (begin, middle)
                else:
                    bury(failure, begin)
        return True


def failed_attempt(
    topology: Topology,
    settings: RuntimeSettings,
    stage: int,
    task: int,
    token: str,
    error: BaseException,
    together: JointOutput | None = None,
) -> Iterator[Packet]:
    """The packets of an attempt that failed outside of any message. `together`: see `Attempt.finish`."""
    router = Router(
        topology,
        stage,
        task,
        settings.tasks,
        Position(MessagePage(SspTable(()), (), (), ())),
        settings.output_partitions,
    )
    router.begin(token)
    yield from finish_output(router, together, failed=True)
    yield failure_report(stage, task, token, {}, error).packet()


def failure_report(stage: int, task: int, token: str, read: Mapping[int, int], error: BaseException) -> Report:
    if isinstance(error, OperatorFailedError):
        # Without a message: the operator's constructor or `init` failed.
        failed: FailedMessage | None = error.describe(SystemStreamPartition("none", "none", task), -1, None)
        return Report(stage, task, token, read, failed=failed)
    if isinstance(error, EngineFailedError):
        return Report(stage, task, token, read, error=engine_error(error, task))
    return Report(stage, task, token, read, error=(type(error).__name__, str(error)))


class ProcessEndedError(Exception):
    """The process that processed this message ended, again and again."""


def slot_for(instance: StageInstance, batch: Batch) -> PositionSlot | None:
    """The attempt's place on the page of this process; None if it has no page."""
    page = present_page()
    if page is None:
        return None
    slot = page.slot(instance.stage, instance.task, instance.ssps.streams)
    slot.begin(batch.number, batch.run)
    return slot


def watch_for(instance: StageInstance, batch: Batch) -> MessageWatch | None:
    """The watch over an attempt of the batch; None if no process has ended in it."""
    place = (instance.stage, instance.task)
    watched = next((each for each in batch.watched if (each.stage, each.task) == place), None)
    return None if watched is None else MessageWatch(instance, batch, watched)


class MessageWatch:
    """Names each message of one attempt before it is processed, and knows those that must not be."""

    def __init__(self, instance: StageInstance, batch: Batch, watched: WatchedTask) -> None:
        self._watched = watched
        self._stage, self._task = instance.stage, instance.task
        own = ((each.message, each.why) for each in batch.culprits)
        self._culprits: Mapping[MessageId, str] = dict(own)
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        """(way, origin) -> the last offset, and the number of its messages so far."""
        self._topology = instance.topology

    def suspects(self, page: MessagePage, first: int, end: int) -> bool:
        """True if these rows are to be processed one at a time."""
        return self._watched.suspects(page.span(first, end))

    def message(
        self, way: int, page: MessagePage, row: int, key: bytes | None, value: Callable[[], bytes | None]
    ) -> MessageId:
        """Called once for each message that may be it, in their order."""
        origin, offset = int(page.origins[row]), int(page.offsets[row])
        last, count = self._last.get((way, origin), (offset, -1))
        number = count + 1 if last == offset else 0
        self._last[way, origin] = offset, number
        # What stage 0 has made of one message comes in its order. Later on it may come from several tasks.
        mark = number if self._stage <= 1 and offset >= 0 else _digest(key, value())
        return MessageId(self._stage, self._task, way, origin, offset, mark)

    def firing(self, operator: str, firing: Firing, origin: int, offset: int) -> MessageId:
        """A timer, or a message that has waited for its time: then `origin` and `offset` are its own."""
        time_ms = firing.timestamp_ms if firing.time_ms is None else firing.time_ms
        name = f"{operator}\n{firing.name}\n{time_ms}".encode()
        return MessageId(self._stage, self._task, TIMER, origin, offset, _digest(name, firing.key, firing.value))

    def failure(self, message: MessageId, operator: str) -> OperatorFailedError | None:
        """The failure of a message that must not be processed; None if it may. `operator`: where it comes from, or the
        one that fires."""
        why = self._culprits.get(message)
        if why is None:
            return None
        targets = self._targets(message.way, operator)
        return OperatorFailedError(targets[0] if len(targets) == 1 else operator, ProcessEndedError(why))

    def _targets(self, way: int, source: str) -> Sequence[str]:
        """The operators that messages come to by this way."""
        if way >= 0:
            return next((channel.targets for channel in self._topology.channels if channel.number == way), ())
        if way == TIMER:
            return ()
        return [spec.id for spec in self._topology.stages[0].operators if source in spec.upstream]


def _digest(*parts: bytes | None) -> int:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % len(part) + bytes(part))
    return int.from_bytes(digest.digest(), "little", signed=True)
