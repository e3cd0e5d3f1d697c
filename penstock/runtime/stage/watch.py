"""An attempt's entries on the page of its process, and the watch over a task in which a process has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from penstock.batch.batch import Batch
from penstock.batch.suspects import WatchedTask
from penstock.host.position_page import TIMER, MessageId, PositionSlot, present_page
from penstock.runtime.context import MessagePage, OperatorFailedError
from penstock.runtime.operators.base import Firing
from penstock.runtime.stage.instance import StageInstance


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
