"""Operators with order="event-time" in whole jobs: random inputs in random batches, any number of tasks, commits, kills
and moves to other tasks between. The outputs are those of a plain computation, which sorts all messages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.runtime import order
from penstock.testing import TestRunner
from tests.support.tools.profiles import examples

BOUND = 12
"""The most by which a message may be earlier than an earlier one of its partition."""
STREAMS = ("m.a", "m.b")
VALUE = ps.Columns(pa.schema({"key": pa.string(), "at": pa.int64(), "n": pa.int64(), "for": pa.int64()}))


@dataclass(frozen=True, slots=True)
class Event:
    stream: str
    partition: int
    offset: int
    key: str
    at: int
    n: int
    wait: int
    """For so long a timer waits; 0 cancels it."""

    @property
    def rank(self) -> tuple[Any, ...]:
        """The order of the messages of a key."""
        return self.at, blake2b(self.stream.encode(), digest_size=8).digest(), self.partition, self.offset

    @property
    def value(self) -> dict[str, Any]:
        return {"key": self.key, "at": self.at, "n": self.n, "for": self.wait}


def events_of(rng: random.Random, number: int, partitions: int) -> list[Event]:
    """Messages, none of them late."""
    reached, offsets, found = Counter[Any](), Counter[Any](), []
    for n in range(number):
        place = rng.choice(STREAMS), rng.randrange(partitions)
        at = max(0, reached[place] + rng.randint(-BOUND, 8))
        reached[place] = max(reached[place], at)
        found.append(Event(*place, offsets[place], rng.choice("abc"), at, n, rng.choice([0, 1, 3, 9])))
        offsets[place] += 1
    return found


class Numbered(ps.StreamTask):
    """Numbers what happens to each key: messages and the timer that a later message may cancel."""

    def init(self, context: ps.TaskContext) -> None:
        self.context, self.numbers = context, context.store("numbers")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        value = envelope.value
        assert envelope.timestamp == value["at"]
        source = f"{envelope.ssp.stream}.{envelope.ssp.partition}.{envelope.offset}"
        if value["for"]:
            self.context.schedule(envelope.key, value["at"] + value["for"], "wait")
        else:
            self.context.cancel(envelope.key, "wait")
        self._note(envelope.key, f"{value['n']} of {source}", collector)

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        if timer.name == "wait":
            self.context.schedule(timer.key, timer.time_ms - 2, "late")  # its time has come: it fires at once
        self._note(timer.key, f"{timer.name} {timer.time_ms}", collector)

    def _note(self, key: str, text: str, collector: Any) -> None:
        number = self.numbers[key] = self.numbers.get(key, 0) + 1
        collector.emit(key=key, value=[number, text])


def with_timers(events: Iterable[Event]) -> dict[str, list[Any]]:
    """The results of `Numbered` for each key: (number, text, timestamp)."""
    found: dict[str, list[Any]] = {}
    for key in {event.key for event in events}:
        timer: int | None = None
        own: list[Any] = []

        def fire(up_to: float, own: list[Any] = own) -> None:
            nonlocal timer
            if timer is not None and timer <= up_to:
                at, timer = timer, None
                own.append((len(own) + 1, f"wait {at}", at))
                own.append((len(own) + 1, f"late {at - 2}", at))

        for event in sorted((event for event in events if event.key == key), key=lambda event: event.rank):
            fire(event.at)
            source = f"{event.stream.removeprefix('m.')}.{event.partition}.{event.offset}"
            own.append((len(own) + 1, f"{event.n} of {source}", event.at))
            timer = event.at + event.wait if event.wait else None
        fire(float("inf"))
        found[key] = own
    return found


def inputs(app: ps.StreamApplication, value: Any = None) -> list[ps.MessageStream[Any]]:
    policy = ps.BoundedOutOfOrderness(BOUND)
    time = (lambda value: int(value["at"])) if value is None else ps.col("at")
    key = (lambda value: value["key"]) if value is None else ps.col("key")
    found = [app.input(name, value=value, timestamp=time, watermark=policy) for name in STREAMS]
    return [stream.partition_by(key, id=f"by{n}") for n, stream in enumerate(found)]


def by_row(value: Any = None) -> ps.StreamApplication:
    app = ps.StreamApplication("ordered")
    app.store("numbers", value=ps.Integer(), ttl_ms="1h")
    left, right = inputs(app, value)
    task = left.merge(right).process(
        Numbered, stores=["numbers"], timers=ps.String(), order="event-time", late_to=app.output("m.late"), id="o"
    )
    task.send_to(app.output("m.out"))
    return app


@contextmanager
def small_batches() -> Iterator[None]:
    """Attempts leave most of what is due to the next batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "AT_MOST", 5)
        yield


def lived(app: ps.StreamApplication, events: list[Event], rng: random.Random, partitions: int) -> set[Any]:
    """The different messages of the output after a random life: key, value and timestamp."""
    left, tasks = list(events), partitions
    dead = rng.choice([None, "m.dead"])  # with one, each message can be undone
    rules: dict[str, Any] = {spec.name: "key" for spec in app.graph().stores if spec.name == "numbers"}
    with small_batches(), closing(TestRunner(app, partitions=partitions, dead_letter=dead)) as runner:
        while left:
            for event in left[: (size := rng.randint(1, 12))]:
                runner.input(event.stream, [event.value], partition=event.partition)
            left = left[size:]
            runner.run(batch_messages=rng.choice([None, 1, 3]))
            if rng.random() < 0.4:
                runner.commit()
            if rng.random() < 0.2:
                runner.crash()
                if rng.random() < 0.5:
                    tasks = rng.choice([number for number in range(partitions, 5) if number != tasks])
                    runner.restore().run().commit().crash().repartition(tasks, rules)
                runner.restore()
        if rng.random() < 0.5:
            runner.end_inputs()
        else:
            runner.run().drain().restore()
        assert runner.output("m.late") == []
        assert runner.store("o.in-order") == {}
        return {(m.key, repr(m.value), m.timestamp) for m in runner.output("m.out")}


def expected(of_keys: dict[str, list[Any]]) -> set[Any]:
    return {(key, repr([number, text]), at) for key, own in of_keys.items() for number, text, at in own}


@examples(0.3)
@given(st.integers(0, 2**32), st.booleans())
def test_messages_and_timers_come_by_event_time(seed: int, by_schema: bool) -> None:
    rng = random.Random(seed)
    partitions = rng.randint(1, 3)
    events = events_of(rng, rng.randrange(70), partitions)
    found = lived(by_row(VALUE if by_schema else None), events, rng, partitions)
    assert found == expected(with_timers(events))


def windows() -> ps.StreamApplication:
    app = ps.StreamApplication("ordered")
    app.output("m.late")
    left, right = inputs(app)
    last = ps.Windows.sliding(SPAN, emit="each", aggregates={"n": ps.Last(lambda v: v["n"]), "count": ps.Count()})
    panes = left.merge(right).window(last, order="event-time", id="o")
    panes.map(lambda pane: [pane.message["n"], pane.message["count"]]).send_to(app.output("m.out"))
    return app


SPAN = 10


def test_each_message_sees_those_before_it_alone() -> None:
    rng = random.Random(5)
    events = events_of(rng, 60, 2)
    found = set()
    for key in {event.key for event in events}:
        own = sorted((event for event in events if event.key == key), key=lambda event: event.rank)
        for place, event in enumerate(own):
            seen = sum(event.at - SPAN < other.at for other in own[: place + 1])
            found.add((key, repr([event.n, seen]), event.at))
    assert lived(windows(), events, rng, 2) == found


def newest() -> ps.StreamApplication:
    app = ps.StreamApplication("ordered")
    late = app.output("m.late")
    left, right = inputs(app)
    pairs = left.join(
        right, lambda one, other: [one["n"], None if other is None else other["n"]], within_ms=(6, 3), kind="left",
        keep="newest", order="event-time", late_to=late, id="o",
    )  # fmt: skip
    pairs.send_to(app.output("m.out"))
    return app


def joined(events: Iterable[Event]) -> set[Any]:
    """Each message with the newest one of the other stream, and left messages that stay alone."""
    found: set[Any] = set()
    for key in {event.key for event in events}:
        kept: dict[str, Event] = {}
        alone: dict[int, Event] = {}
        for event in sorted((event for event in events if event.key == key), key=lambda event: event.rank):
            side, other = event.stream, kept.get(STREAMS[event.stream == STREAMS[0]])
            kept[side] = event
            if side == STREAMS[0]:
                alone[event.n] = event
            if other is not None:
                left, right = (event, other) if side == STREAMS[0] else (other, event)
                if left.at - 6 <= right.at <= left.at + 3:
                    found.add((key, repr([left.n, right.n]), event.at))
                    alone.pop(left.n, None)
        found |= {(key, repr([n, None]), event.at + 3) for n, event in alone.items()}
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_the_newest_message_is_that_of_event_time(seed: int) -> None:
    rng = random.Random(seed)
    events = events_of(rng, 60, 2)
    assert lived(newest(), events, rng, 2) == joined(events)
