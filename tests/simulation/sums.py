"""The simplest subject: sums by key behind one exchange."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import penstock as ps
from penstock.graph.specs import ApplicationGraph
from penstock.testing.simulation.choices import Choices
from penstock.testing.simulation.faults import Rates
from penstock.testing.simulation.life import JobUnderTest, Outcome
from tests.simulation.rules import remove_asked


class Sum(ps.StreamTask):
    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        total = (self.store.get(envelope.key) or 0) + envelope.value
        self.store.put(envelope.key, total)
        collector.emit(key=envelope.key, value=total)


class Count(ps.StreamTask):
    """Passes each value on once."""

    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.store.put(envelope.key, (self.store.get(envelope.key) or 0) + 1)
        collector.emit(key="", value=envelope.value)


def salted() -> ApplicationGraph:
    """Every attempt spreads the messages in another way."""
    app = ps.StreamApplication("sums")
    app.store("sums", key=ps.String(), value=ps.Integer())
    source = app.input("m.events", key=ps.String(), value=ps.Integer())
    spread = source.partition_by(lambda envelope: random.choice("abcdefgh"), key=ps.String(), envelope=True)
    spread.process(Count, stores=["sums"], id="sum").send_to(app.output("m.sums", key=ps.String(), value=ps.Integer()))
    return app.graph()


def graph() -> ApplicationGraph:
    app = ps.StreamApplication("sums")
    app.store("sums", key=ps.String(), value=ps.Integer())
    source = app.input("m.events", key=ps.String(), value=ps.Integer())
    source.partition_by(lambda envelope: envelope.key, envelope=True).process(Sum, stores=["sums"], id="sum").send_to(
        app.output("m.sums", key=ps.String(), value=ps.Integer())
    )
    return app.graph()


class Sums:
    def __init__(self) -> None:
        self.given = [("abcde"[n % 5], n) for n in range(60)]
        self.once = False

    def job(self, choices: Choices) -> JobUnderTest:
        self.once = bool(choices.draw(2))
        self.salted = bool(choices.draw(2))
        feed = [
            ("events", n % 3, (0, ps.String().to_bytes(key), ps.Integer().to_bytes(value)))
            for n, (key, value) in enumerate(self.given)
        ]
        config = {
            "job.batch.max.messages": 4,
            "job.batch.target.ms": 0,
            "task.commit.ms": (3000, 400)[choices.draw(2)],
            "job.lease.ms": (15_000, 5_000)[choices.draw(2)],
            **({"streams.m.sums.output.guarantee": "exactly-once"} if self.once else {}),
        }
        return JobUnderTest(
            salted if self.salted else graph, config, {"events": 3, "sums": 3}, feed, may_go_back=not self.once
        )

    def rates(self, choices: Choices) -> Rates:
        return Rates().scaled((1.0, 0.2, 3.0, 6.0)[choices.draw(4)])

    def broken(self, outcome: Outcome) -> list[str]:
        running: Counter[str] = Counter()
        expected: Counter[tuple[str, int]] = Counter()
        for key, value in self.given:
            running[key] += value
            expected[("", value) if self.salted else (key, running[key])] += 1
        records = [record for own in outcome.streams["sums"].values() for record in own]
        found = Counter((ps.String().from_bytes(r[1] or b""), ps.Integer().from_bytes(r[2] or b"")) for r in records)
        if self.salted:
            counts = sum(ps.Integer().from_bytes(n) for own in outcome.stores.values() for _, _, n in own)
            if counts != len(self.given):
                return [f"{counts} messages were counted, {len(self.given)} were given"]
        if self.once and found != expected:
            return [f"lost {expected - found}, doubled {found - expected}"]
        if not self.once and set(found) != set(expected):
            return [f"lost {set(expected) - set(found)}, wrong {set(found) - set(expected)}"]
        return []


remove_asked()
subject = Sums()
