"""The coordinator of transactions: the producers of transactional ids, their epochs, and what they have open.

A producer of version 1 of the protocol, as librdkafka is: it names the partitions of a transaction before it writes to
them, and its epoch grows with each `InitProducerId`, not with each transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import count
from typing import TypeAlias

from confluent_kafka import KafkaError

from tests.simulation.kafka.partition import BrokerError, Partition

Place: TypeAlias = tuple[str, int]
Later: TypeAlias = Callable[[Callable[[], None]], None]
"""Does something a while later."""


class State(Enum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITS = "prepare commit"
    ABORTS = "prepare abort"
    COMMITTED = "complete commit"
    ABORTED = "complete abort"


_PREPARED = (State.COMMITS, State.ABORTS)


@dataclass(slots=True)
class Transactional:
    """A transactional id."""

    producer: int
    epoch: int = 0
    state: State = State.EMPTY
    timeout_ms: int = 60_000
    places: set[Place] = field(default_factory=set)
    """The partitions of the transaction; while it ends, those without a marker."""
    number: int = 0
    """Counts the transactions."""
    begun_ms: int = 0


class Coordinator:
    """Answers the requests of producers. A marker is written later than the reply that its transaction has ended."""

    def __init__(
        self,
        partition: Callable[[Place], Partition | None],
        now_ms: Callable[[], int],
        later: Later,
        watch: Callable[[str, int], None],
    ) -> None:
        """
        Args:
            partition: finds a partition; None if it was deleted.
            later: writes markers a while later.
            watch: has `expire` called for a transactional id after its timeout.
        """
        self._partition = partition
        self._now_ms = now_ms
        self._later = later
        self._watch = watch
        self._producers = count(1000)
        self.ids: dict[str, Transactional] = {}

    def new_producer(self) -> tuple[int, int]:
        """The id and the epoch of a producer without transactions."""
        return next(self._producers), 0

    def initialise(self, name: str, timeout_ms: int) -> tuple[int, int]:
        """`InitProducerId`: the producer of an id, and a new epoch. What is open is aborted first."""
        own = self.ids.get(name)
        if own is None:
            own = self.ids[name] = Transactional(next(self._producers), timeout_ms=timeout_ms)
            return own.producer, own.epoch
        if own.state is State.ONGOING:
            own.epoch += 1  # the producer before writes no more
            self._prepare(own, commits=False)
        if own.state in _PREPARED:
            raise BrokerError(KafkaError.CONCURRENT_TRANSACTIONS)
        own.epoch += 1
        own.state, own.timeout_ms = State.EMPTY, timeout_ms
        return own.producer, own.epoch

    def add_partitions(self, name: str, producer: int, epoch: int, places: set[Place]) -> None:
        """`AddPartitionsToTxn`. It begins a transaction if there is none."""
        own = self._found(name, producer, epoch)
        if own.state in _PREPARED:
            raise BrokerError(KafkaError.CONCURRENT_TRANSACTIONS)
        if own.state is State.ONGOING:
            own.places |= places
            return
        own.state, own.places = State.ONGOING, set(places)
        own.number += 1
        own.begun_ms = self._now_ms()
        self._watch(name, own.number)

    def verify(self, name: str, producer: int, epoch: int, place: Place) -> None:
        """Asked by a partition's leader before the first record of a transaction."""
        own = self.ids.get(name)
        if own is None or own.producer != producer:
            raise BrokerError(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if own.epoch != epoch:
            raise BrokerError(KafkaError.INVALID_PRODUCER_EPOCH)
        if own.state in _PREPARED:
            raise BrokerError(KafkaError.NOT_ENOUGH_REPLICAS)  # older clients try again then
        if own.state is not State.ONGOING or place not in own.places:
            raise BrokerError(KafkaError.INVALID_TXN_STATE)

    def end(self, name: str, producer: int, epoch: int, *, commits: bool) -> None:
        """`EndTxn`. It is answered once the decision is durable; markers come later."""
        own = self._found(name, producer, epoch)
        if own.state is State.ONGOING:
            self._prepare(own, commits=commits)
            return
        prepared, complete = (State.COMMITS, State.COMMITTED) if commits else (State.ABORTS, State.ABORTED)
        if own.state is prepared:
            raise BrokerError(KafkaError.CONCURRENT_TRANSACTIONS)
        if own.state is not complete:
            raise BrokerError(KafkaError.INVALID_TXN_STATE)

    def expire(self, name: str, number: int) -> None:
        """Abort a transaction that is still open after its timeout. Its producer is fenced."""
        own = self.ids[name]
        if own.number == number and own.state is State.ONGOING:
            own.epoch += 1
            self._prepare(own, commits=False)

    def _found(self, name: str, producer: int, epoch: int) -> Transactional:
        own = self.ids.get(name)
        if own is None or own.producer != producer:
            raise BrokerError(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if own.epoch != epoch:
            raise BrokerError(90)  # PRODUCER_FENCED
        return own

    def is_ending(self, name: str) -> bool:
        """True while markers are missing."""
        return self.ids[name].state in _PREPARED

    def settle(self) -> None:
        """Time passes until no transaction is open, and all markers are written."""
        for name, own in self.ids.items():
            self.expire(name, own.number)
            for place in sorted(own.places if own.state in _PREPARED else ()):
                self._mark(own, own.epoch, place)

    def _prepare(self, own: Transactional, *, commits: bool) -> None:
        own.state = State.COMMITS if commits else State.ABORTS
        if not own.places:
            self._complete(own)
        for place in sorted(own.places):
            self._later(partial(self._mark, own, own.epoch, place))

    def _mark(self, own: Transactional, epoch: int, place: Place) -> None:
        """Write the marker to one partition."""
        found = self._partition(place)
        if found is not None:
            found.mark(own.producer, epoch, self._now_ms(), commits=own.state is State.COMMITS)
        own.places.discard(place)
        if not own.places:
            self._complete(own)

    def _complete(self, own: Transactional) -> None:
        own.state = State.COMMITTED if own.state is State.COMMITS else State.ABORTED
