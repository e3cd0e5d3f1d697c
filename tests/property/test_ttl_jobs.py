"""Time to live in whole jobs: time passes, messages fail, the job is killed and restored; against a dict with times."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import TestRunner
from tests.support.tools.profiles import examples

TTL = 100


class Count(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.counts: ps.KeyValueStore[str, int] = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        key, what = envelope.key, envelope.value
        if what == "all":
            collector.send("m.out", key=key, value=[count for _, count in self.counts.all()])
            return
        count = self.counts.get(key, 0)
        collector.send("m.out", key=key, value=count)
        if what == "delete":
            del self.counts[key]
        elif what != "get":
            self.counts[key] = count + 1
        if what == "fail":
            raise ValueError("it fails")


class Oracle:
    """The job as a plain program with one dict."""

    def __init__(self, access: bool) -> None:
        self.access = access
        self.counts: dict[str, tuple[int, int]] = {}
        self.done = 0

    def process(self, messages: list[tuple[str, str]], now: int) -> list[Any]:
        return [sent for key, what in messages[self.done :] if (sent := self._one(key, what, now)) is not None]

    def _one(self, key: str, what: str, now: int) -> Any:
        self.done += 1
        if what == "all":
            return list(self.alive(now).values())
        count = self.alive(now).get(key, 0)
        if what == "fail":
            return None
        if what == "delete":
            self.counts.pop(key, None)
        elif what == "put":
            self.counts[key] = count + 1, now + TTL
        elif self.access and key in self.alive(now) and self.counts[key][1] < now + TTL - TTL // 16:
            self.counts[key] = count, now + TTL
        return count

    def alive(self, now: int) -> dict[str, int]:
        return {key: count for key, (count, expires) in sorted(self.counts.items()) if expires > now}


def application(ttl_from: Literal["write", "access"]) -> ps.TaskApplication:
    app = ps.TaskApplication("ttl", Count)
    app.store("counts", value=ps.Long(), ttl_ms=TTL, ttl_from=ttl_from)
    app.input("m.in", value=ps.String())
    app.output("m.out")
    return app


@pytest.mark.few(1)
@examples(0.3)
@given(st.integers(0, 2**32))
@pytest.mark.parametrize("ttl_from", ["write", "access"])
def test_a_job_with_time_to_live(ttl_from: Literal["write", "access"], seed: int) -> None:
    rng = random.Random(seed)
    runner = TestRunner(application(ttl_from), partitions=1, dead_letter="m.dead")
    oracle = Oracle(ttl_from == "access")
    messages: list[tuple[str, str]] = []
    expected: list[Any] = []
    committed, now = deepcopy(oracle), 0
    for _ in range(rng.randint(1, 12)):
        new = [
            (rng.choice("abc"), rng.choice(["put", "get", "delete", "fail", "all"])) for _ in range(rng.randrange(5))
        ]
        messages += new
        runner.input("m.in", new)
        passed = rng.choice([0, 1, 30, TTL - 1, TTL, 3 * TTL])
        now += passed
        runner.advance_time(passed)
        expected += oracle.process(messages, now)
        assert runner.store("counts") == oracle.alive(now)
        if rng.random() < 0.3:
            runner.commit()
            committed = deepcopy(oracle)
        elif rng.random() < 0.3:
            oracle = deepcopy(committed)
            assert runner.crash().restore().store("counts") == oracle.alive(now)
            runner.run(batch_messages=rng.choice([None, 1]))
            expected += oracle.process(messages, now)
    assert [message.value for message in runner.output("m.out")] == expected
    runner.end_inputs()
    assert runner.store("counts") == oracle.alive(now), "the end of the stream expires nothing"
    runner.close()
