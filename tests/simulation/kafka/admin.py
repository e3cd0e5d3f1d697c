"""The admin of the package `confluent_kafka`, as far as Penstock uses it, on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    Node,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
    Uuid,
)
from confluent_kafka.admin import (
    ConfigEntry,
    ConfigResource,
    DeletedRecords,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    TopicDescription,
)

from tests.simulation.kafka.base import Call, Client, failure, timed_out
from tests.simulation.kafka.cluster import Topic
from tests.simulation.kafka.network import LostError
from tests.simulation.kafka.partition import BrokerError, Partition

T = TypeVar("T")
K = TypeVar("K")
_NODE = Node(1, "simulated", 9092)


class AdminClient(Client):
    """A change goes on beside the caller, whose future has the answer later. A question is answered at once."""

    def poll(self, timeout: float = 0) -> int:
        self.report()
        return 0

    def describe_topics(self, topics: TopicCollection, request_timeout: float = 60) -> dict[str, Future[Any]]:
        names = list(topics.topic_names)
        return self._ask_each("DescribeTopics", names, lambda n: _described(self.cluster.topic(n)), request_timeout)

    def describe_configs(
        self, resources: Sequence[ConfigResource], request_timeout: float = 60
    ) -> dict[ConfigResource, Future[Any]]:
        def request(resource: ConfigResource) -> dict[str, ConfigEntry]:
            settings = self.cluster.topic(resource.name).settings
            return {name: ConfigEntry(name, value) for name, value in settings.items()}

        return self._ask_each("DescribeConfigs", resources, request, request_timeout)

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        request_timeout: float = 60,
    ) -> dict[TopicPartition, Future[Any]]:
        committed = isolation_level == IsolationLevel.READ_COMMITTED

        def request(at: TopicPartition) -> ListOffsetsResultInfo:
            found = self.cluster.partition((at.topic, at.partition))
            offset, timestamp = _offset(found, wanted[at], committed=committed)
            return ListOffsetsResultInfo(offset, timestamp, 0)

        return self._ask_each("ListOffsets", wanted, request, request_timeout)

    def create_topics(
        self, topics: Sequence[NewTopic], operation_timeout: float = 0, request_timeout: float = 60
    ) -> dict[str, Future[Any]]:
        new = {each.topic: each for each in topics}

        def request(name: str) -> None:
            self.cluster.create(name, new[name].num_partitions, dict(new[name].config or {}))

        return self._ask_each("CreateTopics", new, request, request_timeout, changes=True)

    def delete_topics(
        self, topics: Sequence[str], operation_timeout: float = 0, request_timeout: float = 60
    ) -> dict[str, Future[Any]]:
        return self._ask_each("DeleteTopics", topics, self.cluster.delete, request_timeout, changes=True)

    def delete_records(
        self, before: Sequence[TopicPartition], operation_timeout: float = 0, request_timeout: float = 60
    ) -> dict[TopicPartition, Future[Any]]:
        def request(at: TopicPartition) -> DeletedRecords:
            return DeletedRecords(self.cluster.partition((at.topic, at.partition)).delete_before(at.offset))

        return self._ask_each("DeleteRecords", before, request, request_timeout, changes=True)

    def incremental_alter_configs(
        self, resources: Sequence[ConfigResource], request_timeout: float = 60
    ) -> dict[ConfigResource, Future[Any]]:
        def request(resource: ConfigResource) -> None:
            entries = {each.name: str(each.value) for each in resource.incremental_configs or ()}
            self.cluster.topic(resource.name).settings.update(entries)

        return self._ask_each("AlterConfigs", resources, request, request_timeout, changes=True)

    def alter_consumer_group_offsets(
        self, groups: Sequence[ConsumerGroupTopicPartitions], request_timeout: float = 60
    ) -> dict[str, Future[Any]]:
        wanted = {each.group_id: each for each in groups}

        def request(group: str) -> ConsumerGroupTopicPartitions:
            given = wanted[group].topic_partitions or []
            self.cluster.groups.setdefault(group, {}).update({(t.topic, t.partition): t.offset for t in given})
            return wanted[group]

        return self._ask_each("OffsetCommit", wanted, request, request_timeout, changes=True)

    def _ask_each(
        self, what: str, keys: Iterable[K], request: Callable[[K], T], limit_s: float, *, changes: bool = False
    ) -> dict[K, Future[T]]:
        """One request about all keys, each of which has an answer of its own."""
        asked = list(keys)
        futures: dict[K, Future[T]] = {key: Future() for key in asked}
        until_s = self.now_s() + limit_s

        def take() -> list[tuple[T | None, Exception | None]]:
            return [_tried(request, key) for key in asked]

        def work() -> None:
            try:
                answers = self._answers(what, take, until_s, changes=changes)
            except Exception as error:
                answers = [(None, error)] * len(asked)
            for key, (answer, refused) in zip(asked, answers, strict=True):
                if refused is not None:
                    futures[key].set_exception(failure(refused.code) if isinstance(refused, BrokerError) else refused)
                else:
                    futures[key].set_result(answer)  # type: ignore[arg-type]

        if changes:
            Call(self, what, work)
        else:
            work()  # at once: the calls of an idle job are many
        return futures

    def _answers(self, what: str, take: Callable[[], T], until_s: float, *, changes: bool) -> T:
        """The answer to a question, which is asked again until then; a change is asked for once."""
        if not changes:
            try:
                return self.insist(what, take, stop=lambda: self.now_s() > until_s)
            except LostError:
                raise timed_out(what) from None
        try:
            return self.ask(what, take, changes=True)
        except LostError:
            raise failure(KafkaError._TRANSPORT, retriable=True) from None


def _tried(request: Callable[[K], T], key: K) -> tuple[T | None, Exception | None]:
    try:
        return request(key), None
    except BrokerError as error:
        return None, error


def _described(topic: Topic) -> TopicDescription:
    partitions = [TopicPartitionInfo(number, _NODE, [_NODE], [_NODE]) for number in range(len(topic.partitions))]
    return TopicDescription(topic.name, Uuid(1, topic.number), False, partitions)


def _offset(found: Partition, spec: OffsetSpec, *, committed: bool) -> tuple[int, int]:
    if spec is OffsetSpec.earliest():
        return found.start, -1
    if spec is OffsetSpec.latest():
        return found.stable if committed else found.end, -1
    return found.at_time(spec._value, committed=committed)
