"""Records that the stream of an exactly-once output refuses fail before any checkpoint has them."""

from __future__ import annotations

import os
from typing import Any

import pytest

import penstock as ps
from penstock.system.contract.messages import RecordLimits
from penstock.system.memory import MemoryAdmin
from penstock.testing import TestRunner

LIMITS = RecordLimits(needs_key=True, max_bytes=50)
ONCE = {"streams.m.out.output.guarantee": "exactly-once"}
WRONG = [(None, "no key"), ("k", "x" * 60)]
REASONS = ["it has no key, and the stream is compacted", "it has 61 bytes, and the stream takes at most 50"]


class Send(ps.StreamTask):
    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        collector.send("m.out", key=envelope.key, value=envelope.value)


def of_columns(app: ps.StreamApplication, source: Any, out: Any) -> None:
    source.filter(lambda message: True).send_to(out)


def of_raw_columns(app: ps.StreamApplication, source: Any, out: Any) -> None:
    source.send_to(out)


def of_a_task(app: ps.StreamApplication, source: Any, out: Any) -> None:
    source.process(Send)


def runner_of(build: Any, config: dict[str, str], **more: Any) -> TestRunner:
    app = ps.StreamApplication("copy")
    source = app.input("m.in", key=ps.String(), value=ps.String())
    build(app, source, app.output("m.out", key=ps.String(), value=ps.String()))
    return TestRunner(app, partitions=1, config=config, **more)


WAYS = [of_columns, of_raw_columns, of_a_task]


@pytest.fixture
def _limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryAdmin, "record_limits", lambda self, stream: LIMITS)


@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("build", WAYS)
@pytest.mark.parametrize(("wrong", "reason"), [*zip(WRONG, REASONS, strict=True)])
def test_the_run_ends_before_a_checkpoint_has_it(build: Any, wrong: Any, reason: str) -> None:
    runner = runner_of(build, ONCE)
    runner.input("m.in", [("a", "1")]).run().commit()
    with pytest.raises(ps.UserCodeError) as failed:
        runner.input("m.in", [("b", "2"), wrong, ("c", "3")]).run()
    assert f"the output `m.out` refuses a message: {reason}" in str(failed.value)
    assert [message.value for message in runner.output("m.out")] == ["1"]
    runner.close()


@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("build", WAYS)
def test_it_goes_to_the_dead_letters_if_there_are_any(build: Any) -> None:
    runner = runner_of(build, ONCE, dead_letter="m.dead")
    runner.input("m.in", [("a", "1"), *WRONG, ("b", "2")]).run().commit()
    assert [message.value for message in runner.output("m.out")] == ["1", "2"]
    assert len(runner.output("m.dead")) == 2
    runner.close()


@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("build", WAYS)
def test_headers_count(build: Any) -> None:
    runner = runner_of(build, ONCE, dead_letter="m.dead")
    runner.input("m.in", [("a", "x" * 30)], headers={"h": "y" * 18}).input("m.in", [("b", "x" * 30)]).run()
    runner.input("m.in", [("c", "x" * 30)], headers={"h": "y" * 19}).run().commit()
    assert [(message.key, len(message.headers)) for message in runner.output("m.out")] == [("a", 1), ("b", 0)]
    (letter,) = runner.output("m.dead")
    assert b"it has 51 bytes, and the stream takes at most 50" in letter.value
    runner.close()


@pytest.mark.usefixtures("_limited")
def test_an_output_that_is_at_least_once_has_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system refuses what it refuses with the batch; nothing is looked at here."""
    runner = runner_of(of_columns, {})
    runner.input("m.in", [("a", "1"), *WRONG]).run().commit()
    assert len(runner.output("m.out")) == 3
    runner.close()


def test_a_record_that_is_small_when_compressed_is_taken() -> None:
    limits = RecordLimits(max_bytes=1000, compression="zstd", max_plain_bytes=5000)
    assert limits.refused(b"", b"x" * 4000) is None
    assert "when compressed" in (limits.refused(b"", os.urandom(4000)) or "")
    assert "the client sends at most 5,000" in (limits.refused(b"", b"x" * 5001) or "")
    assert limits.refused(b"", os.urandom(1001)) is None  # not certain
    assert limits.least_bytes == 1000
    assert RecordLimits().least_bytes is None
