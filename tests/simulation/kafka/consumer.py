"""The consumer of the package `confluent_kafka`, as far as Penstock uses it, on a simulated cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, Message, TopicPartition

from penstock.testing.simulation.scheduler import active
from tests.simulation.kafka.base import Call, Client, within
from tests.simulation.kafka.coordinator import Place
from tests.simulation.kafka.network import LostError
from tests.simulation.kafka.partition import BrokerError, Entry

_FETCH = 500
_PAUSE_S = 0.05


@dataclass(slots=True)
class _Assigned:
    next: int
    told: int = -1
    """The end of the partition that was met last."""
    failed: bool = False
    paused: bool = False
    ends: tuple[int, int] = (-1001, -1001)


class Consumer(Client):
    """Fetches what is assigned, when it is asked for messages and has none."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._committed = config.get("isolation.level", "read_committed") == "read_committed"
        self._tells_ends = bool(config.get("enable.partition.eof", False))
        self._assigned: dict[Place, _Assigned] = {}
        self._queue: deque[Message] = deque()

    # Partitions.

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._queue.clear()
        self._assigned.clear()
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._assigned[each.topic, each.partition] = _Assigned(each.offset)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        gone = {(each.topic, each.partition) for each in partitions}
        for place in gone:
            del self._assigned[place]
        self._queue = deque(each for each in self._queue if (each.topic(), each.partition()) not in gone)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._assigned[each.topic, each.partition].paused = True

    def close(self) -> None:
        self._assigned.clear()
        self._queue.clear()

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int] | None:
        """The first offset, and the end that this consumer can read up to."""
        place = partition.topic, partition.partition
        if cached:
            own = self._assigned.get(place)
            return None if own is None else own.ends

        def request() -> tuple[int, int]:
            try:
                found = self.cluster.partition(place)
            except BrokerError:
                raise BrokerError(KafkaError._UNKNOWN_PARTITION) from None
            return found.start, found.stable if self._committed else found.end

        return within(Call(self, "offsets", lambda: self.insist("ListOffsets", request)), timeout)

    # Messages.

    def poll(self, timeout: float = -1) -> Message | None:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        self.report()
        if not self._queue and timeout != 0 and self._assigned:
            self._fetch_within(timeout)
        elif not self._queue and timeout > 0:
            self.sleep(timeout)
        return [self._queue.popleft() for _ in range(min(num_messages, len(self._queue)))]

    def _fetch_within(self, timeout: float) -> None:
        until_s = self.now_s() + timeout
        while True:
            with suppress(LostError):
                self.ask("Fetch", self._fetch)
            left_s = until_s - self.now_s()
            if self._queue or (timeout >= 0 and left_s <= 0):
                return
            if active() is None:
                return
            self.sleep(_PAUSE_S if timeout < 0 else min(_PAUSE_S, left_s))

    def _fetch(self) -> None:
        """One look at all partitions that are assigned."""
        most = self.at_most(_FETCH, 60)
        for place, own in list(self._assigned.items()):
            if own.failed or own.paused:
                continue
            try:
                partition = self.cluster.partition(place)
            except BrokerError:
                continue  # the client goes on looking for the topic
            if not partition.start <= own.next <= partition.end:
                own.failed = True
                self._queue.append(_told(place, own.next, KafkaError._AUTO_OFFSET_RESET))
                continue
            own.ends = partition.start, partition.end
            entries, own.next = partition.read(own.next, committed=self._committed, most=most)
            self._queue.extend(_message(place, each) for each in entries)
            bound = partition.stable if self._committed else partition.end
            if own.next >= bound and own.told != own.next and not entries:
                own.told = own.next
                if self._tells_ends:
                    self._queue.append(_told(place, own.next, KafkaError._PARTITION_EOF))


def _message(place: Place, entry: Entry) -> Message:
    return Message(
        topic=place[0],
        partition=place[1],
        offset=entry.offset,
        key=entry.key,
        value=entry.value,
        headers=list(entry.headers) or None,
        timestamp=(TIMESTAMP_CREATE_TIME, entry.timestamp),
    )


def _told(place: Place, offset: int, code: int) -> Message:
    return Message(topic=place[0], partition=place[1], offset=offset, error=KafkaError(code))
