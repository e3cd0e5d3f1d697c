"""The simplest subject: sums by key behind one exchange."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
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


class Highest(ps.StreamTask):
    """Keeps the highest value of each key: a message that is read again changes nothing."""

    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.store.put(envelope.key, max(envelope.value, self.store.get(envelope.key) or 0))
        collector.emit(key=envelope.key, value=envelope.value)


def salted() -> ApplicationGraph:
    """Every attempt spreads the messages in another way."""
    app = ps.StreamApplication("sums")
    app.store("sums", key=ps.String(), value=ps.Integer())
    source = app.input("m.events", key=ps.String(), value=ps.Integer())
    spread = source.partition_by(lambda envelope: random.choice("abcdefgh"), key=ps.String(), envelope=True)
    spread.process(Count, stores=["sums"], id="sum").send_to(app.output("m.sums", key=ps.String(), value=ps.Integer()))
    return app.graph()


def graph(task: type[ps.StreamTask]) -> ApplicationGraph:
    app = ps.StreamApplication("sums")
    app.store("sums", key=ps.String(), value=ps.Integer())
    source = app.input("m.events", key=ps.String(), value=ps.Integer())
    source.partition_by(lambda envelope: envelope.key, envelope=True).process(task, stores=["sums"], id="sum").send_to(
        app.output("m.sums", key=ps.String(), value=ps.Integer())
    )
    return app.graph()


FORMS: dict[str, Callable[[], ApplicationGraph]] = {
    "sums": partial(graph, Sum),
    "salted": salted,
    "highest": partial(graph, Highest),
}


class Sums:
    def __init__(self) -> None:
        self.given = [("abcde"[n % 5], n) for n in range(60)]
        self.once = False
        self.form = ""

    def job(self, choices: Choices) -> JobUnderTest:
        self.once = bool(choices.draw(2))
        self.form = list(FORMS)[choices.draw(len(FORMS))]
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
            FORMS[self.form],
            config,
            {"events": 3, "sums": 3},
            feed,
            may_go_back=not self.once,
            may_move=self.form == "highest",
        )

    def rates(self, choices: Choices) -> Rates:
        return Rates().scaled((1.0, 0.2, 3.0, 6.0)[choices.draw(4)])

    def broken(self, outcome: Outcome) -> list[str]:
        running: Counter[str] = Counter()
        highest: dict[str, int] = {}
        expected: Counter[tuple[str, int]] = Counter()
        for key, value in self.given:
            running[key] += value
            highest[key] = value
            expected["" if self.form == "salted" else key, running[key] if self.form == "sums" else value] += 1
        records = [record for own in outcome.streams["sums"].values() for record in own]
        found = Counter((ps.String().from_bytes(r[1] or b""), ps.Integer().from_bytes(r[2] or b"")) for r in records)
        entries = [(key, value) for own in outcome.stores.values() for _, key, value in own]
        state = Counter({ps.String().from_bytes(key): ps.Integer().from_bytes(value) for key, value in entries})
        if len(state) != len(entries) and self.form != "salted":
            return [f"a key is in two tasks: {entries}"]
        if self.form == "salted":
            counted = sum(ps.Integer().from_bytes(value) for _, value in entries)
            bad = [] if counted == len(self.given) else [f"{counted} messages of {len(self.given)} were counted"]
        else:
            wanted = running if self.form == "sums" else highest
            bad = [] if state == wanted else [f"the store has {state} in place of {wanted}"]
        if self.once and self.form != "highest":
            return bad + ([] if found == expected else [f"lost {expected - found}, doubled {found - expected}"])
        lost, wrong = set(expected) - set(found), set(found) - set(expected)
        return bad + ([f"lost {lost}, wrong {wrong}"] if lost or wrong else [])


remove_asked()
subject = Sums()
