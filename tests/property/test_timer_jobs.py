"""Timers under random schedules: in whole jobs, and against a plain model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.time.firing import AtDrain
from penstock.runtime.operators import task_timers
from penstock.testing import TestRunner
from tests.support.oracles.stage_batches import OUT, Message, StageBatches
from tests.support.oracles.timer_model import Acting, TimerModel
from tests.support.tools.profiles import examples


class Waiting(ps.StreamTask):
    """A message schedules a timer, or cancels that of an older message of its key. What has fired is in a store."""

    def init(self, context: ps.TaskContext) -> None:
        self.context, self.fired = context, context.store("fired")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        message = envelope.value
        self.context.schedule(message["n"], message["due"], "timer", message["domain"])
        if message["cancels"] is not None:
            self.context.cancel(message["cancels"], "timer")

    def on_timer(self, timer: ps.ExpiredTimer, collector: Any, coordinator: Any) -> None:
        self.fired[timer.key] = [*self.fired.get(timer.key, []), timer.time_ms]
        collector.emit(value=[timer.key, timer.time_ms, timer.domain])


def application() -> ps.StreamApplication:
    app = ps.StreamApplication("timers")
    app.store("fired", key=ps.Long())
    events = app.input("m.in", timestamp=lambda event: int(event["time"]), watermark=ps.BoundedOutOfOrderness(10))
    waits = events.partition_by(lambda event: event["key"])
    waits.process(Waiting, stores=["fired"], timers=ps.Long(), id="t").send_to(app.output("m.out"))
    return app


def messages(rng: random.Random, now_ms: int, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for n in range(number):
        key, time = rng.choice("abcd"), 3 * n + rng.randrange(10)
        older = [m["n"] for m in found if m["key"] == key and m["domain"] == "event"]
        in_event_time = rng.random() < 0.6
        due = time + rng.randrange(60) - 10 if in_event_time else now_ms + rng.randrange(2_000)
        cancels = rng.choice(older) if older and rng.random() < 0.2 else None
        domain = "event" if in_event_time else "processing"
        found.append({"n": n, "key": key, "time": time, "due": due, "domain": domain, "cancels": cancels})
    return found


@examples(0.25)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_no_timer_is_lost_fires_early_or_fires_twice(seed: int, tasks: int) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch, closing(TestRunner(application(), partitions=tasks)) as runner:
        patch.setattr(task_timers, "AT_MOST", 3)
        given_all = messages(rng, runner._clock.now_ms(), rng.randrange(60))
        left = list(given_all)
        while left:
            size = rng.randint(1, 12)
            for message in left[:size]:
                runner.input("m.in", [message], partition=rng.randrange(tasks))
            left = left[size:]
            runner.run(batch_messages=rng.choice([None, 2]))
            check(runner, {m["n"]: m for m in given_all})
            if rng.random() < 0.5:
                runner.advance_time(rng.randrange(700))
            if rng.random() < 0.3:
                runner.commit()
            if rng.random() < 0.2:
                runner.crash().restore().run()
                check(runner, {m["n"]: m for m in given_all})
        runner.end_inputs()
        fired = runner.store("fired")
        cancelled = {m["cancels"] for m in given_all}
        assert all(times == [given_all[n]["due"]] for n, times in fired.items()), "each once, at its time"
        assert fired.keys() | cancelled >= {m["n"] for m in given_all}
        assert runner.store("t.timers") == {}


def check(runner: TestRunner, given_all: dict[int, dict[str, Any]]) -> None:
    """Nothing has fired before its time, and nothing that is due waits."""
    boundary = runner._running().loop.boundary
    reached = {"event": boundary.watermarks.get("t", -(2**63)), "processing": boundary.batch_time_ms}
    for n, times in runner.store("fired").items():
        assert times == [given_all[n]["due"]]
        assert times[0] <= reached[given_all[n]["domain"]]
    waiting = [int.from_bytes(entry[2:10], "big") - 2**63 for entry in runner.store("t.timers") if entry[:2] == b"te"]
    assert all(time > reached["event"] for time in waiting)


KEYS = ["a", "b", "a\x00", None]
NAMES = ["", "later", "past", "cancel", "twin", "loop"]
MOST = 4

times = st.integers(-5, 60)
domains = st.sampled_from(["event", "event", "processing"])
keys, names = st.sampled_from(KEYS), st.sampled_from(NAMES)
calls = st.one_of(
    st.tuples(st.just("schedule"), keys, times, names, domains),
    st.tuples(st.just("cancel"), keys, names, domains),
)
batches = st.tuples(
    st.lists(st.lists(calls, max_size=4), max_size=4),  # messages, each with its calls
    st.integers(0, 15),  # the watermark rises by
    st.integers(0, 15),  # the batch time rises by
    st.integers(0, 2),  # attempts that are discarded
    st.booleans(),  # a restart before it
)


@examples(1)
@given(st.lists(batches, max_size=8), st.sampled_from([None, "end-of-stream", "drain", "discard"]))
def test_timers_fire_as_the_model_says(schedule: Sequence[Any], end: Any) -> None:
    discards = end == "discard"
    with pytest.MonkeyPatch.context() as patch, closing(stage("discard" if discards else "fire")) as job:
        patch.setattr(task_timers, "AT_MOST", MOST)
        model = TimerModel(MOST)
        watermark, time_ms = 0, 20
        for messages, up, later, discarded, restarts in schedule:
            if restarts:
                job.restart()
            watermark, time_ms = watermark + up, time_ms + later
            sent = [Message("k", [list(call) for call in made]) for made in messages]
            found = job.run(sent, watermark, time_ms=time_ms, discards=discarded)
            assert found.get(OUT, []) == model.batch(messages, watermark, time_ms)
            assert job.failed is None
            assert pending(job) == model.timers
        if end is not None:
            found = job.run((), watermark, time_ms=time_ms, control="drain" if discards else end)
            assert found.get(OUT, []) == model.end(time_ms, discards=discards)
            assert job.entries("t.timers") == {}


def stage(timers_at_drain: AtDrain) -> StageBatches:
    app = ps.StreamApplication("a")
    app.output("m.late")
    acting = app.input("m.in").process(Acting, timers=ps.String(), timers_at_drain=timers_at_drain, id="t")
    acting.send_to(app.output(OUT))
    return StageBatches(app, "t")


def pending(job: StageBatches) -> dict[tuple[str, str | None, str], int]:
    """The timers in the store, which must be the same in both orders."""
    by_key: dict[tuple[str, str | None, str], int] = {}
    by_time = dict(by_key)
    for entry, value in job.entries("t.timers").items():
        domain = {b"e": "event", b"p": "processing"}[entry[1:2]]
        rest, time = (entry[2:], value) if entry[:1] == b"k" else (entry[10:], entry[2:10])
        key, _, name = (None, None, rest[1:]) if rest[:1] == b"\x00" else rest[1:].rpartition(b"\x00\x01")
        text = None if key is None else key.replace(b"\x00\xff", b"\x00").decode()
        timers = by_key if entry[:1] == b"k" else by_time
        timers[domain, text, name.decode()] = int.from_bytes(time, "big") - 2**63
    assert by_key == by_time
    return by_key
