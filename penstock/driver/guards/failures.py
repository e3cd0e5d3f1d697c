"""Counts failures since the last checkpoint: each is retried, until there are too many.

Every way to try something again passes here, so the pauses are here as well.
"""

from __future__ import annotations

import logging
import threading
from typing import TypeVar

from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.context import RunContext
from penstock.driver.guards.outages import Outages
from penstock.driver.guards.suspects import Suspects
from penstock.errors import ContainerLostError, PenstockError, SystemAwayError

logger = logging.getLogger(__name__)
E = TypeVar("E", bound=Exception)
_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 10.0


def pause_s(count: int) -> float:
    """The pause after so many failures since the last checkpoint. One is answered at once: most often a container was
    killed. What fails again needs time to pass, such as a disk that is full.

    Example:
        >>> [pause_s(count) for count in range(1, 9)]
        [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    """
    return 0.0 if count < 2 else min(_PAUSE_SECONDS * 2.0 ** min(count - 2, 10), _LONGEST_PAUSE_SECONDS)


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
