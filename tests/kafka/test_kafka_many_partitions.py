"""Hundreds of partitions in one process: a few consumers for all of them, every message once and in order."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import zip_longest
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.portions import Portion
from penstock.runtime.stage.source import InputReaders
from penstock.system.base import OffsetRange, SystemAdmin
from penstock.system.kafka import client
from penstock.system.kafka.client import open_consumer
from penstock.system.kafka.errors import ClientErrors
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.reader import KafkaReader
from penstock.system.kafka.system import KafkaSystem
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.processes.containers import wait_until
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic
from tests.support.streams.kafka_streams import kafka_system

pytestmark = pytest.mark.kafka
PARTITIONS = 200


class Room:
    """A topic, and what a `read_committed` reader must find in it."""

    def __init__(self, broker: KafkaBroker, partitions: int) -> None:
        self.system: KafkaSystem = kafka_system(broker)
        self.admin: SystemAdmin = self.system.admin()
        self.topic = new_topic(broker, partitions, {"retention.ms": "-1"})
        self.there: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(partitions)}
        self._number = 0
        common = {**broker.client_options(), "linger.ms": 5}
        self._plain = Producer(common, logger=QUIET)
        self._transactional = Producer({**common, "transactional.id": uuid.uuid4().hex}, logger=QUIET)
        self._transactional.init_transactions(TIMEOUT_S)

    def ssp(self, partition: int) -> SystemStreamPartition:
        return SystemStreamPartition("kafka", self.topic, partition)

    def put(self, counts: dict[int, int], kind: str = "plain", size: int = 0) -> None:
        """Append so many messages, plainly or in one transaction that is committed or aborted."""
        producer = self._plain if kind == "plain" else self._transactional
        if kind != "plain":
            producer.begin_transaction()
        self._append(producer, counts, kind != "abort", size)
        if kind == "commit":
            producer.commit_transaction(TIMEOUT_S)
        elif kind == "abort":
            producer.abort_transaction(TIMEOUT_S)
        wait_until(lambda: not self.admin.open_transactions(self.topic), "the markers are there")

    def _append(self, producer: Producer, counts: dict[int, int], stays: bool, size: int) -> None:
        def delivered(error: object, message: object) -> None:
            assert error is None, error
            if stays:
                offset, partition, value = message.offset(), message.partition(), message.value()  # type: ignore[attr-defined]
                self.there[partition].append((offset, value))

        for partition, count in counts.items():
            for _ in range(count):
                self._number += 1
                value = b"%d-" % self._number + b"x" * size
                producer.produce(self.topic, value, b"k", partition, on_delivery=delivered)
        assert producer.flush(TIMEOUT_S) == 0

    def ends(self) -> dict[int, int]:
        return {partition: ends.upcoming for partition, ends in self.admin.offsets(self.topic).items()}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Consumer]:
    """Every consumer that a reader opens."""
    found: list[Consumer] = []

    def counted(options: KafkaOptions, reported: ClientErrors) -> Consumer:
        found.append(open_consumer(options, reported))
        return found[-1]

    monkeypatch.setattr("penstock.system.kafka.client.open_consumer", counted)
    return found


@pytest.fixture
def room(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[Room]:
    room = Room(kafka_broker, request.param)
    yield room
    room.admin.close()


def threads_of_clients() -> set[str]:
    """The threads of Kafka's clients in this process."""
    found = set()
    for each in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has ended
            if Path(f"/proc/self/task/{each}/comm").read_text().startswith("rdk:"):
                found.add(each)
    return found


def open_files() -> set[str]:
    """The files and sockets that this process has open."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{each}"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("room", [PARTITIONS], indirect=True)
def test_batches_of_200_partitions_that_come_and_go(room: Room, opened: list[Consumer]) -> None:
    rng = random.Random(11)
    found: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(PARTITIONS)}
    position = dict.fromkeys(range(PARTITIONS), 0)
    threads_before, files_before = threads_of_clients(), open_files()  # those of other tests come to an end meanwhile
    threads, files = [], []
    with closing(InputReaders({"kafka": room.system})) as readers:
        for batch in range(12):
            mine = [p for p in range(PARTITIONS) if batch % 3 == 0 or (p + batch) % 3]
            for kind in ("plain", "abort", "commit")[: 1 + batch % 3]:
                room.put({p: rng.randrange(4) for p in range(PARTITIONS)}, kind)
            most = rng.choice([2, 10_000]) if batch < 10 else 10_000
            mine = mine if batch < 11 else list(range(PARTITIONS))
            ends = room.ends()
            portions = [
                Portion(OffsetRange(room.ssp(p), position[p], ends[p]), most) for p in mine if position[p] < ends[p]
            ]
            readers.expect(portions)
            for portion in portions:
                partition, start, left = portion.offsets.ssp.partition, portion.offsets.start, most
                with closing(readers.read(portion, partition)) as chunks:
                    for chunk in chunks:
                        found[partition] += [(offset, value or b"") for offset, _, _, value, *_ in chunk]
                        start, left = chunk[-1][0] + 1, left - len(chunk)
                position[partition] = portion.offsets.end if left else start
            if batch:
                threads.append(len(threads_of_clients() - threads_before))
                files.append(len(open_files() - files_before))
        assert position == room.ends()
    assert found == room.there
    assert len(opened) == 8
    assert min(threads) > 8
    # A client's connections come and go. A client more in each batch would be more than 20 threads in seven batches.
    assert max(threads[-4:]) < max(threads[:4]) + 15, threads
    assert max(files[-4:]) < max(files[:4]) + 30, files


@pytest.mark.parametrize("turns", [7, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("room", [20], indirect=True)
def test_what_has_no_room_is_fetched_again(
    room: Room, turns: int, opened: list[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffers of partitions that are not being read hold little; readings are interleaved, left, and go back."""
    monkeypatch.setattr(client, "_AHEAD_BYTES", 20_000)
    rng = random.Random(5)
    for kind in ("plain", "commit", "abort", "plain", "commit"):
        room.put({p: rng.randrange(60) for p in range(20)}, kind, size=rng.choice([10, 500]))
    ends = room.ends()

    def wanted(partition: int, start: int) -> list[tuple[int, bytes]]:
        return [each for each in room.there[partition] if each[0] >= start]

    with closing(KafkaReader(room.system.options)) as reader:
        for turn in range(turns):
            starts = {
                p: rng.randrange(ends[p] + 1) if turn % 2 else 0 for p in range(20) if turn < 3 or rng.random() < 0.7
            }
            ranges = {p: OffsetRange(room.ssp(p), start, ends[p]) for p, start in starts.items()}
            if turn % 5:
                reader.expect(list(ranges.values()))
            group = rng.choice([1, 3])
            order = rng.sample(sorted(ranges), len(ranges))
            for first in range(0, len(order), group):
                together = order[first : first + group]
                found: dict[int, list[tuple[int, bytes]]] = {p: [] for p in together}
                most = rng.choice([3, 50, 1000])
                for chunks in zip_longest(*(reader.read(ranges[p], most) for p in together)):
                    for partition, chunk in zip(together, chunks, strict=True):
                        found[partition] += [(offset, value or b"") for offset, _, _, value, *_ in chunk or ()]
                assert found == {p: wanted(p, starts[p]) for p in together}
            partition = rng.randrange(20)
            if wanted(partition, 0):  # left after its first list
                left = next(iter(reader.read(OffsetRange(room.ssp(partition), 0, ends[partition]), 2)))
                assert [message[0] for message in left] == [offset for offset, _ in wanted(partition, 0)[:2]]
        assert sum(each.held_bytes for own in reader._fetchers for each in own.places.values()) < 4_000_000
    assert len(opened) <= 8
