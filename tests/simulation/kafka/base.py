"""The part that all clients have: an address, requests that are tried again, and calls with a time limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata, TopicMetadata

from penstock.testing.simulation.scheduler import Actor, KilledError, active
from tests.simulation.kafka.cluster import CALM, Cluster
from tests.simulation.kafka.network import LostError
from tests.simulation.kafka.partition import BrokerError

T = TypeVar("T")
_BACKOFF_MS = 100.0
_RETRIABLE = frozenset(
    {
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Refusals after which a client sends its request again by itself."""


def failure(code: int, text: str = "", *, fatal: bool = False, retriable: bool = False, aborts: bool = False) -> Any:
    """An error as the client raises it."""
    return KafkaException(KafkaError(code, text or KafkaError(code).str(), fatal, retriable, aborts))


def timed_out(what: str) -> Any:
    return failure(KafkaError._TIMED_OUT, f"simulated: {what} timed out", retriable=True)


class Client:
    """The common part of producers, consumers and admins. Used in the process that made it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.cluster = Cluster.world
        self._is_calm = config["bootstrap.servers"] == CALM
        self._error_cb: Callable[[KafkaError], None] = config.get("error_cb", lambda _: None)
        self._broken = 0
        """Connections that broke since the last poll."""

    @property
    def is_alone(self) -> bool:
        """True if nobody else runs while a request is answered."""
        return self._is_calm or self.cluster.network.living is None

    def ask(self, what: str, request: Callable[[], T], *, changes: bool = False) -> T:
        """One request. Raises LostError and BrokerError."""
        if self.is_alone:
            return request()
        try:
            return self.cluster.ask(what, request, changes=changes)
        except LostError:
            self._broken += 1
            raise

    def insist(
        self, what: str, request: Callable[[], T], *, changes: bool = False, stop: Callable[[], bool] = lambda: False
    ) -> T:
        """A request that is sent again until there is an answer that is no refusal for now, or `stop` says so. Raises
        LostError and BrokerError."""
        while True:
            try:
                return self.ask(what, request, changes=changes)
            except LostError:
                if stop():
                    raise
            except BrokerError as error:
                if error.code not in _RETRIABLE or stop():
                    raise
            self.sleep(float(self.config.get("retry.backoff.ms", _BACKOFF_MS)) / 1000)

    def sleep(self, seconds: float) -> None:
        scheduler = active()
        if scheduler is not None and scheduler.mine() is not None:
            scheduler.sleep(seconds)

    def at_most(self, usual: int, rate: int) -> int:
        """The most messages of one request: now and then, few."""
        living = None if self._is_calm else self.cluster.network.living
        return 1 + living[1].choices.draw(3) if living is not None and living[0].happens(rate) else usual

    def now_s(self) -> float:
        scheduler = active()
        return 0.0 if scheduler is None else scheduler.now_ns / 1e9

    def report(self) -> None:
        """Tell of broken connections: whenever the client is polled."""
        if self._broken:
            self._broken = 0
            self._error_cb(KafkaError(KafkaError._TRANSPORT, "simulated: a connection broke"))

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The topics of the cluster, or one."""

        def request() -> ClusterMetadata:
            found = ClusterMetadata()
            for name in [topic] if topic is not None else sorted(self.cluster.topics):
                one = found.topics[name] = TopicMetadata()
                one.topic = name
                known = self.cluster.topics.get(name)
                if known is None:
                    one.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                for number in range(0 if known is None else len(known.partitions)):
                    one.partitions[number] = PartitionMetadata()
            return found

        return within(Call(self, "metadata", lambda: self.insist("Metadata", request)), timeout)


class Call(Generic[T]):
    """Work of a client that goes on beside its process's calls, and ends with it."""

    def __init__(self, client: Client, name: str, work: Callable[[], T]) -> None:
        self.name = name
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._actor: Actor | None = None

        def run() -> None:
            try:
                self._results.append(work())
            except KilledError:
                raise
            except BaseException as error:
                self._errors.append(error)

        scheduler = active()
        if client.is_alone or scheduler is None:
            run()
        else:
            self._actor = scheduler.spawn(scheduler.me().process, name, run)

    def wait(self, seconds: float | None) -> bool:
        """Wait for the end. False if it has not come in time."""
        scheduler = active()
        if self._actor is None or scheduler is None or self._actor.ended:
            return True
        return scheduler.join(scheduler.me(), self._actor, seconds)

    def result(self) -> T:
        if self._errors:
            raise self._errors[0]
        return self._results[0]


def within(call: Call[T], timeout: float) -> T:
    """The result, within so many seconds; negative: without a limit. Raises KafkaException."""
    if not call.wait(None if timeout < 0 else timeout):
        raise timed_out(call.name)
    try:
        return call.result()
    except LostError:
        raise timed_out(call.name) from None
    except BrokerError as error:
        raise failure(error.code) from None
