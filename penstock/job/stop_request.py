"""Requests to stop a running driver, from anywhere that reaches the job root."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.errors import NotFoundError, PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

logger = logging.getLogger(__name__)
_NAMESPACE = "stop"
_POLL_SECONDS = 1.0
_JOIN_SECONDS = 5.0


class StopRequests:
    """Requests to stop, each named by the token of the lease of one driver. No other driver has that token, so an
    unanswered request stops no later run."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        self._objects = objects
        self._paths = paths

    def ask(self, token: str, who: str) -> bool:
        """Ask the driver with this lease to stop after its current batch; False if that was done before. Raises
        RetryableError."""
        return self._objects.put_if_absent(self._key(token), who.encode())

    def asked_by(self, token: str) -> str | None:
        """The person who asked the driver with this lease to stop, if there is one. Raises RetryableError."""
        try:
            return self._objects.get(self._key(token)).decode(errors="replace")
        except NotFoundError:
            return None

    def clear(self) -> None:
        """Delete all requests. The holder of the lease calls it: its own requests are answered, and the drivers of the
        others are gone. Raises RetryableError."""
        for key in self._objects.list(self._paths.metadata_folder(_NAMESPACE)):
            self._objects.delete(key)

    def _key(self, token: str) -> str:
        return self._paths.metadata(_NAMESPACE, token)


class StopRequestWatch:
    """Looks for a request to stop every second, on a separate thread, until it is closed or has found one."""

    def __init__(self, requests: StopRequests, token: str, stop: Callable[[], None]) -> None:
        """`stop` is called once, from that thread or from `close`."""
        self._requests = requests
        self._token = token
        self._stop = stop
        self._found = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-stop-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look a last time, end the watch and delete the requests. A failure to delete is only logged: requests that
        stay harm nobody."""
        self._closing.set()
        self._thread.join(_JOIN_SECONDS)
        if not self._found:
            self._look()
        try:
            self._requests.clear()
        except PenstockError as error:
            logger.debug("requests to stop were not deleted: %s", error)

    def _run(self) -> None:
        while not (self._found or self._closing.wait(_POLL_SECONDS)):
            self._look()

    def _look(self) -> None:
        try:
            who = self._requests.asked_by(self._token)
        except PenstockError as error:
            logger.debug("requests to stop could not be read: %s", error)
            return
        if who is not None:
            self._found = True
            logger.info("%s asked this job to stop: it ends after the current batch, with a last commit", who)
            self._stop()
