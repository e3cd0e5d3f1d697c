"""A cluster as a life has it: its options, its observers, and other people's producers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import RawRecord
from penstock.system.kafka import client
from penstock.system.kafka.system import KafkaSystem
from penstock.testing.simulation.faults import Trouble
from tests.simulation.kafka.admin import AdminClient
from tests.simulation.kafka.cluster import CALM, FACED, Cluster
from tests.simulation.kafka.consumer import Consumer
from tests.simulation.kafka.coordinator import Place
from tests.simulation.kafka.producer import Producer

NAME = "kafka"
ABORTED = b"of an aborted transaction"


def install() -> None:
    """Give Penstock's Kafka system in this process the clients of the simulation."""
    for made in (Consumer, Producer, AdminClient):
        setattr(client, made.__name__, made)


class KafkaOutside:
    """The system `kafka` of a life."""

    def __init__(self, trouble: Trouble, more: Mapping[str, str]) -> None:
        """`more`: further options."""
        self.cluster = Cluster.world = Cluster(trouble)
        self._more = more

    def options(self) -> dict[str, str]:
        return {"samza.factory": "kafka", "consumer.bootstrap.servers": FACED, **self._more}

    def calm(self) -> KafkaSystem:
        return KafkaSystem.configured(NAME, {"consumer.bootstrap.servers": CALM})

    def feeder(self) -> ForeignProducers:
        return ForeignProducers(self.cluster)

    def content(self) -> dict[str, dict[int, list[RawRecord]]]:
        """The committed records, read from the logs themselves, but for topics that Penstock keeps for itself."""
        self.cluster.coordinator.settle()
        found: dict[str, dict[int, list[RawRecord]]] = {}
        for name, topic in sorted(self.cluster.topics.items()):
            if name.startswith("__"):
                continue
            for number, partition in enumerate(topic.partitions):
                entries, _ = partition.read(partition.start, committed=True)
                found.setdefault(name, {})[number] = [(each.timestamp, each.key, each.value) for each in entries]
        return found


class ForeignProducers:
    """Others that write to the inputs: each record alone, or in a transaction, which may stay open for some records;
    and transactions that are aborted, at once or later."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made = 0
        self._open: dict[str, tuple[int, int, dict[Place, int], bool]] = {}
        """Transactional id → producer, epoch, the next number in each partition, and whether it will commit."""

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> None:
        place = ssp.stream, ssp.partition
        for timestamp, key, value, *_ in records:
            choice = self._draw(6)
            if choice <= 1:
                self._cluster.partition(place).append([(timestamp, key, value, ())])
            else:
                if choice == 5:
                    self._write(self._of_kind(commits=False), place, (timestamp, key, ABORTED, ()))
                self._write(self._of_kind(commits=True), place, (timestamp, key, value, ()))
            if self._draw(2) == 0:
                self._end(keeps_one=self._draw(4) == 3)

    def close(self) -> None:
        """End all transactions, and wait for their markers."""
        self._end(keeps_one=False)
        living, coordinator = self._cluster.network.living, self._cluster.coordinator
        while living is not None and any(coordinator.is_ending(_name(n)) for n in range(1, self._made + 1)):
            living[1].sleep(0.1)

    def _end(self, *, keeps_one: bool) -> None:
        """End the open transactions, but perhaps the one that began last."""
        names = list(self._open)
        for name in names[:-1] if keeps_one else names:
            producer, epoch, _, commits = self._open.pop(name)
            self._cluster.coordinator.end(name, producer, epoch, commits=commits)

    def _of_kind(self, *, commits: bool) -> str:
        """An open transaction that will commit, or abort."""
        found = next((name for name, (*_, own) in self._open.items() if own is commits), None)
        if found is not None:
            return found
        self._made += 1
        name = _name(self._made)
        self._open[name] = (*self._cluster.coordinator.initialise(name, 900_000), {}, commits)
        return name

    def _write(self, name: str, place: Place, record: tuple[int, bytes | None, bytes | None, tuple[()]]) -> None:
        producer, epoch, numbers, _ = self._open[name]
        self._cluster.coordinator.add_partitions(name, producer, epoch, {place})
        first = numbers.get(place, 0)
        self._cluster.produce(place, [record], producer, epoch, first, name)
        numbers[place] = first + 1

    def _draw(self, outcomes: int) -> int:
        living = self._cluster.network.living
        return 0 if living is None else living[1].choices.draw(outcomes)


def _name(number: int) -> str:
    return f"foreign-{number}"
