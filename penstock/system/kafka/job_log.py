"""Reads and writes the small topics of Penstock: that of a writer's name (`job_topic`), and that of `owners`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import replace
from typing import Generic, Protocol, TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.base.retry import Retry, check_interrupt, retry
from penstock.errors import NotFoundError, RetryableError
from penstock.system.kafka import errors as access
from penstock.system.kafka.client import open_consumer, open_producer, received_headers
from penstock.system.kafka.cluster import Cluster
from penstock.system.kafka.errors import ClientErrors, away, explain, is_of_group
from penstock.system.kafka.job_topic import ForeignRecords, Headers, JobTopic
from penstock.system.kafka.options import KafkaOptions

logger = logging.getLogger(__name__)

STEP_SECONDS = 1.0
"""One call into the client waits so long: an interrupt of the process is seen between two calls."""
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 15.0
"""Brokers look for transactions whose time is over each 10 seconds."""
_MESSAGES_AT_ONCE = 1000
_SETTINGS = {
    "cleanup.policy": "compact",
    # Written often, compacted soon: a start reads the whole topic.
    "segment.ms": "600000",
    "segment.bytes": str(8 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
}


class TopicState(Protocol):
    """The state of a topic, built from its records in their order."""

    topic: str
    foreign: ForeignRecords

    def add(self, key: bytes | None, value: bytes | None, headers: Headers = None) -> None:
        """Add the next record."""


S = TypeVar("S", bound=TopicState)
T = TypeVar("T")


class TopicLog(Generic[S]):
    """Reads a topic into a state. Each `catch_up` reads the records since the last one."""

    def __init__(self, options: KafkaOptions, state: S, *, committed: bool) -> None:
        """
        Args:
            committed: leave out records of open and aborted transactions. Then `catch_up` waits for the
                transactions that were open when it was called."""
        self._options = options
        self.state = state
        self._reported = ClientErrors()
        self._ends = self._open_consumer("read_uncommitted")
        self._reader = self._open_consumer("read_committed") if committed else self._ends
        self._partition = TopicPartition(state.topic, 0, 0)
        self._position = 0
        self._assigned = False
        self._connected = False

    @property
    def _right(self) -> access.Right:
        return access.topic("Read", self.state.topic)

    @property
    def was_written(self) -> bool:
        """True if anything was ever written to the part that was read."""
        return self._position > 0

    def wait_until_there(self) -> None:
        retry(
            self.catch_up,
            Retry(0.05, longest_pause_s=0.5, within_s=self._options.timeout_s),
            passes=lambda e: isinstance(e, NotFoundError),
        )

    def catch_up(self) -> S:
        """Read to the present end of the topic. A driver that was killed while it published has left a transaction
        open, which hides what is behind it until the brokers end it.

        Raises:
            NotFoundError: there is no such topic.
            RetryableError: the cluster does not answer, or a transaction of another writer stays open for longer than
                the brokers let it.
        """
        within_s = self._options.timeout_s
        deadline = time.monotonic() + within_s
        end = self._end(deadline)
        waiting = self._reader is not self._ends
        if not self._assigned:
            self._reader.assign([self._partition])
            self._assigned = True
        while self._position < end:
            check_interrupt(self._doing)
            first = self._reader.poll(min(STEP_SECONDS, within_s))
            if first is not None:
                for message in [first, *self._reader.consume(_MESSAGES_AT_ONCE, 0)]:
                    self._take(message)
            if self._position < end and waiting and time.monotonic() > deadline:
                waiting, more_s = False, self._options.transaction_s + _LOOK_SECONDS
                deadline, within_s = deadline + more_s, within_s + more_s
                logger.warning(
                    "the topic `%s` of the system `%s` cannot be read to its end yet: a transaction is open, which a "
                    "process that died may have left. The brokers end it within %.0f s",
                    self.state.topic,
                    self._options.system,
                    more_s,
                )
            elif self._position < end and time.monotonic() > deadline:
                raise RetryableError(
                    f"the topic `{self.state.topic}` of the system `{self._options.system}` could not be read up to "
                    f"offset {end} within {within_s:g} s: the brokers at {self._options.servers} do not answer, or a "
                    f"transaction is open{self._reported.why}"
                )
        if said := self.state.foreign.take():
            logger.warning(
                "the topic `%s` of the system `%s` has records that are left out: %s. Penstock alone should have the "
                "right to write to this topic (docs/kafka.md, access rights)",
                self.state.topic,
                self._options.system,
                said,
            )
        return self.state

    def _end(self, deadline: float) -> int:
        while True:
            check_interrupt(self._doing)
            if self._ends is not self._reader or not self._assigned:  # otherwise messages would come
                self._ends.poll(0)
            try:
                if not self._connected:
                    self._ends.list_topics(self.state.topic, STEP_SECONDS)  # or the client waits for a second
                    self._connected = True
                return int(self._ends.get_watermark_offsets(self._partition, STEP_SECONDS, cached=False)[1])
            except KafkaException as error:
                self._reported.check(self._doing, self._options)
                failure = explain(error, self._doing, self._options, self._reported, self._right)
                if isinstance(failure, NotFoundError) and self._exists():
                    failure = away(f"{self._doing}: no broker leads it", self._options, self._reported)
                if not isinstance(failure, RetryableError) or time.monotonic() > deadline:
                    raise failure from error
                time.sleep(_PAUSE_SECONDS)

    def _exists(self) -> bool:
        """True if the brokers know the topic. The client takes a partition without a leader for none at all, for
        example while its broker comes back."""
        try:
            found = self._ends.list_topics(self.state.topic, STEP_SECONDS).topics[self.state.topic]
        except KafkaException:
            return True  # it is not known: the caller asks again
        return found.error is None or found.error.code() == KafkaError.LEADER_NOT_AVAILABLE

    def _take(self, message: Message) -> None:
        offset = message.offset()
        failed = message.error()
        if failed is None:
            self.state.add(message.key(), message.value(), received_headers([message])[0])
            self._position = int(offset or 0) + 1
        elif failed.code() == KafkaError._PARTITION_EOF:
            self._position = max(self._position, int(offset or 0))
        elif failed.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise NotFoundError(
                f"the topic `{self.state.topic}` of the system `{self._options.system}` was deleted, and what writers "
                "of this name have published is no longer known"
            )
        elif not failed.retriable() and not is_of_group(failed):
            failure = explain(failed, self._doing, self._options, self._reported, self._right)
            if not isinstance(failure, RetryableError):
                raise failure

    @property
    def _doing(self) -> str:
        return f"the topic `{self.state.topic}` could not be read"

    def _open_consumer(self, isolation: str) -> Consumer:
        return open_consumer(self._options, self._reported, {"isolation.level": isolation})

    def close(self) -> None:
        self._reader.close()
        if self._ends is not self._reader:
            self._ends.close()


JobLog: TypeAlias = TopicLog[JobTopic]


def created(options: KafkaOptions, state: S) -> TopicLog[S]:
    """The log of a topic, with all its records. The topic is created if it does not exist."""
    log = TopicLog(options, state, committed=False)
    try:
        is_there = True
        try:
            log.catch_up()
        except NotFoundError:
            is_there = False
        if not is_there:  # not while the error is handled, see `apart`
            _create(options, state.topic)
            log.wait_until_there()
    except BaseException:
        log.close()
        raise
    return log


def put(
    options: KafkaOptions,
    topic: str,
    records: Iterable[tuple[bytes, bytes | None]],
    *,
    within_s: float | None = None,
) -> None:
    """Write records, signed, outside of any transaction; when it returns they are on all replicas in sync.

    Args:
        within_s: the time limit in seconds; None: that of the options.

    Raises:
        RetryableError: the outcome is unknown.
    """
    failed: list[KafkaError] = []
    refused: Sequence[KafkaError | KafkaException] = ()
    left = 0

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    doing, reported = f"the topic `{topic}` could not be written", ClientErrors()
    signer = options.signer
    limit_s = options.timeout_s if within_s is None else within_s
    writer = open_producer(options, reported, {"message.timeout.ms": max(1, round(limit_s * 1000))})
    try:
        with suppress(KafkaException):  # or the client waits for half a second
            writer.list_topics(topic, STEP_SECONDS)
        for key, value in records:
            headers = signer.headers(topic, key, value)
            # Not as `on_delivery` behind a callback of None, which the client would take for no report at all.
            writer.produce(topic, value, key, 0, delivered, headers=headers)
        deadline = time.monotonic() + limit_s + STEP_SECONDS
        while flushed(writer) and time.monotonic() < deadline:
            check_interrupt(doing)
            reported.check(doing, options)
        left, refused = len(writer), failed[:1]  # what is given up below is reported as failed, too
    except KafkaException as error:
        refused = [error]
    finally:
        discard(writer)
    if refused:
        limits = replace(options, timeout_ms=max(1, round(limit_s * 1000)))
        raise explain(refused[0], doing, limits, reported, access.topic("Write", topic))
    if left:
        raise away(doing, options, reported, within_s=limit_s)


def flushed(producer: Producer) -> int:
    """Wait a while. Returns the number of messages that the brokers still do not have."""
    try:
        return producer.flush(STEP_SECONDS)
    except SystemError as error:  # the client calls back while it raises
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def _create(options: KafkaOptions, topic: str) -> None:
    replicas = options.topics.get("replication.factor", "-1")
    with closing(Cluster(options)) as cluster:
        cluster.create(topic, 1, _SETTINGS, int(replicas))


def patiently(
    producer: Producer,
    call: Callable[[float], object],
    options: KafkaOptions,
    what: str,
    seconds: float,
    reported: ClientErrors,
) -> int:
    """Repeat a call until it is done: `init_transactions`, `commit_transaction`, `abort_transaction`. Returns the
    number of calls; the client may have sent one request in each.

    Raises:
        KafkaException: an error that repeating does not remove.
        RetryableError: it took longer than `seconds`, or is to end now; the outcome is not known.
        ConfigError: the brokers do not let the client in.
    """
    deadline = time.monotonic() + seconds
    calls = 0
    while True:
        calls += 1
        try:
            call(STEP_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            if time.monotonic() > deadline:
                raise explain(error, what, options, reported) from error
            check_interrupt(what)
            producer.poll(0)
            reported.check(what, options)
            if error.args[0].code() != KafkaError._TIMED_OUT:
                time.sleep(0.05)
        else:
            return calls


def apart(call: Callable[[], T]) -> T:
    """Call on another thread, and wait. To be used while an exception is handled: if the client raises meanwhile, it
    keeps the handled exception for ever, and with it the clients of all frames in its traceback."""
    with ThreadPoolExecutor(1, thread_name_prefix="kafka-call") as thread:
        return thread.submit(copy_context().run, call).result()


def discard(writer: Producer) -> None:
    """Give up a producer and its unsent messages. The broker aborts its transaction in time."""
    with suppress(KafkaException):
        writer.purge()
        writer.flush(0)
