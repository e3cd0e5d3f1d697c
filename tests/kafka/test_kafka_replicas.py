"""Three brokers: a leader that moves, a rolling restart, and a broker that stays away, under exactly-once output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import PenstockError, RetryableError, SystemRefusedError
from penstock.system.kafka.system import KafkaSystem
from penstock.testing.in_process import InProcessDriver
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.kafka_cluster import KafkaCluster
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka_proxy import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, Fate
from tests.support.tools.fixtures import fixture_of
from tests.support.world.fated_requests import API_KEYS
from tests.support.world.kafka_world import KafkaWorld
from tests.support.world.late_requests import LIVES

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
OF_TRANSACTIONS = (ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID)


cluster = fixture_of(lambda: KafkaCluster(brokers=3), scope="module")


@pytest.fixture
def world(cluster: KafkaCluster, tmp_path: Path) -> Iterator[KafkaWorld]:
    world = KafkaWorld(cluster, tmp_path, "exactly-once")
    world.more |= {"job.retry.max": 0, "systems.kafka.consumer.default.api.timeout.ms": 5000}
    yield world
    world.close()


def through(world: KafkaWorld, trouble: Callable[[], object]) -> InProcessDriver:
    """Run the job through the trouble, with messages before it, during it and after it."""
    world.put(60)
    driver = world.driver()
    done: list[BaseException | None] = []

    def run() -> None:
        try:
            trouble()
            done.append(None)
        except BaseException as error:
            done.append(error)

    world.at(driver, "source", lambda: world.later(0, run), nth=3)
    world.run(driver)
    assert done == [None]
    world.put(60)
    world.run(world.driver())
    world.check()
    return driver


def test_the_leaders_move(world: KafkaWorld, cluster: KafkaCluster) -> None:
    def elected() -> KafkaBroker:
        """It has to catch up first."""
        cluster.elect()
        return cluster.leader(world.output, 0)

    def move() -> None:
        leader = cluster.leader(world.output, 0)
        leader.stop()
        wait_until(lambda: cluster.leader(world.output, 0) is not leader, "another broker to lead")
        world.put(30)
        leader.start()
        wait_until(lambda: elected() is leader, "the first replica to lead again")

    through(world, move)


def test_a_rolling_restart(world: KafkaWorld, cluster: KafkaCluster) -> None:
    def restart() -> None:
        for broker in cluster.brokers:
            broker.restart()
            world.put(20)

    through(world, restart)


def test_a_broker_that_stays_away(world: KafkaWorld, cluster: KafkaCluster) -> None:
    lost = cluster.leader(world.output, 0)

    def kill() -> None:
        lost.kill()
        world.put(40)

    try:
        through(world, kill)
        assert not lost.running
    finally:
        lost.start()


def test_a_cluster_without_a_majority_is_waited_for(world: KafkaWorld, cluster: KafkaCluster) -> None:
    """Two of three are frozen: nothing is acknowledged, and nothing is lost."""
    driver_waits: list[str] = []

    def freeze() -> None:
        for broker in cluster.brokers[1:]:
            broker.freeze()
        try:
            wait_until(lambda: driver.board.outage is not None, "the job waits")
            driver_waits.append(str(driver.board.outage))
        finally:
            for broker in cluster.brokers[1:]:
                broker.resume()

    world.put(60)
    driver = world.driver()
    world.at(driver, "source", lambda: world.later(0, freeze), nth=3)
    world.run(driver)
    assert driver_waits
    world.check()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("api_key", API_KEYS)
def test_a_leader_moves_at_a_request(cluster: KafkaCluster, api_key: int, beside: bool) -> None:
    """A writer's request finds that its partition, or its transaction, has another broker: from before it on, or while
    it is under way. Nothing is lost, doubled or torn, and a later epoch takes over."""
    life = LIVES[API_KEYS.index(api_key) % len(LIVES)](cluster, api_key)
    led = "__transaction_state" if api_key in OF_TRANSACTIONS else life.ssps[0].stream
    moved: list[Future[KafkaBroker]] = []
    with ThreadPoolExecutor(1) as pool:

        def move() -> KafkaBroker:
            leader = cluster.leader(led, 0)
            leader.stop()
            wait_until(lambda: leads(cluster, led) not in (leader, None), "another broker to lead")
            return leader

        def begin() -> None:
            moved.append(pool.submit(move))
            if not beside:
                moved[0].result()

        fated = life.proxy.give(api_key, Fate.PASSED, after=2, before=begin)
        try:
            verdict = life.walk(4)
        finally:
            for each in moved:
                each.result().start()
    assert fated.has_come
    assert not verdict.wrong, verdict
    assert verdict.committed == 4


def test_replicas_that_the_brokers_cannot_have_now() -> None:
    """A broker that ends in an orderly way does not count. If the brokers choose the number, it is asked for again
    until the time is over; a number of the configuration may be a slip."""
    with KafkaBroker(settings={"default.replication.factor": 3}) as broker:
        options = {"consumer.bootstrap.servers": broker.bootstrap_servers, "consumer.default.api.timeout.ms": "1000"}
        chosen = {**options, "default.stream.replication.factor": "2"}
        create(chosen, SystemRefusedError, "factor of 2")
        create(options, RetryableError, r"factor of 3 .*a broker is away, or")


def create(options: dict[str, str], error: type[PenstockError], says: str) -> None:
    with closing(KafkaSystem.configured("kafka", options).admin()) as admin, pytest.raises(error, match=says):
        admin.create_stream("topic", 1)


def leads(cluster: KafkaCluster, topic: str) -> KafkaBroker | None:
    try:
        return cluster.leader(topic, 0)
    except RetryableError:
        return None
