"""Sums by key from Kafka to Kafka, on a simulated cluster, with the clients' protocol."""

from __future__ import annotations

from collections import Counter
from typing import Any

import penstock as ps
from penstock.api.ssp import SystemStream
from penstock.graph.specs import ApplicationGraph
from penstock.testing.simulation.choices import Choices
from penstock.testing.simulation.faults import Rates
from penstock.testing.simulation.life import JobUnderTest, Outcome
from penstock.testing.simulation.storage import Fed
from tests.simulation.kafka import world
from tests.simulation.rules import remove_asked

RECORDS = 90
KEYS = "abcde"
PARTITIONS = 3
EVENTS, SUMS = SystemStream("kafka", "events"), SystemStream("kafka", "sums")


class Sum(ps.StreamTask):
    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        total = (self.store.get(envelope.key) or 0) + envelope.value
        self.store.put(envelope.key, total)
        collector.emit(key=envelope.key, value=total)


def application() -> ApplicationGraph:
    app = ps.StreamApplication("sums")
    app.store("sums", key=ps.String(), value=ps.Integer())
    source = app.input("kafka.events", key=ps.String(), value=ps.Integer())
    source.partition_by(lambda envelope: envelope.key, envelope=True).process(Sum, stores=["sums"], id="sum").send_to(
        app.output("kafka.sums", key=ps.String(), value=ps.Integer())
    )
    return app.graph()


class Topics:
    """The subject. `once`: the output is exactly-once."""

    def __init__(self) -> None:
        self.given = [(KEYS[n % len(KEYS)], n) for n in range(RECORDS)]
        self.once = False

    def job(self, choices: Choices) -> JobUnderTest:
        self.once = choices.draw(3) != 2
        streams_back = choices.draw(3) == 2
        feed: list[Fed] = [
            (
                EVENTS,
                n % len(KEYS) % PARTITIONS,
                (1000 + n, key.encode(), ps.Integer().to_bytes(value)),
            )
            for n, (key, value) in enumerate(self.given)
        ]
        config: dict[str, object] = {
            "job.batch.max.messages": 6,
            "job.batch.target.ms": 0,
            "job.batch.interval.ms": 400,
            "task.commit.ms": (400, 2000)[choices.draw(2)],
            "job.lease.ms": (5_000, 2_000)[choices.draw(2)],
        }
        if self.once:
            config["streams.kafka.sums.output.guarantee"] = "exactly-once"
        if streams_back:
            config["stores.backup.factories"] = config["stores.restore.factories"] = "changelog-stream"
            config["stores.sums.changelog"] = "kafka.sums-changelog"
        return JobUnderTest(
            application,
            config,
            {EVENTS: PARTITIONS, SUMS: PARTITIONS},
            feed,
            at_once=4,
            may_go_back=not self.once,
            may_repartition=not streams_back,
            outside=_outside,
        )

    def rates(self, choices: Choices) -> Rates:
        return Rates(stream=40, kill_s=60.0).scaled((1.0, 0.2, 2.0)[choices.draw(3)])

    def broken(self, outcome: Outcome) -> list[str]:
        running: Counter[str] = Counter()
        expected: Counter[tuple[str, int]] = Counter()
        for key, value in self.given:
            running[key] += value
            expected[key, running[key]] += 1
        records = [record for own in outcome.streams["kafka.sums"].values() for record in own]
        found = Counter((ps.String().from_bytes(r[1] or b""), ps.Integer().from_bytes(r[2] or b"")) for r in records)
        entries = [(key, value) for own in outcome.stores.values() for _, key, value in own]
        state = Counter({ps.String().from_bytes(key): ps.Integer().from_bytes(value) for key, value in entries})
        bad = [] if state == running else [f"the store has {state} in place of {running}"]
        if self.once:
            return bad + ([] if found == expected else [f"lost {expected - found}, doubled {found - expected}"])
        lost, wrong = set(expected) - set(found), set(found) - set(expected)
        return bad + ([f"lost {lost}, wrong {wrong}"] if lost or wrong else [])


def _outside(trouble: Any) -> dict[str, world.KafkaOutside]:
    return {"kafka": world.KafkaOutside(trouble, {})}


world.install()
remove_asked()
subject = Topics()
