"""Questions to a Kafka cluster: topics, offsets, settings. Every call has a time limit and is tried again within it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, NotFoundError, PenstockError, RetryableError
from penstock.retry import Retry, retry
from penstock.system.base import check_stream_name
from penstock.system.kafka.client import open_admin
from penstock.system.kafka.errors import ClientErrors, explain, is_not_found, kafka_error
from penstock.system.kafka.options import KafkaOptions

K = TypeVar("K")
V = TypeVar("V")

_AGAIN = Retry(pause_s=0.02, longest_pause_s=0.5)
_NO_OFFSET = -1
"""What an answer has where no message is as late as the time that was asked for."""
_SPARE_S = 5.0
"""How much longer than the client itself a call is waited for."""


class Cluster:
    """Asks a cluster. Thread-safe. Every call raises RetryableError if the brokers do not answer in time, ConfigError
    if they refuse, and NotFoundError for a topic or partition that does not exist."""

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self._reported = ClientErrors()
        self._client = open_admin(options, self._reported)

    def describe(self, stream: str) -> TopicDescription:
        """The topic of a stream, with its partitions. Raises ConfigError for a name that no stream has."""
        check_stream_name(stream)

        def ask() -> TopicDescription:
            found: TopicDescription = self._one(
                self._client.describe_topics(TopicCollection([stream]), request_timeout=self._limit)
            )
            return found

        return self._call(f"the topic of `{self._name(stream)}` could not be read", ask, stream)

    def partition_count(self, stream: str) -> int:
        """How many partitions the topic has."""
        return len(self.describe(stream).partitions)

    def check(self, ssp: SystemStreamPartition) -> None:
        """Raises ConfigError for a partition of another system, and NotFoundError if there is none."""
        check_system(self.options, ssp)
        check_partition(ssp, self.partition_count(ssp.stream))

    def offsets(
        self, stream: str, partitions: Iterable[int], specs: Iterable[OffsetSpec], *, committed: bool = True
    ) -> list[dict[int, int]]:
        """For each specification, the offset in each partition; -1 where there is none.

        Args:
            stream: its name.
            partitions: which ones.
            specs: what is asked for.
            committed: whether the end is the one of what is committed, or the one of what is written.
        """
        wanted = [TopicPartition(stream, partition) for partition in partitions]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> list[dict[int, int]]:
            asked = [
                self._client.list_offsets(
                    dict.fromkeys(wanted, spec), isolation_level=level, request_timeout=self._limit
                )
                for spec in specs
            ]
            found = [{at.partition: one.offset for at, one in self._all(each).items()} for each in asked]
            if unknown := [partition for own in found for partition, offset in own.items() if offset < _NO_OFFSET]:
                # The client gives these where a partition has no leader, as while its broker starts.
                raise RetryableError(
                    f"the offsets of `{self._name(stream)}` could not be read: the brokers at "
                    f"{self.options.servers} do not know those of partition {unknown[0]} yet"
                )
            return found

        specs = list(specs)
        return self._call(f"the offsets of `{self._name(stream)}` could not be read", ask, stream)

    def create(self, stream: str, partitions: int, settings: Mapping[str, str], replicas: int) -> bool:
        """Create a topic; False if it exists."""
        check_stream_name(stream)
        topic = NewTopic(stream, num_partitions=partitions, replication_factor=replicas, config=dict(settings))

        def ask() -> bool:
            try:
                self._one(self._client.create_topics([topic], **self._limits))
            except KafkaException as error:
                found = kafka_error(error)
                if found is None or found.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
            return True

        return self._call(f"the topic of `{self._name(stream)}` could not be created", ask, stream)

    def delete(self, stream: str) -> None:
        """Delete a topic."""
        self._call(
            f"the topic of `{self._name(stream)}` could not be deleted",
            lambda: self._one(self._client.delete_topics([stream], **self._limits)),
            stream,
        )

    def delete_records(self, before: Mapping[SystemStreamPartition, int]) -> None:
        """Delete the messages before an offset in each partition. -1 deletes all."""
        wanted = [TopicPartition(ssp.stream, ssp.partition, offset) for ssp, offset in before.items()]
        name = ", ".join(sorted({str(ssp.system_stream) for ssp in before}))
        self._call(
            f"messages of `{name}` could not be deleted",
            lambda: self._all(self._client.delete_records(wanted, **self._limits)),
            name.partition(".")[2],
        )

    def settings(self, stream: str) -> dict[str, str]:
        """The settings of a topic, those that hold by default included."""
        resource = ConfigResource(ResourceType.TOPIC, stream)

        def ask() -> dict[str, str]:
            found = self._one(self._client.describe_configs([resource], request_timeout=self._limit))
            return {key: entry.value for key, entry in found.items() if entry.value is not None}

        return self._call(f"the settings of `{self._name(stream)}` could not be read", ask, stream)

    def set(self, stream: str, settings: Mapping[str, str]) -> None:
        """Change settings of a topic; the others stay as they are."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, stream, incremental_configs=entries)
        self._call(
            f"the settings of `{self._name(stream)}` could not be changed",
            lambda: self._one(self._client.incremental_alter_configs([resource], request_timeout=self._limit)),
            stream,
        )

    def topics(self) -> list[str]:
        """The names of all topics."""
        return self._call(
            f"the topics of the system `{self.options.system}` could not be listed",
            lambda: sorted(self._client.list_topics(timeout=self._limit).topics),
        )

    def wait_until(self, what: str, done: Callable[[], bool]) -> None:
        """Wait for what brokers make known to each other a little later. Raises RetryableError after the time limit."""

        def look() -> None:
            if not done():
                raise RetryableError(
                    f"{what}, but the brokers at {self.options.servers} did not all know it within "
                    f"{self.options.timeout_s:g} s"
                )

        retry(look, self._policy)

    def close(self) -> None:
        """Close the connections."""
        self._client.poll(0)
        del self._client

    @property
    def _limit(self) -> float:
        return self.options.timeout_s

    @property
    def _limits(self) -> dict[str, float]:
        """For what changes topics: how long the brokers may take for it as well."""
        return {"request_timeout": self._limit, "operation_timeout": self._limit}

    @property
    def _policy(self) -> Retry:
        return Retry(_AGAIN.pause_s, longest_pause_s=_AGAIN.longest_pause_s, within_s=self._limit)

    def _call(self, doing: str, ask: Callable[[], V], stream: str | None = None) -> V:
        def once() -> V:
            self._client.poll(0)  # else what the client reports would only gather
            try:
                found = ask()
            except KafkaException as error:
                self._client.poll(0)
                raise self._explained(error, doing, stream) from error
            except LateError as error:
                raise RetryableError(
                    f"{doing}: the client for the brokers at {self.options.servers} did not answer within "
                    f"{self._limit + _SPARE_S:g} s"
                ) from error
            self._reported.forget()
            return found

        return retry(once, self._policy)

    def _explained(self, error: KafkaException, doing: str, stream: str | None) -> PenstockError:
        found = kafka_error(error)
        if stream is not None and found is not None:
            if is_not_found(found):
                return no_stream(self.options, stream)
            if found.code() == KafkaError._NOENT:
                self.describe(stream)  # says so if there is none; otherwise no partition has a leader now
                return RetryableError(f"{doing}: {found.str()}")
        return explain(error, doing, self.options, self._reported)

    def _one(self, futures: Mapping[Any, Future[V]]) -> V:
        return next(iter(self._all(futures).values()))

    def _all(self, futures: Mapping[K, Future[V]]) -> dict[K, V]:
        return {key: future.result(self._limit + _SPARE_S) for key, future in futures.items()}

    def _name(self, stream: str) -> str:
        return f"{self.options.system}.{stream}"


def check_system(options: KafkaOptions, ssp: SystemStreamPartition) -> None:
    """Raises ConfigError for a partition of another system."""
    if ssp.system != options.system:
        raise ConfigError(f"`{ssp}` is not a partition of the system `{options.system}`")


def check_partition(ssp: SystemStreamPartition, count: int) -> None:
    """Raises NotFoundError if a stream of `count` partitions does not have this one."""
    if not 0 <= ssp.partition < count:
        raise NotFoundError(f"`{ssp.system_stream}` has the partitions 0 to {count - 1}, not {ssp.partition}")


def no_stream(options: KafkaOptions, stream: str) -> NotFoundError:
    """The error for a topic that is not there."""
    name = f"{options.system}.{stream}"
    return NotFoundError(
        f"the stream `{name}` does not exist on the brokers at {options.servers}; create it with "
        f"`penstock stream create {name} --partitions N`"
    )
