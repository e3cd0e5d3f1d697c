"""Finds the message that ends the process in which it is processed.

A process that ended says on its page what its tasks were doing (`penstock.host.position_page`): at first a piece of
messages. The task is watched from then on: its attempts process one message at a time, so the next end names one. A
message whose process has ended twice becomes a dead letter, where the end in its piece counts as one. If somebody else
may have ended one of these processes, that is three times, each of them alone: a message that takes most of the time
would be met twice by chance. Nothing counts while anything else was processed in the process.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.batch.batch import Batch
from penstock.batch.suspects import Culprit, WatchedTask
from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.context import RunContext
from penstock.host.position_page import TIMER, MessageId, Span, Spot
from penstock.runtime.context import SspTable
from penstock.wire.endings import ProcessDeath

logger = logging.getLogger(__name__)
_ENOUGH = 2
_ENOUGH_IN_DOUBT = 3
_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class _Evidence:
    """One thing that a process did when it ended."""

    death: ProcessDeath
    spot: Spot

    def fits(self, message: MessageId, death: ProcessDeath) -> bool:
        """True if the message may have been the one, in a process that ended in the same way."""
        if self.death.status != death.status or (self.spot.stage, self.spot.task) != (message.stage, message.task):
            return False
        if message.way == TIMER:
            return self.spot.doing == "step"
        return self.spot.doing == "piece" and self.spot.span.holds(message.origin, message.offset)


class Suspects:
    """The watched tasks and the culprits of one run, until a checkpoint is behind them. Used by the run loop's
    thread."""

    def __init__(self, run: RunContext) -> None:
        self._fleet, self._runner = run.fleet, run.runner
        self._ssps = SspTable.of(run.job.topology.graph)
        self._buries = run.job.settings.dead_letter
        self._known: deque[str] = deque(maxlen=_REMEMBERED)
        """The ends that were noted."""
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        """The ends in pieces that have spoken against a culprit. They speak against no other message: if a message
        never looks the same, each of its ends would otherwise be answered, and none would count."""
        self._evidence: list[_Evidence] = []
        self._culprits: dict[MessageId, Culprit] = {}
        self.advice = ""
        """Advice on a message that ended its process again and again, if it cannot be a dead letter."""

    def look(self) -> int:
        """Note the processes that have ended. Returns the number of their ends that are answered now: their message is
        a culprit, and they need not count as failures."""
        answered = 0
        for death in (*self._fleet.deaths(), *self._runner.deaths()):
            if death.name not in self._known and death.spots:
                self._known.append(death.name)
                answered += self._note(death)
        return answered

    def watch(self, batch: Batch) -> Batch:
        """The batch, with what its attempts have to know."""
        self.look()
        spans: dict[tuple[int, int], dict[Span, None]] = {}
        for each in self._evidence:
            spans.setdefault((each.spot.stage, each.spot.task), {})[each.spot.span] = None
        if not spans and not batch.watched:
            return batch
        watched = tuple(WatchedTask(*place, tuple(own)) for place, own in sorted(spans.items()))
        return batch.with_suspects(watched, tuple(self._culprits.values()))

    def settle(self, record: CheckpointRecord) -> None:
        """Forget what the checkpoint has behind it."""
        if not self._evidence:
            return
        self._evidence = [each for each in self._evidence if not self._is_behind(record, each.spot)]
        left = {each.spot.message for each in self._evidence}
        self._culprits = {message: found for message, found in self._culprits.items() if message in left}
        if not self._evidence:
            self.advice = ""

    def _note(self, death: ProcessDeath) -> int:
        (first, *others) = death.spots
        message = None if others else first.message
        before = list(self._evidence)
        self._evidence += [_Evidence(death, spot) for spot in death.spots]
        if message is None:
            logger.warning("%s %s while it processed %s", death.name, death.how, " and ".join(map(str, death.spots)))
            return 0
        told = [each.death for each in before if each.spot.message == message and _is_alone(each.death)] + [death]
        in_doubt = not all(each.by_itself for each in told)
        pieces = [each for each in before if each.death.name not in self._answered and each.fits(message, death)]
        times = len(told) + (not in_doubt and bool(pieces))
        logger.warning("%s %s while it processed %s alone: time %d", death.name, death.how, first, times)
        if times < (_ENOUGH_IN_DOUBT if in_doubt else _ENOUGH):
            return 0
        why = f"the process that processed it {death.how}; {times} processes ended so"
        if not self._buries:
            self.advice = (
                f". {times} processes ended while they processed {first}: correct what it does there, or set "
                "task.dead.letter.stream, so that such a message is set aside"
            )
            return 0
        logger.error("%s becomes a dead letter: %s", first, why)
        self._answered.extend(each.death.name for each in pieces)
        self._culprits[message] = Culprit(message, why)
        return times

    def _is_behind(self, record: CheckpointRecord, spot: Spot) -> bool:
        span = spot.span
        fired = spot.message is not None and spot.message.way == TIMER
        if spot.doing == "step" or fired or span.first_origin < 0:
            return record.batch >= spot.batch
        positions: Mapping[int, Mapping[object, int]] = record.next_offsets  # type: ignore[assignment]
        ssps = {self._ssps[span.first_origin], self._ssps[span.last_origin]}
        return all(own.get(ssp, span.last_offset + 1) > span.last_offset for own in positions.values() for ssp in ssps)


def _is_alone(death: ProcessDeath) -> bool:
    return len(death.spots) == 1
