"""Counts failures since the last checkpoint: each is retried, until there are too many.

Every way to try something again passes here, so the pauses are here as well, and the waits for systems that are away.

`Suspects` finds the message that ends the process in which it is processed. A process that ended says on its page
what its tasks were doing (`penstock.host.position_page`): at first a piece of messages. The task is watched from then
on: its attempts process one message at a time, so the next end names one. A message whose process has ended twice
becomes a dead letter, where the end in its piece counts as one. If somebody else may have ended one of these
processes, that is three times, each of them alone: a message that takes most of the time would be met twice by
chance. Nothing counts while anything else was processed in the process.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from penstock.base.retry import Clock
from penstock.batch.batch import Batch, Culprit, WatchedTask
from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.part import RunContext, StopRequest
from penstock.driver.show.progress import ProgressBoard
from penstock.errors import ContainerLostError, PenstockError, SystemAwayError
from penstock.host.position_page import TIMER, MessageId, Span, Spot
from penstock.job.shown import Outage
from penstock.runtime.context import SspTable
from penstock.wire.containers import ProcessDeath

logger = logging.getLogger(__name__)
PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
"""Each pause before the next try is twice as long as the one before, up to this limit."""
SAY_SECONDS = 10.0
LONGEST_SAY_SECONDS = 600.0
"""The time between two log lines about the same outage doubles, up to this limit."""


class Outages:
    """Waits while a system is away, says so, and says when it is over. Used by the run loop's thread.

    A run that is asked to end while it waits ends at once: what is not committed is processed again by the next start.
    """

    def __init__(self, board: ProgressBoard, stop: StopRequest, clock: Clock) -> None:
        self._board = board
        self._stop = stop
        self._clock = clock
        self._since: float | None = None
        """The start of the present outage, on the run's monotonic clock; None if there is none."""
        self._pause_s = PAUSE_SECONDS
        self._say_at = 0.0
        self._say_s = SAY_SECONDS

    def wait(self, error: SystemAwayError) -> None:
        now = self._clock.monotonic()
        if self._since is None:
            self._since, self._pause_s = now, PAUSE_SECONDS
            self._say_at, self._say_s = now + SAY_SECONDS, SAY_SECONDS
            self._board.update(outage=Outage(self._clock.now_ms(), str(error)))
            logger.warning("a system is away; the job waits for it and keeps trying: %s", error)
        else:
            outage = self._board.outage
            since_ms = self._clock.now_ms() if outage is None else outage.since_ms
            self._board.update(outage=Outage(since_ms, str(error)))
            if now >= self._say_at:
                self._say_s = min(2 * self._say_s, LONGEST_SAY_SECONDS)
                self._say_at = now + self._say_s
                logger.warning("the job has waited for %.0f s: %s", now - self._since, self._board.outage)
        if self._clock.wait(self._stop.graceful, self._pause_s):
            logger.warning(
                "the run was asked to end while it waits, and ends without another checkpoint. The next start "
                "processes everything after the last one again. The run waited for: %s",
                error,
            )
            self._stop.immediate.set()
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_SECONDS)

    def over(self) -> None:
        if self._since is not None:
            waited_s = self._clock.monotonic() - self._since
            logger.warning("the job continues after %.0f s: the system is back", waited_s)
            self._since = None
            self._board.update(outage=None)


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
        """The batch, with the spans that its attempts have to watch, and the culprits."""
        self.look()
        spans: dict[tuple[int, int], dict[Span, None]] = {}
        for each in self._evidence:
            spans.setdefault((each.spot.stage, each.spot.task), {})[each.spot.span] = None
        if not spans and not batch.watched:
            return batch
        watched = tuple(WatchedTask(*place, tuple(own)) for place, own in sorted(spans.items()))
        return batch.with_suspects(watched, tuple(self._culprits.values()))

    def settle(self, record: CheckpointRecord) -> None:
        """Forget the evidence on messages that the checkpoint has behind it."""
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


E = TypeVar("E", bound=Exception)
_RETRY_PAUSE_SECONDS = 0.5
_LONGEST_RETRY_PAUSE_SECONDS = 10.0


def pause_s(count: int) -> float:
    """The pause after so many failures since the last checkpoint. One is answered at once: most often a container was
    killed. What fails again needs time to pass, such as a disk that is full.

    Example:
        >>> [pause_s(count) for count in range(1, 9)]
        [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    """
    return 0.0 if count < 2 else min(_RETRY_PAUSE_SECONDS * 2.0 ** min(count - 2, 10), _LONGEST_RETRY_PAUSE_SECONDS)


class RunFailures:
    """Counts failures against `job.retry.max`, and explains them. Once the run has a checkpoint, it waits for a
    system that is away, without counting. Before, it pauses between the tries and counts them: a start does not wait
    for long (docs/kafka.md), but a system that restarts meanwhile does not end it."""

    def __init__(self, run: RunContext) -> None:
        self._outages = Outages(run.board, run.stop, run.clock)
        self._has_checkpoint = False
        self._limit = run.job.config.job.retry_max
        self._fleet = run.fleet
        self._runner = run.runner
        self._board = run.board
        self._stop = run.stop
        self._clock = run.clock
        self._count = 0
        self.suspects = Suspects(run)
        """The messages that end processes."""

    def reset(self, record: CheckpointRecord) -> None:
        """Begin again: a checkpoint is complete."""
        self._has_checkpoint = True
        self._count = 0
        self._board.update(failures=0)
        self.suspects.settle(record)

    def none(self) -> None:
        """Note that all systems have answered."""
        self._outages.over()

    def count(self, error: Exception, *, then: str = "") -> None:
        """Count a failure, and wait before it is retried if it is not the first one. `then` says what follows. If a
        system is away, this waits for a while, and counts nothing once the run has a checkpoint.

        Raises PenstockError if there are too many, or if nothing can be tried again.
        """
        error = self._explained(error)
        if answered := self.suspects.look():
            self._count = max(0, self._count - answered + 1)
            return
        if isinstance(error, SystemAwayError) and self._has_checkpoint:
            self._outages.wait(error)
            return
        self._count += 1
        self._board.update(failures=self._count)
        self._board.metrics.retries.inc()
        if self._count <= self._limit:
            pause = 0.0 if isinstance(error, SystemAwayError) else pause_s(self._count)
            after = f", in {pause:g} s" if pause else ""
            text = "failure %d since the %s, at most %d are retried%s%s: %s"
            logger.warning(text, self._count, self._since, self._limit, then, after, error)
            if isinstance(error, SystemAwayError):
                self._outages.wait(error)
            elif pause:
                self._clock.wait(self._hurry, pause)
            return
        times = "A failure" if self._limit == 0 else f"{self._count} failures"
        raise PenstockError(
            f"{times} since the {self._since}; job.retry.max is {self._limit}. The last one: {error}"
            f"{self.suspects.advice}. {self._kept}; start the job again once the cause is gone"
        ) from error

    @property
    def _hurry(self) -> threading.Event:
        """The event that ends a pause: the request to stop. A run that is stopping already pauses all the same, before
        it tries its last commit again, until it is to end at once."""
        return self._stop.immediate if self._stop.graceful.is_set() else self._stop.graceful

    @property
    def _since(self) -> str:
        return "last checkpoint" if self._has_checkpoint else "start of the run"

    @property
    def _kept(self) -> str:
        last = self._board.last_checkpoint
        return "The run has written no checkpoint" if last is None else f"The state is as of checkpoint {last}"

    def _explained(self, error: E) -> E | ContainerLostError:
        """The error. If a container died, the cause of its death replaces the error of a call to it.

        Raises PenstockError if the runner is dead, because then nothing can be tried again.
        """
        if (died := self._runner.death(error, self._board.last_checkpoint)) is not None:
            raise died from error
        if not isinstance(error, ContainerLostError):
            return error
        explained = ContainerLostError(self._fleet.loss(otherwise=str(error)))
        explained.__cause__ = error
        return explained
