"""Passes a stop of the query to the running batch: Spark tells nobody, so the query is asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.driver.feed.stop import StopRequest
from penstock.errors import PenstockError

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2


class QueryStoppedError(PenstockError):
    """The query was stopped while a batch was processed."""

    def __init__(self, batch: int) -> None:
        super().__init__(
            f"the query was stopped during batch {batch}. All of the batch counts if its checkpoint is complete, "
            "otherwise nothing. The next start gives its rows to the handler"
        )


class QueryStopWatch:
    """Ends the run at once when the query is stopped in a batch, whatever the batch waits for."""

    def __init__(self, stop: StopRequest) -> None:
        self.cancel: Callable[[], None] = _nothing
        self._stop = stop
        self._is_active: Callable[[], bool] | None = None
        self._watches, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-query-stop", daemon=True)
        self._thread.start()

    @contextmanager
    def over(self, batch: int, is_active: Callable[[], bool]) -> Iterator[None]:
        """Ask, while the block runs, if the query is active.

        Raises:
            QueryStoppedError: it was stopped; in the place of the error that its stop led to.
        """
        self._is_active = is_active
        self._watches.set()
        try:
            yield
        except Exception as error:
            if self.seen or not _is_active(is_active):
                raise QueryStoppedError(batch) from error
            raise
        finally:
            self._watches.clear()
            self._is_active = None
        if self.seen:
            raise QueryStoppedError(batch)

    @property
    def seen(self) -> bool:
        return self._stop.immediate.is_set()

    def look(self) -> bool:
        """True if the query is still active. If it is not, the run ends."""
        asked = self._is_active
        if asked is not None and not self.seen and not _is_active(asked):
            logger.info("the query was stopped: its batch ends at once")
            self._stop.immediate.set()
            self._stop.graceful.set()
            self.cancel()
        return not self.seen

    def close(self) -> None:
        self._closed.set()
        self._watches.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._watches.wait()
            if self._closed.wait(_LOOK_SECONDS):
                return
            self.look()


def _nothing() -> None: ...


def _is_active(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except Exception as error:  # Spark is ending or dead: the batch fails by itself
        logger.debug("Spark did not say whether the query is active: %s", error)
        return True
