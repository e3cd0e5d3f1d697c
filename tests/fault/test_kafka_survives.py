"""Whole jobs from Kafka to Kafka, whatever happens to the broker, the topics, the producers and the driver.

Each compares what a read_committed reader sees with a plain computation over what was produced.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.admin.state.repartition import plan_repartition, repartition
from penstock.errors import FencedError, IncompatibleError, NotFoundError, PenstockError
from penstock.system.kafka.job_log import TopicLog
from penstock.system.kafka.job_topic import JobTopic, job_topic
from penstock.system.kafka.options import parse_options
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import QUIET, TIMEOUT_S
from tests.support.tools.fixtures import fixture_of
from tests.support.world.kafka_world import KEYS, Given, Guarantee, KafkaWorld, expected, read_committed

pytestmark = [pytest.mark.kafka, pytest.mark.wing("outbox")]
KAFKA = "systems.kafka"
Make = Callable[..., KafkaWorld]


broker = fixture_of(KafkaBroker, using=(), scope="module")
"""A broker of this file, which comes and goes."""


@pytest.fixture
def make(broker: KafkaBroker, tmp_path: Path) -> Iterator[Make]:
    """Makes worlds on that broker."""
    if not broker.running:
        broker.start()
    worlds: list[KafkaWorld] = []

    def world(guarantee: Guarantee = "exactly-once", **config: object) -> KafkaWorld:
        worlds.append(KafkaWorld(broker, tmp_path, guarantee, **config))  # type: ignore[arg-type]
        return worlds[-1]

    yield world
    for each in worlds:
        each.close()


def stopped(world: KafkaWorld) -> None:
    """The broker is stopped, and comes back."""
    world.broker.stop()
    world.later(1, world.broker.start)


def killed(world: KafkaWorld) -> None:
    """The broker is killed, and comes back."""
    world.broker.kill()
    world.later(1, world.broker.start)


def frozen(world: KafkaWorld) -> None:
    """The broker stands still for some time."""
    world.broker.freeze()
    world.later(4, world.broker.resume)


FAULTS: dict[str, Callable[[KafkaWorld], None]] = {"stopped": stopped, "killed": killed, "frozen": frozen}
FAST = (("killed", "exactly-once", "append"),)
CASES = [
    (fault, guarantee, step)
    for fault in FAULTS
    for guarantee, steps in (
        ("exactly-once", ("source", "append", "commit")),
        ("at-least-once", ("source", "commit")),
    )
    for step in steps
]


@pytest.mark.parametrize(
    ("fault", "guarantee", "step"),
    [pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow]) for case in CASES],
)
def test_the_broker_goes_and_comes_back(make: Make, fault: str, guarantee: Guarantee, step: str) -> None:
    world = make(guarantee)
    world.put(60)
    driver = world.driver()
    came = world.at(driver, step, lambda: FAULTS[fault](world), nth=4)
    world.run(driver)
    assert came.count(step) >= 4
    world.check()


@pytest.mark.parametrize(
    ("guarantee", "step"),
    [
        ("at-least-once", "source"),
        ("at-least-once", "commit"),
        ("exactly-once", "commit"),
        ("exactly-once", "source"),
    ],
)
@pytest.mark.slow
def test_a_run_that_is_stopped_without_its_broker_and_the_next_one(make: Make, guarantee: Guarantee, step: str) -> None:
    world = make(guarantee, **{f"{KAFKA}.consumer.default.api.timeout.ms": 2000})
    world.more |= {"job.retry.max": 0, "task.commit.timeout.ms": 15_000}
    world.put(60)
    driver = world.driver()
    ended = threading.Event()

    def stop() -> None:
        wait_until(lambda: driver.board.outage is not None or ended.is_set(), "the job waits")
        driver.stop.request()

    def leave() -> None:
        world.broker.stop()
        world.later(0, stop)

    world.at(driver, step, leave, nth=3)
    began = time.monotonic()
    failure: PenstockError | None = None
    try:
        driver.loop.run()
    except PenstockError as error:
        failure = error
    finally:
        ended.set()
        world.join()
        world.kill(driver)
    assert time.monotonic() - began < 120
    if failure is not None:  # a publication waits as long as a commit may take
        assert guarantee == "exactly-once"
        assert not isinstance(failure, FencedError)
        # A try that has not failed by then names no broker.
        assert re.search(rf"{world.broker.bootstrap_servers}|It waits for `kafka.totals", str(failure))
    world.broker.start()
    world.more.clear()
    world.run(world.driver())
    world.check()


@pytest.mark.slow
def test_200_partitions_in_and_out(make: Make) -> None:
    world = make(partitions=200)
    world.more |= {"job.batch.max.messages": 1000}
    world.produce([(b"key%d" % (n % 977), b"%d" % (n % 100)) for n in range(4000)])
    world.run(world.driver())
    world.check()


class TestTopics:
    """Topics that are deleted, created again, or grown."""

    @pytest.mark.slow
    def test_an_input_created_again_while_the_job_runs(self, make: Make) -> None:
        world = make()
        world.put(40)
        driver = world.driver(until_latest=False)
        foreign = [(b"k%d" % (n % KEYS), b"7777") for n in range(50)]
        right = expected(world.given)

        def again() -> None:
            world.admin.delete_stream(world.source)
            world.admin.create_stream(world.source, world.partitions)
            world.produce(foreign)

        world.at(driver, "source", again, nth=3)
        with pytest.raises((IncompatibleError, NotFoundError), match=world.source):
            world.run(driver)
        # Nothing of the new topic was committed, and what was published is the beginning of what is right.
        for key, totals in world.found().items():
            assert totals == right[key][: len(totals)]
        with pytest.raises(IncompatibleError, match="created again"):
            world.run(world.driver())
        world.more[f"streams.kafka.{world.source}.samza.reset.offset"] = "true"
        world.more[f"streams.kafka.{world.source}.samza.offset.default"] = "oldest"
        world.run(world.driver())
        found = world.found()
        assert sum(map(len, found.values())) >= len(foreign)
        read = Counter(key for key, totals in found.items() for before, now in pairs(totals) if now - before == 7777)
        assert read == Counter(key for key, _ in foreign)

    @pytest.mark.parametrize("runs", [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_an_input_that_has_grown_is_refused(self, make: Make, broker: KafkaBroker, runs: bool) -> None:
        world = make()
        world.put(40)

        def grow() -> None:
            admin = AdminClient(broker.client_options(), logger=QUIET)
            admin.create_partitions([NewPartitions(world.source, 4)])[world.source].result(TIMEOUT_S)
            wait_until(lambda: world.admin.partition_count(world.source) == 4, "the new partitions")

        driver = world.driver(until_latest=not runs)
        if runs:
            world.at(driver, "source", grow, nth=3)
            with pytest.raises(IncompatibleError, match="partitions"):
                world.run(driver)
            right = expected(world.given)
            assert all(totals == right[key][: len(totals)] for key, totals in world.found().items())
        else:
            world.run(driver)
            world.check()
            grow()
        with pytest.raises(IncompatibleError, match="partitions"):
            world.run(world.driver())

    @pytest.mark.slow
    def test_a_job_goes_on_with_a_task_for_each_new_partition(self, make: Make, broker: KafkaBroker) -> None:
        world = make()
        world.put(40)
        world.run(world.driver())
        admin = AdminClient(broker.client_options(), logger=QUIET)
        admin.create_partitions([NewPartitions(world.source, 4)])[world.source].result(TIMEOUT_S)
        wait_until(lambda: world.admin.partition_count(world.source) == 4, "the new partitions")
        world.partitions = 4
        wait_until(lambda: len(world.known_partitions()) == 4, "the producer to know the new partitions")
        world.put(40)
        config = world.load(world.keys, ["totals"])
        with plan_repartition(world.app, 4, overrides=config.resolved.values) as planned:
            assert planned.facts().notes[0].startswith("new partitions are read from their oldest messages")
            repartition(planned)
        world.run(world.driver())
        world.check()

    @pytest.mark.slow
    def test_an_output_that_grows_is_written_on(self, make: Make, broker: KafkaBroker) -> None:
        world = make()
        world.put(40)

        def grow() -> None:
            admin = AdminClient(broker.client_options(), logger=QUIET)
            admin.create_partitions([NewPartitions(world.output, 4)])[world.output].result(TIMEOUT_S)

        driver = world.driver()
        world.at(driver, "append", grow, nth=3)
        world.run(driver)
        world.check()

    @pytest.mark.slow
    def test_an_output_that_is_deleted_ends_the_run_and_gets_what_it_is_owed(self, make: Make) -> None:
        world = make()
        world.put(40)
        driver = world.driver()
        world.at(driver, "append", lambda: world.admin.delete_stream(world.output), nth=3)
        with pytest.raises(PenstockError, match=world.output):
            world.run(driver)
        world.admin.create_stream(world.output, world.partitions)
        world.run(world.driver())
        right = expected(world.given)
        assert all(totals == right[key][-len(totals) :] for key, totals in world.found().items())
        assert world.found()


class TestOthers:
    """Actions of others in the same cluster."""

    @pytest.mark.parametrize(
        ("guarantee", "step"),
        [
            ("exactly-once", "commit"),
            pytest.param("exactly-once", "append", marks=pytest.mark.slow),
            pytest.param("at-least-once", "append", marks=pytest.mark.slow),
            pytest.param("at-least-once", "commit", marks=pytest.mark.slow),
        ],
    )
    def test_somebody_initialises_the_producers(
        self, make: Make, broker: KafkaBroker, guarantee: Guarantee, step: str
    ) -> None:
        world = make(guarantee)
        world.put(60)
        fenced: list[str] = []

        def fence() -> None:
            for each in producers(world):
                other = Producer(broker.client_options() | {"transactional.id": each}, logger=QUIET)
                other.init_transactions(TIMEOUT_S)
                fenced.append(each)

        driver = world.driver()
        world.at(driver, step, fence, nth=4)
        world.run(driver)
        assert fenced
        world.check()

    @pytest.mark.slow
    @pytest.mark.parametrize("commits", [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_an_open_transaction_in_the_input(self, make: Make, broker: KafkaBroker, commits: bool) -> None:
        world = make()
        world.put(20)
        other = Producer(broker.client_options() | {"transactional.id": uuid.uuid4().hex}, logger=QUIET)
        other.init_transactions(TIMEOUT_S)
        other.begin_transaction()
        in_between = [(b"k%d" % n, b"5") for n in range(KEYS)]
        for key, value in in_between:
            other.produce(world.source, value, key, sum(key) % world.partitions)
        other.flush(TIMEOUT_S)
        before = list(world.given)
        world.put(20)
        world.run(world.driver())
        assert world.found() == expected(before)  # it waits: what is behind would overtake what may be committed
        if commits:
            other.commit_transaction(TIMEOUT_S)
            world.given[20:20] = in_between
        else:
            other.abort_transaction(TIMEOUT_S)
        wait_until(lambda: not world.admin.open_transactions(world.source), "the end of the transaction")
        world.run(world.driver())
        world.check()

    @pytest.mark.slow
    def test_a_consumer_group_of_the_same_name(self, make: Make, broker: KafkaBroker) -> None:
        world = make()
        world.put(20)
        settings = {**broker.client_options(), "group.id": "penstock", "auto.offset.reset": "earliest"}
        other = Consumer(settings, logger=QUIET)
        try:
            other.subscribe([world.source])
            for _ in range(20):
                assert other.poll(TIMEOUT_S) is not None
            other.commit(asynchronous=False)
            committed = {at.partition: at.offset for at in other.committed(other.assignment(), TIMEOUT_S)}
            world.run(world.driver())
            assert {at.partition: at.offset for at in other.committed(other.assignment(), TIMEOUT_S)} == committed
            world.put(20)
            world.run(world.driver())
            assert len([other.poll(TIMEOUT_S) for _ in range(20)]) == 20
        finally:
            other.close()
        world.check()


class TestInputs:
    """Inputs that lose messages."""

    @pytest.mark.slow
    @pytest.mark.parametrize("skips", [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_messages_that_retention_took_first(self, make: Make, broker: KafkaBroker, skips: bool) -> None:
        world = make()
        world.more[f"streams.kafka.{world.source}.on.data.loss"] = "skip" if skips else "fail"
        world.put(60)
        left: dict[int, int] = {}

        def take() -> None:
            ends = world.admin.offsets(world.source)
            left.update({n: own.upcoming - 2 for n, own in ends.items()})
            admin = AdminClient(broker.client_options(), logger=QUIET)
            asked = admin.delete_records([TopicPartition(world.source, n, end) for n, end in left.items()])
            for each in asked.values():
                each.result(TIMEOUT_S)

        driver = world.driver()
        world.at(driver, "source", take, nth=3)
        if not skips:
            with pytest.raises(NotFoundError, match="were deleted before the job had read them"):
                world.run(driver)
            return
        world.run(driver)
        lost = world.checkpoints[-1].lost
        assert sum(lost.values()) > 0
        found = world.found()
        assert sum(map(len, found.values())) + sum(lost.values()) == 60

    @pytest.mark.slow
    def test_compacted_input_with_gaps(self, make: Make) -> None:
        settings = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
        world = make(source=settings)
        for _ in range(3):
            world.put(40)
            time.sleep(0.2)  # so that the next message begins another segment
        wait_until(lambda: len(read_committed(world.broker, world.source)) < 100, "compaction")
        world.run(world.driver())
        right = expected(read_committed(world.broker, world.source))
        assert {key: len(own) for key, own in world.found().items()}.keys() == right.keys()
        assert sum(map(len, world.found().values())) < 120

    def test_no_keys_headers_tombstones_and_empty_values(self, make: Make) -> None:
        world = make()
        world.produce([(None, b"1"), (None, None), (b"k1", None), (b"k1", b"2"), (b"", b"4")] * 3)
        world.produce([(b"k2", b"3"), (None, b"9"), (b"k2", None)] * 3, headers=[("h", b"1"), ("none", None)])
        world.run(world.driver())
        world.check()

    @pytest.mark.slow
    @pytest.mark.parametrize("guarantee", ["exactly-once", pytest.param("at-least-once", marks=pytest.mark.slow)])
    def test_messages_of_20_mb(self, make: Make, guarantee: Guarantee) -> None:
        world = make(guarantee)
        large = bytes(20_000_000)
        world.produce([(b"k1", large), (b"k2", b"2"), (b"k2", large), (b"k1", b"3")])
        world.run(world.driver())
        world.check()
        assert sorted(len(value or b"") for _, value in read_committed(world.broker, world.output))[-2:] == [
            len(large),
            len(large),
        ]


class TestTakeOver:
    """A driver that stands still while another one takes over writes nothing when it wakes up; `test_kafka_fences` has
    its writers, at each of their steps."""

    @pytest.mark.parametrize(
        ("guarantee", "step"),
        [("exactly-once", "commit"), ("exactly-once", "publish"), ("at-least-once", "commit")],
    )
    @pytest.mark.slow
    def test_the_first_one_writes_nothing(self, make: Make, guarantee: Guarantee, step: str) -> None:
        world = make(guarantee)
        world.put(60)
        after: list[list[Given]] = []

        def take_over() -> None:
            world.store.heal()
            second = world.driver()
            second.loop.run()
            world.kill(second)
            after.append(read_committed(world.broker, world.output))

        first = world.driver()
        world.at(first, step, take_over, nth=2 if step == "publish" else 3)
        with pytest.raises(FencedError):
            world.run(first)
        assert after == [read_committed(world.broker, world.output)]
        world.check()


def pairs(totals: list[int]) -> list[tuple[int, int]]:
    """Each total and the one before."""
    return list(zip([0, *totals], totals, strict=False))


def producers(world: KafkaWorld) -> list[str]:
    """The transactional ids that the job's topic names."""
    options = parse_options("kafka", {"consumer.bootstrap.servers": world.broker.bootstrap_servers})
    with closing(TopicLog(options, JobTopic(job_topic(world.drivers[-1].job.writer(1).name)), committed=False)) as log:
        return list(log.catch_up().older_producers(1 << 60))
