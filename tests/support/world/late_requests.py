"""Writers of Kafka whose requests to end a transaction are held up in the network at random, and an oracle.

A request that is held up is sent again by the client. The broker gets the first one at a random point of a later
transaction. To run many of them::

    python -m tests.support.world.late_requests --held 10000 --seed 1
"""

from __future__ import annotations

import argparse
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from random import Random

from confluent_kafka import KafkaException

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import Retry, retry
from penstock.errors import FencedError, PenstockError, RetryableError
from penstock.runtime.stage.sink import OutputWriters
from penstock.state.backends.changelog_partition import Changelog
from penstock.system.base import Progress, RawRecord, WriterIdentity
from penstock.system.kafka.system import KafkaSystem
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.kafka_cluster import KafkaCluster
from tests.support.streams.kafka import TIMEOUT_S, new_name, new_topic
from tests.support.streams.kafka_proxy import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    HeldRequest,
    KafkaProxy,
)
from tests.support.streams.kafka_writers import FOREVER, options_of, read

_PARTITIONS = 3
_POINTS = (PRODUCE, ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, None)
"""A late request comes right before a request of these, or at a point of a later transaction."""
_MOST_LATE = 8
_TRIES = 20
_AGAIN = Retry(pause_s=0.02, tries=_TRIES)
Part = tuple[int, int]
"""A number of a transaction, and of the attempt at it."""


class StopError(Exception):
    """Ends a transaction from within."""


@dataclass(slots=True)
class Verdict:
    """The counts of a life. All but the first three are to be zero."""

    held: int = 0
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    shown: int = 0
    """Messages of aborted transactions that readers see."""
    reordered: int = 0
    unfenced: int = 0
    failed: int = 0
    """Errors that repeating does not remove."""
    answers: Counter[int] = field(default_factory=Counter)
    """The brokers' answers to late requests, by their error code."""

    @property
    def wrong(self) -> int:
        return self.lost + self.doubled + self.torn + self.shown + self.reordered + self.unfenced + self.failed

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class LateLife(ABC):
    """A writer behind a proxy of its own. Each transaction has a number, and is attempted until it is committed."""

    def __init__(self, broker: KafkaBroker | KafkaCluster, seed: int) -> None:
        self.random = Random(seed)
        self.broker = broker
        self.proxy = KafkaProxy.before(broker)
        backoff_ms = self.random.choice((20, 50, 100))
        self.system = KafkaSystem.configured(
            "kafka",
            {"consumer.bootstrap.servers": self.proxy.address, "producer.retry.backoff.ms": str(backoff_ms)},
        )
        topic = new_topic(broker, _PARTITIONS, FOREVER)
        self.ssps = [SystemStreamPartition("kafka", topic, number) for number in range(_PARTITIONS)]
        self.identity = WriterIdentity(new_name("late"), 1)
        self.verdict = Verdict()
        self._armed: list[HeldRequest] = []
        self._late: list[HeldRequest] = []
        self._released: list[HeldRequest] = []
        self._holds = True
        self._places: dict[int, list[SystemStreamPartition]] = {}
        self._outcomes: dict[Part, bool | None] = {}

    @abstractmethod
    def attempt(self, part: Part, ssps: Sequence[SystemStreamPartition], *, stops: bool) -> bool | None:
        """Write the record of the part into each partition, in one transaction. Returns whether it is committed; None
        if that is not known, and the next attempt writes it again. Raises StopError if it is to."""

    @abstractmethod
    def close(self) -> None:
        """Close the writer."""

    def run(self, held: int) -> Verdict:
        """Hold up so many requests, and compare what readers see with what was committed."""

        def transactions() -> None:
            number = 0
            while self.verdict.held < held:
                self._transaction(number)
                number += 1

        return self._judged(transactions)

    def walk(self, transactions: int) -> Verdict:
        """So many transactions with the fates that the proxy gives, and then a later epoch that takes over."""
        self._holds = False

        def walked() -> None:
            for number in range(transactions):
                self._transaction(number)
            self._is_taken_over(transactions)

        return self._judged(walked)

    def _judged(self, work: Callable[[], None]) -> Verdict:
        try:
            try:
                work()
            except PenstockError:
                traceback.print_exc()
                self.verdict.failed += 1
            for each in [*self._late, *self._released]:
                if each.has_come:
                    self._note(each)
            self._judge()
        finally:
            self.close()
            self.proxy.close()
        return self.verdict

    def _is_taken_over(self, number: int) -> None:
        """From the fence on, nothing of this writer is committed any more, and it says so."""
        successor = WriterIdentity(self.identity.name, self.identity.epoch + 1)
        with closing(self.system.admin()) as admin:
            retry(lambda: admin.fence(self.ssps[0].stream, successor), _AGAIN)
        self._places[number] = self.ssps
        for attempt in range(_TRIES):
            part = number, attempt
            self._outcomes[part] = False
            try:
                self.attempt(part, self.ssps, stops=False)
            except FencedError:
                return
        self.verdict.unfenced += 1

    def _transaction(self, number: int) -> None:
        ssps = sorted(self.random.sample(self.ssps, self.random.randint(1, len(self.ssps))))
        self._places[number] = ssps
        for attempt in range(1000):
            self._arm()
            part = number, attempt
            self._outcomes[part] = None
            try:
                self._outcomes[part] = self.attempt(part, ssps, stops=self.random.random() < 0.4)
            except StopError:
                self._outcomes[part] = False
            self._disarm()
            if self._outcomes[part]:
                return
        raise AssertionError(f"transaction {number} was never committed")

    def record(self, part: Part) -> RawRecord:
        number, attempt = part
        return 1000 + number, b"%d" % number, b"%d" % attempt

    def pause(self) -> None:
        """A point within a transaction at which late requests may come."""
        while self._late and self.random.random() < 0.4:
            late = self._late.pop(self.random.randrange(len(self._late)))
            self._note(late)

    def _arm(self) -> None:
        if not self._armed and self._holds:
            self._armed = [self.proxy.hold(END_TXN) for _ in range(self.random.choice((0, 1, 1, 1, 2, 3)))]

    def _disarm(self) -> None:
        """Decide when the broker gets what was held up."""
        come = [each for each in self._armed if each.has_come]
        self._armed = [each for each in self._armed if not each.has_come]
        self.verdict.held += len(come)
        for each in come:
            point = self.random.choice(_POINTS)
            if point is None:
                self._late.append(each)
            else:
                self.proxy.release_before(point, each)
                self._released.append(each)
        while len(self._late) > _MOST_LATE:
            self._note(self._late.pop(0))
        while len(self._released) > _MOST_LATE:
            self._note(self._released.pop(0))

    def _note(self, held: HeldRequest) -> None:
        answer = held.release()  # of a version without tags: the throttle time, then the error
        self.verdict.answers[int.from_bytes(answer[4:6], signed=True)] += 1

    def _judge(self) -> None:
        """Compare with a plain list of what was committed."""
        self.verdict.committed = sum(outcome is True for outcome in self._outcomes.values())
        self.verdict.aborted = sum(outcome is False for outcome in self._outcomes.values())
        self.verdict.unknown = sum(outcome is None for outcome in self._outcomes.values())
        options = options_of(self.broker)
        seen = {
            ssp: [(int(key or b""), int(value or b"")) for *_, key, value in read(options, ssp)] for ssp in self.ssps
        }
        for ssp, parts in seen.items():
            known = [part for part in parts if self._outcomes[part] is not None]
            expected = [part for part, done in self._outcomes.items() if done and ssp in self._places[part[0]]]
            times = Counter(parts)
            self.verdict.lost += sum(part not in times for part in expected)
            self.verdict.doubled += sum(count - 1 for count in times.values())
            self.verdict.shown += sum(self._outcomes[part] is False for part in times)
            self.verdict.reordered += known != expected
        for part in self._outcomes:
            there = [part in seen[ssp] for ssp in self._places[part[0]]]
            self.verdict.torn += any(there) and not all(there)


class OnceLife(LateLife):
    """Publishes with marks, as the outbox does: what has an unknown outcome is looked up."""

    def __init__(self, broker: KafkaBroker | KafkaCluster, seed: int) -> None:
        super().__init__(broker, seed)
        self._writer = KafkaWriter(self.system.options, self.identity)

    def attempt(self, part: Part, ssps: Sequence[SystemStreamPartition], *, stops: bool) -> bool | None:
        mark = Progress(1, part[0])
        try:
            with self._writer.begin() as begun:
                for ssp in ssps:
                    begun.mark(ssp, mark)
                for ssp in ssps:
                    begun.append(ssp, [self.record(part)])
                    if self.random.random() < 0.7:
                        _let_send(self._writer)
                    self.pause()
                if stops:
                    raise StopError
        except RetryableError:
            return retry(lambda: self._writer.progress(ssps), _AGAIN).get(ssps[0]) == mark
        return True

    def close(self) -> None:
        self._writer.close()


class LeastLife(LateLife):
    """Appends as the last stage does for outputs that are at least once."""

    def __init__(self, broker: KafkaBroker | KafkaCluster, seed: int) -> None:
        super().__init__(broker, seed)
        self._writers = OutputWriters({"kafka": self.system}, self.identity)

    def attempt(self, part: Part, ssps: Sequence[SystemStreamPartition], *, stops: bool) -> bool | None:
        last = ssps[-1]
        try:
            self._writers.append({ssp: self._records(part, stops=stops and ssp is last) for ssp in ssps})
        except RetryableError:
            return None
        return True

    def _records(self, part: Part, *, stops: bool) -> Iterator[RawRecord]:
        self.pause()
        yield self.record(part)
        if self.random.random() < 0.7:
            writer = self._writers._writers["kafka"]
            assert isinstance(writer, KafkaWriter)
            _let_send(writer)
        self.pause()
        if stops:
            raise StopError

    def close(self) -> None:
        self._writers.close()


class ChangelogLife(LateLife):
    """Appends to a changelog, which is of one partition. Nothing aborts it but errors."""

    def __init__(self, broker: KafkaBroker | KafkaCluster, seed: int) -> None:
        super().__init__(broker, seed)
        del self.ssps[1:]
        self._changelog = Changelog(self.system, self.ssps[0], self.identity)

    def attempt(self, part: Part, ssps: Sequence[SystemStreamPartition], *, stops: bool) -> bool | None:
        time_ms, key, value = self.record(part)[:3]
        assert key is not None
        try:
            self._changelog.append(time_ms, [(key, value)], self.pause)
        except RetryableError:
            return None
        return True

    def close(self) -> None:
        self._changelog.close()


def _let_send(writer: KafkaWriter) -> None:
    """Wait until the brokers have all messages. The next call of the writer says why they do not take them."""
    with suppress(KafkaException, SystemError):  # the latter from a client that calls back while it raises
        writer.session.producer().flush(TIMEOUT_S)


LIVES: Sequence[type[LateLife]] = (OnceLife, LeastLife, ChangelogLife)


def run_lives(broker: KafkaBroker, seeds: Iterable[int], held: int, at_once: int) -> Iterator[tuple[int, str, Verdict]]:
    """A life for each seed, of one kind after the other, several at once. Returns the seeds, kinds and verdicts."""

    def run(seed: int) -> tuple[int, str, Verdict]:
        kind = LIVES[seed % len(LIVES)]
        return seed, kind.__name__, kind(broker, seed).run(held)

    with ThreadPoolExecutor(at_once) as threads:
        yield from threads.map(run, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold up requests to end a transaction.")
    parser.add_argument("--held", type=int, default=10_000, help="how many in all")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--of-a-life", type=int, default=50, help="how many in each life")
    parser.add_argument("--at-once", type=int, default=6, help="lives at once")
    given = parser.parse_args()
    began, total = time.monotonic(), Verdict()
    seeds = range(given.seed, given.seed + -(-given.held // given.of_a_life))
    with KafkaBroker(heap_mb=512) as broker:
        for seed, kind, verdict in run_lives(broker, seeds, given.of_a_life, given.at_once):
            total += verdict
            mark = "WRONG" if verdict.wrong else "right"
            print(f"{time.monotonic() - began:7.1f} s  seed {seed} {kind}: {mark}, {verdict}", flush=True)
            if verdict.wrong:
                print(f"to repeat it: --seed {seed} --held {given.of_a_life} --of-a-life {given.of_a_life}", flush=True)
    print(f"in all: {total}", flush=True)
    raise SystemExit(1 if total.wrong else 0)


if __name__ == "__main__":
    main()
