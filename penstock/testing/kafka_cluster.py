"""Several real Kafka brokers for tests, on loopback: one cluster, in which topics have replicas.

Example, in a test::

    with KafkaCluster(brokers=3) as cluster:
        producer = confluent_kafka.Producer(cluster.client_options())
        cluster.leader("flights", 0).kill()
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from penstock.errors import ConfigError, RetryableError
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.kafka_server import admin_module, installation, new_id
from penstock.testing.kafka_settings import BrokerNode

_START_S = 120.0
_ANSWER_S = 30.0


class KafkaCluster:
    """Kafka brokers that form one cluster, from `start` (or the beginning of a `with` block) until `close`.

    Each is a `KafkaBroker`, in `brokers`: it can be stopped, killed, frozen and started again while the others run. New
    topics have a replica on each broker, up to three, and a write needs all but one of them. The cluster works as long
    as more than half of its brokers run.

    Args:
        brokers: how many.
        settings: settings of all servers, by their names in `server.properties`.
        heap_mb: the largest heap of each, in MiB.
        start_timeout_s: how long the start may take, in seconds.

    Raises:
        ConfigError: a setting is given that the cluster decides, or a package is missing.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        heap_mb: int = 256,
        start_timeout_s: float = _START_S,
    ) -> None:
        if brokers < 1:
            raise ConfigError(f"a cluster has at least 1 broker, not {brokers}")
        replicas = min(brokers, 3)
        own = {
            **dict.fromkeys(_REPLICATED, replicas),
            **dict.fromkeys(_IN_SYNC, max(1, replicas - 1)),
            **(settings or {}),
        }
        self.brokers = tuple(
            KafkaBroker(settings=own, heap_mb=heap_mb, start_timeout_s=start_timeout_s) for _ in range(brokers)
        )

    def start(self) -> Self:
        """Start all brokers, and wait until each answers.

        Raises:
            NotFoundError: this machine has no Kafka, see `require_kafka`.
            PenstockTimeoutError: a broker did not answer within `start_timeout_s`.
            RetryableError: a broker ended while it started. The message has the end of its log.
        """
        admin_module()
        kafka, cluster = installation(), new_id()
        try:
            places = [broker._take_ports() for broker in self.brokers]  # noqa: SLF001 - two halves of one thing
            voters = ",".join(f"{n}@127.0.0.1:{place.ports['CONTROLLER']}" for n, place in enumerate(places, 1))
            for number, (broker, place) in enumerate(zip(self.brokers, places, strict=True), 1):
                broker._prepare(place, kafka.features, BrokerNode(number, voters), cluster)  # noqa: SLF001
            with ThreadPoolExecutor(len(self.brokers)) as pool:  # none answers before there are more than half
                for done in [pool.submit(broker.start) for broker in self.brokers]:
                    done.result()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all brokers, and remove their data."""
        for broker in self.brokers:
            broker.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    def client_options(self) -> dict[str, Any]:
        """The options of a client of `confluent_kafka` that speaks to the cluster."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def system_config(self, system: str = "kafka") -> dict[str, str]:
        """The configuration of a job whose system of this name is this cluster.

        Args:
            system: the name of the system, as in `app.input("kafka.flights")`.
        """
        return {
            f"systems.{system}.samza.factory": "kafka",
            f"systems.{system}.consumer.bootstrap.servers": self.bootstrap_servers,
        }

    def leader(self, topic: str, partition: int) -> KafkaBroker:
        """The broker that leads a partition now.

        Args:
            topic: the name of the topic.
            partition: the number of the partition.

        Raises:
            RetryableError: no broker leads it at this moment.
        """
        found = self._admin().list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions.get(partition)
        if found is None or found.leader < 1:
            raise RetryableError(f"no broker leads partition {partition} of `{topic}` now")
        return self.brokers[int(found.leader) - 1]

    def elect(self) -> None:
        """Let the first replica of each partition lead it again, as after a restart of its broker."""
        from confluent_kafka import ElectionType

        client = self._admin()  # kept until the answer is there
        client.elect_leaders(ElectionType.PREFERRED).result(_ANSWER_S)

    def _admin(self) -> Any:
        return admin_module().AdminClient(self.client_options())


_REPLICATED = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)
_IN_SYNC = ("min.insync.replicas", "transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr")
