"""The end of a query whose job has drained."""

from __future__ import annotations

import logging
import threading
from typing import NoReturn

from penstock.spark.query.batch import QueryBatch
from penstock.spark.query.offsets import OffsetLog
from penstock.spark.query.stopping import QueryStoppedError

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.1


class DrainedQuery:
    """Stops a query once Spark has committed the batch with which its job has drained.

    Not before, because the handler should get the rows of the batch; and from another thread, because a stop within the
    handler would interrupt it.
    """

    def __init__(self, last: QueryBatch, log: OffsetLog) -> None:
        """
        Args:
            last: the batch.
            log: that of the query.
        """
        self._last = last
        self._log = log
        threading.Thread(target=self._stop, name="penstock-query-drained", daemon=True).start()

    def await_end(self, following: QueryBatch) -> NoReturn:
        """Wait until the query has been stopped. The batch that follows is the first one of the next start.

        Raises:
            QueryStoppedError: always.
        """
        waits = threading.Event()
        while following.is_active():
            waits.wait(_LOOK_SECONDS)
        raise QueryStoppedError(following.number)

    def _stop(self) -> None:
        number, waits = self._last.number, threading.Event()
        try:
            while not self._log.is_committed(number):
                if not self._last.is_active():
                    return
                waits.wait(_LOOK_SECONDS)
            logger.info("the job has drained, and the handler has its last rows, of batch %d: the query stops", number)
            self._last.stop()
        except Exception as error:  # Spark has ended
            logger.warning("the query was not stopped, although its job has drained: %s", error)
