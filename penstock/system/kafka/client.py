"""The clients of a system `kafka`: consumers, producers and admins with Penstock's settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from penstock.api.messages import UNREADABLE
from penstock.errors import ConfigError
from penstock.system.base import RawRecord
from penstock.system.kafka.errors import ClientErrors, explain
from penstock.system.kafka.job_topic import SentHeaders
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.topic_settings import CLIENT_BYTES, COMPRESSION

C = TypeVar("C")

LOG = logging.getLogger("penstock.system.kafka")
_RAISED = frozenset({"FATAL", "TXNERR"})
"""Log lines of librdkafka that the next call of the producer raises: among them that another epoch has taken over."""
_COMMON: Mapping[str, Any] = {
    "client.id": "penstock",
    "log_level": 2,  # a failed connection is logged ten times a second otherwise; errors name the last one
}
_CONSUMER: Mapping[str, Any] = {
    "queued.max.messages.kbytes": 16_384,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    "topic.metadata.propagation.max.ms": 2_000,
}
_CONSUMER_DECIDED: Mapping[str, Any] = {
    "group.id": "penstock",  # required by librdkafka; nothing is committed, and no group is joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
_PRODUCER: Mapping[str, Any] = {"message.max.bytes": CLIENT_BYTES, "linger.ms": 5, "compression.type": COMPRESSION}
_BACKOFFS = {"retry.backoff.ms": 100.0, "retry.backoff.max.ms": 1000.0}
"""librdkafka's defaults."""
_LEAST_OF_BACKOFF = 0.75
"""librdkafka varies a backoff by 20 %."""
_PRODUCER_DECIDED: Mapping[str, Any] = {"enable.idempotence": True, "acks": "all"}


class _ClientLog:
    """The `logger` of a client. Errors that a call raises as well are logged for debugging only, and no line is more
    than a warning: the client goes on trying, and an error that ends a call is raised."""

    def log(self, level: int, message: str, *arguments: str) -> None:
        """Log a line of the client. `arguments`: its kind, the client's name, the text."""
        raised = bool(arguments) and arguments[0] in _RAISED
        LOG.log(logging.DEBUG if raised else min(level, logging.WARNING), message, *arguments)


def open_consumer(options: KafkaOptions, reported: ClientErrors, decided: Mapping[str, Any] | None = None) -> Consumer:
    """A consumer without partitions; it fetches nothing before they are assigned.

    Args:
        reported: gets the errors that the client reports in the background, whenever it is polled.
        decided: properties that replace those of the options.

    Raises:
        ConfigError: a value is wrong.
    """
    settings = {**_COMMON, **_CONSUMER, **options.consumer, **_CONSUMER_DECIDED, **(decided or {})}
    return _opened(Consumer, settings, options, reported, "consumer")


def open_producer(options: KafkaOptions, reported: ClientErrors, decided: Mapping[str, Any] | None = None) -> Producer:
    """An idempotent producer; as `open_consumer`. `decided` may hold a transactional id."""
    settings = {**_COMMON, **_PRODUCER, **options.producer, **_PRODUCER_DECIDED, **(decided or {})}
    return _opened(Producer, settings, options, reported, "producer")


def resent_after_s(options: KafkaOptions) -> float:
    """A producer that has no answer to a request waits so long, in seconds, before it sends the request again. A call
    that took less time has sent its request once."""
    backoff_ms, most_ms = (float(options.producer.get(name, default)) for name, default in _BACKOFFS.items())
    return _LEAST_OF_BACKOFF * min(backoff_ms, most_ms) / 1000


def open_admin(options: KafkaOptions, reported: ClientErrors) -> AdminClient:
    """An admin, with the consumer's options. Poll it now and then, or `reported` gets nothing."""
    return _opened(AdminClient, {**_COMMON, **options.admin}, options, reported, "consumer")


def _opened(
    make: Callable[[dict[str, Any]], C],
    settings: Mapping[str, Any],
    options: KafkaOptions,
    reported: ClientErrors,
    side: str,
) -> C:
    try:
        return make({**settings, "error_cb": reported, "logger": _ClientLog()})
    except KafkaException as error:
        if isinstance(failed := explain(error, f"`systems.{options.system}.{side}.*`", options), ConfigError):
            raise failed from None
        raise failed from error


_Found = Sequence[tuple[str, bytes | None]] | None
_HEADERS = cast("Callable[[Message], _Found]", Message.headers)


def received_headers(messages: Sequence[Message]) -> list[_Found]:
    """The headers of each message; None where it has none, and `UNREADABLE` where a name is not UTF-8. To be called
    once for a message: after the client's error, its headers have a hole that no code may touch."""
    found: list[_Found] = []
    rest = iter(messages)
    while len(found) < len(messages):
        try:
            found.extend(map(_HEADERS, rest))
        except (SystemError, UnicodeDecodeError) as error:
            if not isinstance(error.__cause__ or error, UnicodeDecodeError):
                raise
            found.append(UNREADABLE)
    return found


def sent_parts(record: RawRecord) -> tuple[int, bytes | None, bytes | None, SentHeaders]:
    """The timestamp, key, value and headers of a record. Raises ConfigError unless the client can take it."""
    try:
        timestamp, key, value, *more = record
        (headers,) = more or ((),)
        pairs: SentHeaders = list(headers)
    except (TypeError, ValueError) as error:
        raise malformed(record) from error
    if not isinstance(timestamp, int) or not all(part is None or isinstance(part, bytes) for part in (key, value)):
        raise malformed(record)
    return timestamp, key, value, pairs


def malformed(record: object) -> ConfigError:
    """The error for a record that the client cannot take."""
    return ConfigError(
        "a record is not (timestamp in epoch milliseconds: int, key: bytes or None, value: bytes or None) and perhaps "
        "headers: "
        f"{record!r:.200}; nothing was appended"
    )
