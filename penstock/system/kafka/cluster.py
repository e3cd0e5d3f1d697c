"""Questions to a Kafka cluster: topics, offsets, settings. Every call has a time limit and is retried within it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from penstock import errors
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import Retry, check_interrupt, retry
from penstock.system.base import check_stream_name
from penstock.system.kafka.client import LOG, open_admin
from penstock.system.kafka.errors import ClientErrors, explain, is_late, is_not_found, kafka_error, leader_is_old, topic
from penstock.system.kafka.options import KafkaOptions

K = TypeVar("K")
V = TypeVar("V")

_AGAIN = Retry(pause_s=0.02, longest_pause_s=0.5)
_NO_OFFSET = -1
"""The offset in an answer if no message is as late as the time that was asked for."""
_SPARE_S = 5.0
"""A call is waited for so much longer than the client itself waits."""
_LOOK_S = 0.25
"""The interval for checking if the wait for an answer is to end."""
_REFUSED_S = 1.0
"""After so long without an answer, a report that the client is not let in counts. Before, it may be an old one."""
SAY_S = 3.0
"""After so long without an answer, the log names the question."""
_ASK_AGAIN_S = 1.0
"""After so long without an answer, and then as often, the client is made to look for the brokers. Once it saw no
broker, for example while the only one registers again, it would not look again by itself. It is asked for the topic and
not for the cluster: librdkafka aborts the process if an answer has neither brokers nor topics."""
_FIRST_TRY_S = 5.0
"""The time limit for the first client of a call. Each further one may take twice as long."""
_CHANGES = frozenset({"Create", "Delete", "AlterConfigs"})
"""Operations that are not retried with another client: the first try may have had its effect."""
_LIST_S = 5.0
"""The time limit of one request for all topics, which nothing can end earlier."""


class _CurrentQuestion(threading.local):
    """The question of this thread."""

    doing = ""
    stream = ""
    began = 0.0
    limit_s = 0.0


class Cluster:
    """Asks a cluster. Thread-safe. Every call raises RetryableError if the brokers do not answer in time, ConfigError
    if they refuse, and NotFoundError for a topic or partition that does not exist."""

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self._trying = _CurrentQuestion()
        self._has_said = False
        """True if the present question was logged, since the last answer."""
        self._reported = ClientErrors()
        self._client = open_admin(options, self._reported)
        self._clients = 1
        """The number of clients so far. A frame must not keep the client itself: with an error's traceback, the client
        would be part of a cycle. If Python collects it in one of its own callbacks, librdkafka aborts the process."""
        self._replacing = threading.Lock()

    def describe(self, stream: str) -> TopicDescription:
        """The topic of a stream, with its partitions. Raises ConfigError for a name that no stream has."""
        check_stream_name(stream)
        return self._call(
            f"the topic of `{self._name(stream)}` could not be read", lambda: self._one(self._topic(stream)), stream
        )

    def partition_count(self, stream: str) -> int:
        return len(self.describe(stream).partitions)

    def check(self, ssp: SystemStreamPartition) -> None:
        """Raises ConfigError for a partition of another system, and NotFoundError if it does not exist."""
        check_system(self.options, ssp)
        check_partition(ssp, self.partition_count(ssp.stream))

    def offsets(
        self, stream: str, partitions: Iterable[int], specs: Iterable[OffsetSpec], *, committed: bool = True
    ) -> list[dict[int, int]]:
        """The offset in each partition for each specification; -1 if there is none.

        Args:
            committed: the end of a partition is that of the committed messages, not of all.
        """
        wanted = [TopicPartition(stream, partition) for partition in partitions]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> list[dict[int, int]]:
            asked = [
                self._client.list_offsets(
                    dict.fromkeys(wanted, spec), isolation_level=level, request_timeout=self._trying.limit_s
                )
                for spec in specs
            ]
            found = [{at.partition: one.offset for at, one in self._all(each).items()} for each in asked]
            if unknown := [partition for own in found for partition, offset in own.items() if offset < _NO_OFFSET]:
                # The client gives these where a partition has no leader, as while its broker starts.
                raise errors.SystemAwayError(
                    f"the offsets of `{self._name(stream)}` could not be read: the brokers at "
                    f"{self.options.servers} do not know those of partition {unknown[0]} yet"
                )
            return found

        specs = list(specs)
        return self._call(f"the offsets of `{self._name(stream)}` could not be read", ask, stream)

    def create(self, stream: str, partitions: int, settings: Mapping[str, str], replicas: int) -> bool:
        """Create a topic; False if it exists. `replicas`: -1 for the brokers' default."""
        check_stream_name(stream)
        doing = f"the topic of `{self._name(stream)}` could not be created"
        new = NewTopic(stream, num_partitions=partitions, replication_factor=replicas, config=dict(settings))

        def ask() -> bool:
            try:
                self._one(self._client.create_topics([new], **self._limits))
            except KafkaException as error:
                found = kafka_error(error)
                if found is not None and found.code() == KafkaError.INVALID_REPLICATION_FACTOR and replicas < 0:
                    raise errors.RetryableError(
                        f"{doing}: {found.str()}: a broker is away, or the brokers' `default.replication.factor` is "
                        "larger than their number"
                    ) from error
                if found is None or found.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
            return True

        return self._call(doing, ask, stream, "Create")

    def delete(self, stream: str) -> None:
        self._call(
            f"the topic of `{self._name(stream)}` could not be deleted",
            lambda: self._one(self._client.delete_topics([stream], **self._limits)),
            stream,
            "Delete",
        )

    def delete_records(self, before: Mapping[SystemStreamPartition, int]) -> None:
        """Delete the messages before an offset in each partition. -1 deletes all."""
        wanted = [TopicPartition(ssp.stream, ssp.partition, offset) for ssp, offset in before.items()]
        name = ", ".join(sorted({str(ssp.system_stream) for ssp in before}))
        self._call(
            f"messages of `{name}` could not be deleted",
            lambda: self._all(self._client.delete_records(wanted, **self._limits)),
            name.partition(".")[2],
            "Delete",
        )

    def commit(self, group: str, offsets: Mapping[SystemStreamPartition, int]) -> None:
        """Commit offsets for a consumer group, which must have no members."""
        wanted = [TopicPartition(ssp.stream, ssp.partition, offset) for ssp, offset in sorted(offsets.items())]

        def ask() -> None:
            request = [ConsumerGroupTopicPartitions(group, wanted)]
            answer = self._client.alter_consumer_group_offsets(request, request_timeout=self._trying.limit_s)
            for each in self._one(answer).topic_partitions or ():
                if each.error is not None:
                    raise KafkaException(each.error)

        self._call(f"the positions could not be shown as consumer group `{group}`", ask)

    def settings(self, stream: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, stream)

        def ask() -> dict[str, str]:
            found = self._one(self._client.describe_configs([resource], request_timeout=self._trying.limit_s))
            return {key: entry.value for key, entry in found.items() if entry.value is not None}

        return self._call(f"the settings of `{self._name(stream)}` could not be read", ask, stream, "DescribeConfigs")

    def set(self, stream: str, settings: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, stream, incremental_configs=entries)
        self._call(
            f"the settings of `{self._name(stream)}` could not be changed",
            lambda: self._one(self._client.incremental_alter_configs([resource], request_timeout=self._trying.limit_s)),
            stream,
            "AlterConfigs",
        )

    def topics(self) -> list[str]:
        return self._call(
            f"the topics of the system `{self.options.system}` could not be listed",
            lambda: sorted(self._client.list_topics(timeout=min(self._trying.limit_s, _LIST_S)).topics),
        )

    def wait_until(self, what: str, done: Callable[[], bool]) -> None:
        """Wait for a state that brokers make known to each other a little later. Raises RetryableError after the time
        limit."""

        def look() -> None:
            if not done():
                raise errors.RetryableError(
                    f"{what}, but the brokers at {self.options.servers} did not all know it within "
                    f"{self.options.timeout_s:g} s"
                )

        retry(look, self._policy)

    def close(self) -> None:
        self._client.poll(0)
        del self._client

    @property
    def _limit(self) -> float:
        return self.options.timeout_s

    @property
    def _limits(self) -> dict[str, float]:
        """Limits for changes of topics: of the request, and of the brokers' work."""
        return dict.fromkeys(("request_timeout", "operation_timeout"), self._trying.limit_s)

    @property
    def _policy(self) -> Retry:
        return Retry(_AGAIN.pause_s, longest_pause_s=_AGAIN.longest_pause_s, within_s=self._limit)

    def _call(self, doing: str, ask: Callable[[], V], stream: str | None = None, operation: str = "Describe") -> V:
        """`operation`: the right that the client needs on the stream."""
        began, tries = time.monotonic(), itertools.count()
        if (changes := operation in _CHANGES) and stream is not None:
            self._await_an_answer(doing, stream)

        def once() -> V:
            left_s = max(self._limit - (time.monotonic() - began), _LOOK_S)
            limit_s = left_s if changes else min(_FIRST_TRY_S * 2 ** next(tries), left_s)
            self._trying.doing, self._trying.stream = doing, stream or ""
            self._trying.began, self._trying.limit_s = began, limit_s
            client = self._clients
            self._look()  # else what the client reports would only gather
            try:
                found = ask()
            except KafkaException as error:
                self._look()
                if is_late(error):
                    self._replace(client)
                elif stream is not None and leader_is_old(error):
                    self._find_leaders(stream)
                raise self._explained(error, doing, stream, operation) from error
            except LateError as error:
                self._replace(client)
                raise errors.SystemAwayError(
                    f"{doing}: the client for the brokers at {self.options.servers} did not answer within "
                    f"{limit_s + _SPARE_S:g} s{self._reported.why}"
                ) from error
            self._reported.forget()
            self._has_said = False
            return found

        return retry(once, self._policy)

    def _await_an_answer(self, doing: str, stream: str) -> None:
        """Called before a change, because a change that waits for an unresponsive client could not be retried."""
        with suppress(errors.NotFoundError, errors.SystemRefusedError):  # these are answers, too
            self._call(doing, lambda: self._one(self._topic(stream)), stream)

    def _topic(self, stream: str, limit_s: float | None = None) -> Mapping[str, Future[TopicDescription]]:
        limit_s = self._trying.limit_s if limit_s is None else limit_s
        return self._client.describe_topics(TopicCollection([stream]), request_timeout=limit_s)

    def _replace(self, client: int) -> None:
        """Replace the client of this number, which did not answer. librdkafka's may miss brokers for good that have
        left and are back, while a new one sees them at once."""
        with self._replacing:
            if self._clients == client:
                self._client = open_admin(self.options, self._reported)
                self._clients += 1

    def _find_leaders(self, stream: str) -> None:
        """Make the client ask for the leaders of the partitions: otherwise it would use its old answer for minutes."""
        with suppress(KafkaException):
            self._client.list_topics(stream, min(self._limit, _LIST_S))

    def _explained(self, error: KafkaException, doing: str, stream: str | None, operation: str) -> errors.PenstockError:
        found = kafka_error(error)
        if stream is not None and found is not None:
            if is_not_found(found):
                return no_stream(self.options, stream)
            if found.code() == KafkaError._NOENT:
                self.describe(stream)  # says so if there is none; otherwise no partition has a leader now
                return errors.RetryableError(f"{doing}: {found.str()}")
        right = None if stream is None else topic(operation, stream)
        return explain(error, doing, self.options, self._reported, right)

    def _one(self, futures: Mapping[Any, Future[V]]) -> V:
        return next(iter(self._all(futures).values()))

    def _all(self, futures: Mapping[K, Future[V]]) -> dict[K, V]:
        return {key: self._awaited(future) for key, future in futures.items()}

    def _awaited(self, future: Future[V]) -> V:
        now = time.monotonic()
        deadline, again = now + self._trying.limit_s + _SPARE_S, now + _ASK_AGAIN_S
        while not future.done() and (now := time.monotonic()) < deadline:
            try:
                return future.result(_LOOK_S)
            except LateError:
                self._look()
            if now >= again:
                again = now + _ASK_AGAIN_S
                self._topic(self._trying.stream, _ASK_AGAIN_S)  # the answer is not waited for
        return future.result(0)

    def _look(self) -> None:
        """Take the client's reports between two waits. Raises ConfigError if the brokers do not let it in, and
        RetryableError if the call is to end."""
        self._client.poll(0)
        doing, took_s = self._trying.doing, time.monotonic() - self._trying.began
        check_interrupt(doing)
        if took_s >= _REFUSED_S:
            self._reported.check(doing, self.options)
        if took_s >= SAY_S and not self._has_said:
            self._has_said = True
            LOG.warning(
                "the brokers at %s have not answered for %.0f s, and are tried for %g s: %s%s",
                self.options.servers,
                took_s,
                self._limit,
                doing,
                self._reported.why,
            )

    def _name(self, stream: str) -> str:
        return f"{self.options.system}.{stream}"


def check_system(options: KafkaOptions, ssp: SystemStreamPartition) -> None:
    if ssp.system != options.system:
        raise errors.ConfigError(f"`{ssp}` is not a partition of the system `{options.system}`")


def check_partition(ssp: SystemStreamPartition, count: int) -> None:
    """Raises NotFoundError if a stream of `count` partitions does not have this one."""
    if not 0 <= ssp.partition < count:
        raise errors.NotFoundError(f"`{ssp.system_stream}` has the partitions 0 to {count - 1}, not {ssp.partition}")


def no_stream(options: KafkaOptions, stream: str) -> errors.NotFoundError:
    name = f"{options.system}.{stream}"
    return errors.NotFoundError(
        f"the stream `{name}` does not exist on the brokers at {options.servers}; create it with "
        f"`penstock stream create {name} --partitions N`"
    )
