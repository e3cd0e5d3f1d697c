"""Who may call a container: a token on every call, which only this container accepts.

The run's secret is sent to nobody. The token is made of it and of the container's incarnation, so that whoever gets the
address of a container that has ended learns nothing that another container accepts.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from typing import Any

import pyarrow.flight as flight

logger = logging.getLogger(__name__)

AUTH_HEADER = "authorization"


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls that do not carry the container's token. Says so once in the log, however many come.

    gRPC has received a call's first message by then: `gate.py` and TLS bound what strangers send.
    """

    def __init__(self, secret: str, incarnation: str) -> None:
        super().__init__()
        self._expected = _bearer(secret, incarnation)
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
                "refused a call of method %s without this container's token; further ones are not logged", info.method
            )
        raise flight.FlightUnauthenticatedError("this call does not carry the container's token")


def call_options(secret: str, incarnation: str, timeout_s: float | None = None) -> flight.FlightCallOptions:
    headers = [(AUTH_HEADER.encode(), _bearer(secret, incarnation))]
    return flight.FlightCallOptions(timeout=timeout_s, headers=headers)


def _bearer(secret: str, incarnation: str) -> bytes:
    token = hmac.new(secret.encode(), b"penstock container " + incarnation.encode(), hashlib.sha256)
    return b"Bearer " + token.hexdigest().encode()
