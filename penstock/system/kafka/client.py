"""The clients of a system `kafka`: consumers, producers and admins with Penstock's settings; and one consumer that
fetches many partitions, with the messages of each that were fetched and wait to be read.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, TypeAlias, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.api.messages import UNREADABLE
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.base import RawMessage, RawRecord
from penstock.system.kafka.errors import ClientErrors, explain
from penstock.system.kafka.job_topic import SentHeaders
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.topic_settings import CLIENT_BYTES, COMPRESSION, event_time, own_headers
from penstock.system.ranges import take_chunk

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


_MESSAGE_BYTES = 200


class FetchedPartition:
    """The part of a partition that a reader knows: offsets, and the messages between the first two.

    `next` is the offset that the reader gives next, and every message below `known` was given or is in the buffer. So a
    range that begins between the two continues, and any other one has to be fetched from its beginning.
    """

    __slots__ = ("_buffer", "_size", "at_end", "known", "next", "ssp")

    def __init__(self, ssp: SystemStreamPartition, start: int) -> None:
        self.ssp = ssp
        self.next = start
        self.known = start
        self.at_end = False
        """True if `known` is the end of the partition when it was last looked at."""
        self._buffer: list[RawMessage] = []
        self._size = 0
        """The least number of bytes of the buffer's keys and values."""

    @property
    def waits(self) -> bool:
        return bool(self._buffer)

    @property
    def held_bytes(self) -> int:
        """The approximate memory of the buffer."""
        return self._size + _MESSAGE_BYTES * len(self._buffer)

    def move(self, start: int) -> bool:
        """Move to an offset, without the messages below it. False if it has to be fetched from there."""
        if not self.next <= start <= self.known:
            return False
        if self.next < start:
            del self._buffer[: bisect_left(self._buffer, (start,))]
            self.next = start
        return True

    def restart(self, start: int) -> None:
        self.next = self.known = start
        self._buffer, self._size, self.at_end = [], 0, False

    def accept(self, messages: Sequence[Message]) -> None:
        """Put messages into the buffer. They must follow the known ones."""
        # Without a line of Python for each message without headers: this is where the time goes.
        keys, values = list(map(_KEY, messages)), list(map(_VALUE, messages))
        times = [time for _, time in map(_TIMESTAMP, messages)]
        headers = received_headers(messages)
        found: list[RawMessage] = list(zip(map(_OFFSET, messages), times, keys, values, strict=True))
        if any(headers):
            found = list(map(_with_headers, found, headers))
        if self._buffer:
            self._buffer += found
        else:
            self._buffer, self._size = found, 0
        self._size += sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
        last = found[-1][0] + 1
        if last > self.known:
            self.known, self.at_end = last, False

    def ended(self, offset: int) -> None:
        if offset >= self.known:
            self.known, self.at_end = offset, True

    def take(self, end: int, chunk_messages: int, chunk_bytes: int) -> list[RawMessage]:
        """The next messages below `end`, in the bounds of `SystemReader.read`; none if the buffer has none."""
        buffer = self._buffer
        if not buffer:
            return []
        if len(buffer) <= chunk_messages and buffer[-1][0] < end and self._size < chunk_bytes:
            self._buffer, self._size = [], 0
            return buffer
        inside = bisect_left(buffer, (end,))
        chunk = take_chunk(islice(buffer, inside), chunk_bytes, chunk_messages)
        del buffer[: len(chunk)]
        if not buffer:
            self._size = 0
        return chunk


def _with_headers(message: RawMessage, headers: Sequence[tuple[str, bytes | None]] | None) -> RawMessage:
    if not headers:
        return message
    if headers is UNREADABLE:
        return (*message[:4], UNREADABLE)
    offset, timestamp, key, value = message[:4]
    others = own_headers(headers)
    found = (offset, event_time(headers, timestamp), key, value)
    return (*found, others) if others else found


_TIMESTAMP, _KEY, _VALUE = Message.timestamp, Message.key, Message.value
_OFFSET = cast("Callable[[Message], int]", Message.offset)
"""None only for an object that is not a message."""


_AHEAD_BYTES = 16 << 20
"""The approximate limit for the buffers of partitions that are not being read."""

_Name: TypeAlias = tuple[str, int]


class Fetcher:
    """A consumer, and the partitions that it fetches: those that are assigned. Used by one thread.

    All fetched messages come in one queue. Messages in front of the awaited ones belong to other partitions, and go to
    their places. A place that has its share of `_AHEAD_BYTES` is no longer fetched, and later messages for it are
    dropped: its place does not know of them, and has them fetched again later.
    """

    def __init__(self, options: KafkaOptions, reported: ClientErrors) -> None:
        self._options = options
        self._reported = reported
        self._opened: Consumer | None = None
        self.places: dict[SystemStreamPartition, FetchedPartition] = {}
        """The partitions of this consumer, assigned or not."""
        self._assigned: dict[_Name, FetchedPartition] = {}
        self._resting: set[_Name] = set()
        """The assigned partitions of which no messages are wanted now."""
        self._ever: set[_Name] = set()
        """Every partition that this consumer has fetched. While it is only one, no message is checked for its
        partition."""
        self._held_bytes = 0
        """The bytes in buffers when they were last counted, and those added since."""

    @property
    def client(self) -> Consumer:
        if self._opened is None:
            self._opened = open_consumer(self._options, self._reported)
        return self._opened

    def fetches(self, place: FetchedPartition) -> bool:
        return _name(place) in self._assigned

    @property
    def others(self) -> bool:
        return len(self._assigned) > 1

    def assign(self, places: Iterable[FetchedPartition]) -> None:
        """Fetch them from their known offsets on, even if they are assigned already."""
        wanted = {_name(place): place for place in places}
        self._unassign([name for name in wanted if name in self._assigned])
        if wanted:
            self.client.incremental_assign(
                [TopicPartition(place.ssp.stream, place.ssp.partition, place.known) for place in wanted.values()]
            )
            self._assigned |= wanted
            self._ever |= wanted.keys()

    def want(self, place: FetchedPartition) -> None:
        self._resting.discard(_name(place))
        self._held_bytes = sum(each.held_bytes for each in self.places.values())

    def unassign(self, places: Iterable[FetchedPartition]) -> None:
        """Stop fetching them. Their buffers stay."""
        self._unassign([name for name in map(_name, places) if name in self._assigned])

    def keep(self, partitions: Container[SystemStreamPartition]) -> None:
        """Forget all other partitions."""
        left = [place for place in self.places.values() if place.ssp not in partitions]
        self.unassign(left)
        for place in left:
            del self.places[place.ssp]

    def rest(self, place: FetchedPartition) -> None:
        """Expect no reads of this place for now. Once that is so for all assigned places, nothing is fetched any more:
        brokers would be asked again and again. Until then it costs less to leave it."""
        if self.fetches(place):
            self._resting.add(_name(place))
        if len(self._resting) == len(self._assigned):
            self._unassign(list(self._assigned))

    def behind(self, place: FetchedPartition, offset: int) -> int:
        """The number of offsets behind this one that are known to exist."""
        if place.at_end or not self.fetches(place):
            return place.known - offset
        at = TopicPartition(place.ssp.stream, place.ssp.partition)
        found = self.client.get_watermark_offsets(at, cached=True)
        return max(place.known, -1 if found is None else found[1]) - offset

    def poll(self, place: FetchedPartition, most: int, wait_s: float) -> list[KafkaError]:
        """Take messages that the client has, at most so many, or wait for one, and put them into their places.

        Returns:
            The errors of the place, and those of no partition. Another partition with an error is no longer fetched:
            its own reading meets the error.

        Raises:
            KafkaException: the client failed.
        """
        consumer = self.client
        messages = consumer.consume(most, 0)
        if not messages and (messages := consumer.consume(1, wait_s)) and most > 1:
            messages += consumer.consume(most - 1, 0)
        if not messages:
            return []
        if len(self._ever) == 1 and not any(map(_ERROR, messages)):
            place.accept(messages)
            return []
        return list(self._sort(place, messages))

    def close(self) -> None:
        consumer, self._opened = self._opened, None
        self.places, self._assigned, self._resting = {}, {}, set()
        if consumer is not None:
            consumer.close()

    def _sort(self, reading: FetchedPartition, messages: list[Message]) -> Iterator[KafkaError]:
        """Put messages into their places, in order: the end of a partition counts only for a place that has the
        messages before it. Yields the errors of the place that is read."""
        begin = 0
        for (name, is_message), same in groupby(map(_kind, messages)):
            end = begin + sum(1 for _ in same)
            run, begin = messages[begin:end], end
            place = self._assigned.get(name)
            if not is_message:
                yield from self._errors(reading, place, run)
            elif place is reading or (place is not None and self._has_room(place)):
                before = place.held_bytes
                place.accept(run)
                self._held_bytes += place.held_bytes - before
            elif place is not None:
                self._unassign([name])

    def _errors(
        self, reading: FetchedPartition, place: FetchedPartition | None, messages: Iterable[Message]
    ) -> Iterator[KafkaError]:
        for message in messages:
            error, offset = message.error(), message.offset()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                if place is not None and offset is not None:
                    place.ended(offset)
            elif place is reading or not message.topic():
                yield error
            elif place is not None:
                self.unassign([place])

    def _has_room(self, place: FetchedPartition) -> bool:
        return self._held_bytes < _AHEAD_BYTES and place.held_bytes < _AHEAD_BYTES // len(self._assigned)

    def _unassign(self, names: list[_Name]) -> None:
        if names:
            self.client.incremental_unassign([TopicPartition(*name) for name in names])
            for name in names:
                del self._assigned[name]
            self._resting.difference_update(names)


def _name(place: FetchedPartition) -> _Name:
    return place.ssp.stream, place.ssp.partition


def _kind(message: Message) -> tuple[_Name, bool]:
    return (_TOPIC(message), _PARTITION(message)), message.error() is None


_ERROR = Message.error
_TOPIC = cast("Callable[[Message], str]", Message.topic)
_PARTITION = cast("Callable[[Message], int]", Message.partition)
