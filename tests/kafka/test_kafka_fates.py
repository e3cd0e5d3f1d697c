"""Single requests of writers that are lost, not answered, doubled, overtaken and slow, at each position in a life.

A life commits, aborts, and is taken over by a later epoch. Readers of committed messages find what was committed, once,
whole and in order. Penstock keeps no offsets in Kafka's groups within a transaction, so `AddOffsetsToTxn` and
`TxnOffsetCommit` are never sent. For requests that come late see `test_kafka_late_requests.py`, and for leaders that
move at a request `test_kafka_replicas.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka_proxy import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    Fate,
    KafkaProxy,
)
from tests.support.world.fated_requests import API_KEYS, FATES, Case, cases, walk
from tests.support.world.kafka_world import KafkaWorld
from tests.support.world.late_requests import LIVES, ChangelogLife, LeastLife, OnceLife

pytestmark = pytest.mark.kafka


def check(broker: KafkaBroker, given: Iterable[Case]) -> None:
    walked = list(walk(broker, given))
    assert [each for each in walked if each.verdict.wrong] == []
    assert {(each.case.api_key, each.case.fate) for each in walked if not each.met} == set()


def test_some_requests_of_transactions(kafka_broker: KafkaBroker) -> None:
    check(
        kafka_broker,
        [
            Case(OnceLife, END_TXN, Fate.UNANSWERED, 0),
            Case(OnceLife, INIT_PRODUCER_ID, Fate.UNANSWERED, 1),
            Case(LeastLife, ADD_PARTITIONS_TO_TXN, Fate.TWICE_SECOND, 0),
            Case(ChangelogLife, PRODUCE, Fate.LOST, 1),
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
def test_each_request_at_each_position(kafka_broker: KafkaBroker, fate: Fate) -> None:
    check(kafka_broker, cases(LIVES, API_KEYS, [fate]))


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
def test_a_job_whose_requests_meet_a_fate(kafka_broker: KafkaBroker, tmp_path: Path, fate: Fate) -> None:
    """Each seventh request of each kind, also of those that read the input. The job goes on; its output is exact."""
    world = KafkaWorld(kafka_broker, tmp_path)
    with closing(world), KafkaProxy.before(kafka_broker) as proxy:
        world.more |= {"systems.kafka.consumer.bootstrap.servers": proxy.address}
        fated = {key: [proxy.give(key, fate, after=number) for number in range(3, 1000, 7)] for key in API_KEYS}
        for _ in range(2):
            world.put(60)
            world.run(world.driver())
        met = {key: sum(each.has_come for each in given) for key, given in fated.items()}
        print(fate.name, met)
        assert min(met.values()) > 0, met
    world.check()
