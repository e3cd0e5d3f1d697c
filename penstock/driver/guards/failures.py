"""Counts failures since the last checkpoint: each is retried, until there are too many."""

from __future__ import annotations

import logging
from typing import TypeVar

from penstock.driver.context import RunContext
from penstock.driver.guards.outages import Outages
from penstock.errors import ContainerLostError, PenstockError, SystemAwayError

logger = logging.getLogger(__name__)
E = TypeVar("E", bound=Exception)


class Failures:
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
        self._count = 0

    def reset(self) -> None:
        """Begin again: a checkpoint is complete."""
        self._has_checkpoint = True
        self._count = 0
        self._board.update(failures=0)

    def none(self) -> None:
        """Note that all systems have answered."""
        self._outages.over()

    def count(self, error: Exception, *, then: str = "") -> None:
        """Count a failure. `then` says what follows if it is retried. If a system is away, this waits for a while, and
        counts nothing once the run has a checkpoint.

        Raises PenstockError if there are too many, or if nothing can be tried again.
        """
        error = self._explained(error)
        if isinstance(error, SystemAwayError) and self._has_checkpoint:
            self._outages.wait(error)
            return
        self._count += 1
        self._board.update(failures=self._count)
        self._board.metrics.retries.inc()
        if self._count <= self._limit:
            text = "failure %d since the %s, at most %d are retried%s: %s"
            logger.warning(text, self._count, self._since, self._limit, then, error)
            if isinstance(error, SystemAwayError):
                self._outages.wait(error)
            return
        times = "A failure" if self._limit == 0 else f"{self._count} failures"
        raise PenstockError(
            f"{times} since the {self._since}; job.retry.max is {self._limit}. The last one: {error}. {self._kept}; "
            "start the job again once the cause is gone"
        ) from error

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
