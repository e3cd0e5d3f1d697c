"""Timers under random schedules against a plain model. The random applications of `simulation/` have them in whole
jobs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.time.firing import AtDrain
from penstock.runtime.operators import task_timers
from tests.support.oracles.stage_batches import OUT, Message, StageBatches
from tests.support.oracles.timer_model import Acting, TimerModel
from tests.support.tools.profiles import examples

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
