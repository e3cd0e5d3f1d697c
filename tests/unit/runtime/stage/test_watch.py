"""Tasks in which a process has ended do the same as others, one message at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import penstock as ps
from penstock.batch.batch import Batch, Culprit, WatchedTask
from penstock.host.position_page import TIMER, MessageId, PositionPage, PositionSlot, Span, use_page
from penstock.runtime.stage import attempt as attempts
from penstock.runtime.stage.failures import MessageWatch
from penstock.runtime.stage.instance import StageInstance
from penstock.testing import TestRunner

EVERYTHING = Span(-(1 << 62), 1 << 62, -(1 << 62), 1 << 62)
ROWS = ps.Columns(pa.schema([("key", pa.string()), ("n", pa.int64())]))
MESSAGES = [{"key": f"k{n % 5}", "n": n} for n in range(60)]


def watch_all(instance: StageInstance, batch: Batch) -> MessageWatch:
    return MessageWatch(instance, batch, WatchedTask(instance.stage, instance.task, (EVERYTHING,)))


def numbered(event: dict[str, Any]) -> list[dict[str, Any]]:
    if event["n"] == 13:
        raise ValueError("13")
    return [{**event, "copy": copy} for copy in range(event["n"] % 3)]


class Sums(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.sums = context.store("sums")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        total = (self.sums.get(envelope.key) or 0) + envelope.value["n"]
        self.sums.put(envelope.key, total)
        if total % 7 == 0:
            raise ValueError("a multiple of 7")
        collector.emit(key=envelope.key, value=total)


def expansions() -> ps.StreamApplication:
    app = ps.StreamApplication("expansions")
    app.store("sums", key=ps.String(), value=ps.Integer())
    events = app.input("m.in", value=ps.Json()).flat_map(numbered)
    events = events.partition_by(lambda event: event["key"], key=ps.String(), value=ps.Json())
    events.process(Sums, stores=["sums"]).send_to(app.output("m.out", key=ps.String(), value=ps.Json()))
    return app


def columns() -> ps.StreamApplication:
    app = ps.StreamApplication("columns")
    rows = app.input("m.in", value=ROWS).filter(ps.col("n") != 13).partition_by(ps.col("key"), key=ps.String())
    sums = rows.aggregate({"n": ps.Sum(ps.col("n")), "most": ps.Max(ps.col("n"))})
    sums.send_to(app.output("m.out", key=ps.String(), value=ps.Json()))
    return app


def entries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[MessageId, str]]:
    """The messages that are entered on the page from now on."""
    entered: list[tuple[MessageId, str]] = []
    enter = PositionSlot.enter_message

    def note(slot: PositionSlot, message: MessageId, text: str = "") -> None:
        entered.append((message, text))
        enter(slot, message, text)

    monkeypatch.setattr(PositionSlot, "enter_message", note)
    return entered


@pytest.mark.parametrize("make", [expansions, columns])
def test_watched_tasks_do_the_same(
    make: Callable[[], ps.StreamApplication], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results() -> tuple[list[Any], list[Any]]:
        runner = TestRunner(make(), partitions=2, dead_letter="m.dead").input("m.in", MESSAGES).run()
        letters = (orjson.loads(each.value) for each in runner.output("m.dead"))
        sent = [(each.partition, each.offset, each.key, each.value) for each in runner.output("m.out")]
        return sent, [(each["offset"], each["partition"], each["reason"]) for each in letters]

    expected = results()
    entered = entries(monkeypatch)
    monkeypatch.setattr(attempts, "watch_for", watch_all)
    use_page(PositionPage.create(tmp_path / "a.page"))
    try:
        assert results() == expected
    finally:
        use_page(None)
    assert len(entered) >= len(MESSAGES)
    assert len({message for message, _ in entered}) == len(entered), "each message has a name of its own"


class Due(ps.StreamTask):
    """Says when it is time."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.context.schedule(envelope.key, envelope.value["n"], "due")

    def on_timer(self, timer: ps.ExpiredTimer, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        collector.emit(key=timer.key, value=timer.time_ms)


def timers() -> ps.StreamApplication:
    app = ps.StreamApplication("due")
    events = app.input("m.in", value=ps.Json(), timestamp=lambda event: event["n"])
    events = events.partition_by(lambda event: event["key"], key=ps.String(), value=ps.Json())
    due = events.process(Due, timers=ps.String(), id="due")
    due.send_to(app.output("m.out", key=ps.String(), value=ps.Json()))
    return app


def due(culprits: tuple[Culprit, ...], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    """The messages that timers sent, and the dead letters."""

    def watch(instance: StageInstance, batch: Batch) -> MessageWatch:
        return watch_all(instance, batch.with_suspects((), culprits))

    monkeypatch.setattr(attempts, "watch_for", watch)
    runner = TestRunner(timers(), partitions=1, dead_letter="m.dead").input("m.in", MESSAGES).run()
    runner.advance_watermark(1_000)
    letters = [orjson.loads(each.value) for each in runner.output("m.dead")]
    return sorted((each.key, each.value) for each in runner.output("m.out")), letters


def test_a_timer_that_ends_its_process_alone_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = entries(monkeypatch)
    use_page(PositionPage.create(tmp_path / "a.page"))
    try:
        fired, letters = due((), monkeypatch)
        assert fired == [(f"k{n}", 55 + n) for n in range(5)]
        firings = [(message, text) for message, text in entered if message.way == TIMER]
        assert len({message for message, _ in firings}) == 5
        assert all("due" in text for _, text in firings)
        left, letters = due((Culprit(firings[2][0], "why"),), monkeypatch)
    finally:
        use_page(None)
    (letter,) = letters
    assert (letter["name"], letter["reason"], letter["operator"]) == ("due", "ProcessEndedError: why", "due")
    assert sorted([*left, (letter["key"], letter["timestamp"])]) == fired
