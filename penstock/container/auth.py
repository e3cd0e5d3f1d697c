"""The job's secret on every call. A call without it is refused before anything of it is read."""

from __future__ import annotations

import hmac
import logging
import threading
from typing import Any

import pyarrow.flight as flight

from penstock.container.protocol import AUTH_HEADER

logger = logging.getLogger(__name__)


class SecretCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls that do not carry the secret. Says so once in the log, however many come."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._expected = f"Bearer {secret}".encode()
        self._lock = threading.Lock()
        self.refused = 0

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> None:
        given = headers.get(AUTH_HEADER) or [""]
        value = given[0] if isinstance(given[0], bytes) else given[0].encode()
        if len(given) == 1 and hmac.compare_digest(value, self._expected):
            return
        with self._lock:
            self.refused += 1
            first = self.refused == 1
        if first:
            logger.warning(
                "refused a call of method %s without the job's secret; further ones are not logged", info.method
            )
        raise flight.FlightUnauthenticatedError("this call does not carry the job's secret")


def call_options(secret: str, timeout_s: float | None = None) -> flight.FlightCallOptions:
    """Options of a call that carries the secret, with a deadline."""
    headers = [(AUTH_HEADER.encode(), f"Bearer {secret}".encode())]
    return flight.FlightCallOptions(timeout=timeout_s, headers=headers)
