"""Reports lost messages in the log and the metrics of the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.losses import Loss, Lost
from penstock.driver.show.metrics import JobMetrics
from penstock.wording import counted

logger = logging.getLogger(__name__)


class LossReport:
    """Reports each lost message once, whatever a rewind repeats. Used by the run loop's thread."""

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
