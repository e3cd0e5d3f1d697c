"""The simplest subject: sums by key behind one exchange."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
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


class Lucky(ps.StreamTask):
    """Counts each message under a key that every attempt draws anew. Its outputs have to fit what its store has."""

    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key = random.choice("abcdefgh")
        count = (self.store.get(key) or 0) + 1
        self.store.put(key, count)
        collector.emit(key=key, value=count)


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
    "lucky": partial(graph, Lucky),
}


class Sums:
    def __init__(self) -> None:
        self.given = [("abcde"[n % 5], n) for n in range(90)]
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
            "task.commit.ms": (1500, 300)[choices.draw(2)],
            "job.lease.ms": (5_000, 1_500, 15_000)[choices.draw(3)],
            **({"state.snapshot.interval.commits": 1} if choices.draw(2) else {}),
            **({"streams.m.sums.output.guarantee": "exactly-once"} if self.once else {}),
        }
        return JobUnderTest(
            FORMS[self.form],
            config,
            {"events": 3, "sums": 3},
            feed,
            at_once=3,
            may_go_back=not self.once,
            may_move=self.form == "highest",
            may_repartition=self.form != "lucky",  # it has a key in several tasks
        )

    def rates(self, choices: Choices) -> Rates:
        factor = (1, 3, 6)[choices.draw(3)]
        attempt, kill_s = (40, 120)[choices.draw(2)], (20.0, 60.0)[choices.draw(2)]
        # With more reads that fail, and calls that are slow, a job hardly ever comes to its first batch.
        rates = replace(Rates().scaled(factor), reads=0.5 / factor, slow=30, rest_s=4.0)
        return replace(rates, attempt=attempt, kill_s=kill_s)

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
        if self.form == "lucky":
            return self._broken_luck(found, [(key, ps.Integer().from_bytes(value)) for key, value in entries])
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

    def _broken_luck(self, found: Counter[tuple[str, int]], entries: list[tuple[bytes, int]]) -> list[str]:
        counted = sum(count for _, count in entries)
        bad = [] if counted == len(self.given) else [f"{counted} messages of {len(self.given)} were counted"]
        expected = Counter((ps.String().from_bytes(key), n) for key, count in entries for n in range(1, count + 1))
        lost, more = expected - found, found - expected
        return bad + ([f"lost {lost}, more {more}"] if lost or (more and self.once) else [])


class Calls(Sums):
    """The same jobs, in lives in which little fails but attempts and calls. So many batches run, most of them beside
    what earlier runs and calls have left."""

    def rates(self, choices: Choices) -> Rates:
        few = Rates(store=2, stream=2, call=2, disk=0, slow_disk=0, crash=0, jump=0)
        return replace(few, attempt=150, again=400, late=800, rest_s=4.0, kill_s=120.0)


remove_asked()
subject = Sums()
calls = Calls()
