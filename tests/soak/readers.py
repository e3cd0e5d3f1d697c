"""Readers of what is in the topics and in the local stream, beside the job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from penstock.testing.kafka_cluster import KafkaCluster
from tests.soak.job import PARTITIONS
from tests.soak.oracle import Result, result_of
from tests.soak.waits import DEADLINE_S, BrokenError
from tests.support.streams.kafka import QUIET, TIMEOUT_S


class TopicReader:
    """Reads the committed messages of a topic, each once."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._topic = topic
        self._consumer = Consumer(
            {
                **cluster.client_options(), "group.id": "soak-oracle", "enable.auto.commit": False,
                "isolation.level": "read_committed", "auto.offset.reset": "earliest", "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            },
            logger=QUIET,
        )  # fmt: skip
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._at = dict.fromkeys(range(PARTITIONS), 0)

    def new(self) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
        """(partition, offset, key, value) of everything behind what was read before, up to the end of now."""
        ends = {partition: self._end(partition) for partition in range(PARTITIONS)}
        deadline = time.monotonic() + DEADLINE_S
        while any(self._at[partition] < end for partition, end in ends.items()):
            message = self._consumer.poll(0.5)
            if time.monotonic() > deadline:
                raise BrokenError(f"`{self._topic}` cannot be read to {ends}, only to {self._at}")
            if message is None:
                continue
            error, partition, offset = message.error(), int(message.partition() or 0), int(message.offset() or 0)
            if error is None:
                self._at[partition] = offset + 1
                yield partition, offset, message.key(), message.value()
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at[partition] = max(self._at[partition], offset)

    def results(self) -> list[Result]:
        return [result_of(key, value) for _, _, key, value in self.new()]

    def close(self) -> None:
        self._consumer.close()

    def _end(self, partition: int) -> int:
        """The end of what is stable."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                at = TopicPartition(self._topic, partition)
                return int(self._consumer.get_watermark_offsets(at, TIMEOUT_S, cached=False)[1])
            except KafkaException as error:  # its leader moves
                if time.monotonic() > deadline:
                    raise BrokenError(f"`{self._topic}` has no end: {error}") from error
                time.sleep(0.2)


class LocalReader:
    """Reads the messages of a local stream, each once."""

    def __init__(self, system: LocalSystem, stream: str) -> None:
        self._system, self._stream = system, stream
        self._next: dict[int, int] = {}

    def results(self) -> list[Result]:
        """Everything behind what was read before."""
        found: list[Result] = []
        admin, reader = self._system.admin(), self._system.reader()
        with contextlib.closing(admin), contextlib.closing(reader):
            for partition, ends in admin.offsets(self._stream).items():
                ssp = SystemStreamPartition("local", self._stream, partition)
                wanted = OffsetRange(ssp, max(ends.oldest, self._next.get(partition, 0)), ends.upcoming)
                for chunk in reader.read(wanted, 1000):
                    found += [result_of(key, value) for _, _, key, value, *_ in chunk]
                self._next[partition] = ends.upcoming
        return found
