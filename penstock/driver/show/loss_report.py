"""Reports messages that the application has not processed: lost ones, and dead letters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import counted
from penstock.batch.losses import Loss, Lost
from penstock.driver.show.metrics import JobMetrics
from penstock.errors import FailedMessage

logger = logging.getLogger(__name__)
_EVERY_S = 60.0


class LossReport:
    """Logs each lost message once, whatever a rewind repeats, and counts it. Used by the run loop's thread."""

    def __init__(self, metrics: JobMetrics, is_dense: Callable[[SystemStream], bool]) -> None:
        """`is_dense`: True if the offsets of a stream have no gaps."""
        self._metrics = metrics
        self._is_dense = is_dense
        self._told: dict[SystemStreamPartition, int] = {}
        """Partition → the end of its last loss that was logged."""

    def begin(self, lost: Lost) -> None:
        """Begin an epoch whose state lacks `lost`."""
        self._metrics.lost(lost)

    def skipped(self, losses: Iterable[Loss], lost: Lost) -> None:
        """Report losses that the run skips; `lost` is the total that its state lacks."""
        self._metrics.lost(lost)
        for loss in losses:
            if loss.end <= self._told.get(loss.ssp, 0):
                continue
            self._told[loss.ssp] = loss.end
            dense = self._is_dense(loss.ssp.system_stream)
            logger.error(
                "%s: deleted before the job had read this, and skipped (on.data.loss=skip). The job continues at "
                "offset %d, and its state lacks %s%s of this partition",
                loss,
                loss.end,
                "" if dense else "at most ",
                counted(lost[loss.ssp], "message"),
            )


class DeadLetterLog:
    """Logs the first dead letter of a run with its place and cause, then at most once a minute how many followed."""

    def __init__(self, stream: SystemStream | None, named: Callable[[FailedMessage], FailedMessage]) -> None:
        """`named` adds the name of a failure's message. It may take time, and is called for what is logged alone."""
        self._stream = stream
        self._named = named
        self.total = 0
        self._unsaid = 0
        self._last: FailedMessage | None = None
        self._said_s = 0.0

    def count(self, letters: int, one: FailedMessage | None, now_s: float) -> None:
        """Count the dead letters of a batch, of which `one` is an example. Called after each batch, with monotonic
        `now_s`."""
        is_first = self.total == 0
        self.total += letters
        self._unsaid += letters
        self._last = one or self._last
        if self._unsaid and (is_first or now_s - self._said_s >= _EVERY_S):
            self._said_s = now_s
            self.say(is_first=is_first)

    def say(self, *, is_first: bool = False) -> None:
        """Log the dead letters that were not logged yet."""
        if self._unsaid and self._last is not None:
            count = counted(self._unsaid, "message" if is_first else "more message")
            others = "" if is_first else f", {self.total:,} in this run; one of them"
            logger.warning(
                "%s went to the dead-letter stream `%s`%s: %s, in %s",
                count,
                self._stream,
                others,
                self._last.reason,
                self._named(self._last).place,
            )
        self._unsaid = 0
