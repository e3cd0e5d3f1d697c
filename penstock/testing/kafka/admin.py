"""Waits for a broker's first answer."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, PenstockTimeoutError, RetryableError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_POLL_S = 0.02
_SILENT = logging.Logger("penstock.testing.kafka", logging.CRITICAL + 1)
"""Mutes the client, which logs many errors while a server is starting."""


def admin_module() -> ModuleType:
    """Raises ConfigError if the package `confluent-kafka` is not installed."""
    try:
        from confluent_kafka import admin
    except ImportError:
        raise ConfigError(
            "a Kafka broker for tests needs the package `confluent-kafka`: `pip install 'penstock-streams[kafka]'`"
        ) from None
    return admin


def await_answer(port: int, within_s: float, status: Callable[[], int | None], log: Callable[[], str]) -> None:
    """Wait until a broker without TLS answers on this port.

    Raises:
        PenstockTimeoutError: it did not within that time.
        RetryableError: its process ended, with this status.
    """
    deadline = time.monotonic() + within_s
    client = None
    while True:
        ended = status()
        if ended is not None:
            raise RetryableError(f"the Kafka broker ended with status {ended} while it started. Its log:\n{log()}")
        if time.monotonic() > deadline:
            raise PenstockTimeoutError(
                f"the Kafka broker did not answer within {within_s:.0f} s (start_timeout_s). Its log:\n{log()}"
            )
        if client is None:
            client = _client(port) if _listens(port) else None
        if client is not None and _knows_a_broker(client):
            return
        time.sleep(_POLL_S)


def _client(port: int) -> AdminClient:
    client: AdminClient = admin_module().AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}, logger=_SILENT)
    return client


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _knows_a_broker(client: AdminClient) -> bool:
    from confluent_kafka import KafkaException

    try:
        return bool(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return False
