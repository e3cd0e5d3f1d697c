"""Reads and writes the topic of a writer's name (`job_topic`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.errors import NotFoundError, RetryableError
from penstock.retry import Retry, retry
from penstock.system.kafka.client import open_consumer, open_producer
from penstock.system.kafka.cluster import Cluster
from penstock.system.kafka.errors import ClientErrors, explain
from penstock.system.kafka.job_topic import JobTopic
from penstock.system.kafka.options import KafkaOptions

STEP_SECONDS = 1.0
"""How long one call into the client waits: an interrupt of the process is seen between two calls."""
_MESSAGES_AT_ONCE = 1000
_SETTINGS = {
    "cleanup.policy": "compact",
    # What is written often is compacted soon: a start reads the whole topic.
    "segment.ms": "600000",
    "segment.bytes": str(8 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
}


class JobLog:
    """What a job's topic says. Each `catch_up` reads what was added since the last one."""

    def __init__(self, options: KafkaOptions, topic: str, *, committed: bool) -> None:
        """
        Args:
            committed: whether records of open and aborted transactions are left out. Then `catch_up` waits for the
                transactions that were open when it was called.
        """
        self._options = options
        self.state = JobTopic(topic)
        self._ends = _open_consumer(options, "read_uncommitted")
        self._reader = _open_consumer(options, "read_committed") if committed else self._ends
        self._partition = TopicPartition(topic, 0, 0)
        self._position = 0
        self._assigned = False
        self._connected = False

    @classmethod
    def created(cls, options: KafkaOptions, topic: str) -> Self:
        """As the constructor, for all records; the topic is created if there is none."""
        log = cls(options, topic, committed=False)
        try:
            log.catch_up()
        except NotFoundError:
            _create(options, topic)
            log.wait_until_there()
        except BaseException:
            log.close()
            raise
        return log

    def wait_until_there(self) -> None:
        """Wait for a topic that was just created."""
        retry(
            self.catch_up,
            Retry(0.05, longest_pause_s=0.5, within_s=self._options.timeout_s),
            passes=lambda e: isinstance(e, NotFoundError),
        )

    def catch_up(self) -> JobTopic:
        """Read to the end that the topic has now.

        Raises:
            NotFoundError: there is no such topic.
            RetryableError: the cluster does not answer, or a transaction of another writer stays open.
        """
        within_s = self._options.timeout_s
        deadline = time.monotonic() + within_s
        end = self._end(deadline)
        if not self._assigned:
            self._reader.assign([self._partition])
            self._assigned = True
        while self._position < end:
            first = self._reader.poll(min(STEP_SECONDS, within_s))
            if first is not None:
                for message in [first, *self._reader.consume(_MESSAGES_AT_ONCE, 0)]:
                    self._take(message)
            if self._position < end and time.monotonic() > deadline:
                raise RetryableError(
                    f"the topic `{self.state.topic}` of the system `{self._options.system}` could not be read up to "
                    f"offset {end} within {within_s:g} s: the cluster does not answer, or a transaction is open"
                )
        return self.state

    def _end(self, deadline: float) -> int:
        while True:
            try:
                if not self._connected:
                    self._ends.list_topics(self.state.topic, STEP_SECONDS)  # or the client waits for a second
                    self._connected = True
                return int(self._ends.get_watermark_offsets(self._partition, STEP_SECONDS, cached=False)[1])
            except KafkaException as error:
                failure = explain(error, f"the topic `{self.state.topic}` could not be read", self._options)
                if not isinstance(failure, RetryableError) or time.monotonic() > deadline:
                    raise failure from error

    def _take(self, message: Message) -> None:
        offset = message.offset()
        failed = message.error()
        if failed is None:
            self.state.add(message.key(), message.value())
            self._position = int(offset or 0) + 1
        elif failed.code() == KafkaError._PARTITION_EOF:
            self._position = max(self._position, int(offset or 0))
        elif failed.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise NotFoundError(
                f"the topic `{self.state.topic}` of the system `{self._options.system}` was deleted, and what writers "
                "of this name have published is no longer known"
            )
        elif not failed.retriable():
            failure = explain(failed, f"the topic `{self.state.topic}` could not be read", self._options)
            if not isinstance(failure, RetryableError):
                raise failure

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        if self._ends is not self._reader:
            self._ends.close()


def _is_missing(error: Exception) -> bool:
    return isinstance(error, NotFoundError)


def put(options: KafkaOptions, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Write records outside of any transaction; when it returns they are on all replicas in sync.

    Raises:
        RetryableError: it is not known whether they are there.
    """
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    writer = open_producer(options, ClientErrors(), {"message.timeout.ms": options.timeout_ms})
    try:
        with suppress(KafkaException):  # or the client waits for half a second
            writer.list_topics(topic, STEP_SECONDS)
        for key, value in records:
            writer.produce(topic, value, key, 0, None, delivered)
        deadline = time.monotonic() + options.timeout_s + STEP_SECONDS
        while writer.flush(STEP_SECONDS) and time.monotonic() < deadline:
            pass
        left = len(writer)
    finally:
        discard(writer)
    if failed:
        raise explain(failed[0], f"the topic `{topic}` could not be written", options)
    if left:
        raise RetryableError(f"the topic `{topic}` of the system `{options.system}` could not be written in time")


def _create(options: KafkaOptions, topic: str) -> None:
    """Create the topic unless it is there."""
    replicas = options.topics.get("replication.factor", "-1")
    with closing(Cluster(options)) as cluster:
        cluster.create(topic, 1, _SETTINGS, int(replicas))


def patiently(call: Callable[[float], object], options: KafkaOptions, what: str, seconds: float) -> object:
    """Call what may be called again until it is done: `init_transactions`, `commit_transaction`, `abort_transaction`.

    Raises:
        KafkaException: what does not pass by calling again.
        RetryableError: it took longer than `seconds`; the outcome is not known.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call(STEP_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            if time.monotonic() > deadline:
                raise RetryableError(
                    f"{what}: the system `{options.system}` has not answered for {seconds:.0f} s"
                ) from error
            if error.args[0].code() != KafkaError._TIMED_OUT:
                time.sleep(0.05)


def discard(writer: Producer) -> None:
    """Let go of a producer and of what it has not sent. The broker aborts its transaction in time."""
    with suppress(KafkaException):
        writer.purge()
        writer.flush(0)


def _open_consumer(options: KafkaOptions, isolation: str) -> Consumer:
    return open_consumer(
        options,
        ClientErrors(),
        {
            "isolation.level": isolation,
        },
    )
