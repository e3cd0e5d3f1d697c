"""Starts of operators that depend on the order of messages, and inputs that have none across their partitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.start.fit import order_warnings
from penstock.system.files.system import FilesSystem
from tests.support.world.world import World

DAY = 86_400_000
ORDERED = {"order": "event-time"}


class Rule(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None: ...


def week() -> ps.Window:
    return ps.Windows.sliding("7d", emit="each", aggregates={"sum": ps.Sum(lambda row: row["euros"])})


def rolling(**options: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("rolling")
    paid = app.input("files.paid", timestamp=lambda row: int(row["day"]) * DAY)
    panes = paid.partition_by(lambda row: row["user"], id="by").window(week(), id="week", **options)
    panes.map(lambda pane: pane.message["sum"]).send_to(app.output("m.out"))
    return app


def folder_of(path: Path, partitions: int) -> FilesSystem:
    folder = path / "lake" / "paid"
    folder.mkdir(parents=True, exist_ok=True)
    for day, euros in ((0, 1), (1, 10), (7, 100)):
        (folder / f"day-{day}.json").write_text(json.dumps({"user": "u", "day": day, "euros": euros}) + "\n")
    options = {"folder": str(path / "lake"), "listing": str(path / f"listing-{partitions}")}
    return FilesSystem.configured("files", {**options, "partitions": str(partitions)})


@pytest.mark.parametrize(("partitions", "options", "warns"), [(2, {}, True), (2, ORDERED, False), (1, {}, False)])
def test_a_start_warns_of_rolling_features_over_a_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, partitions: int, options: dict[str, Any], warns: bool
) -> None:
    world = World(tmp_path / "work", "rolling", ("out",))
    world.systems["files"] = folder_of(tmp_path, partitions)
    world.make(rolling(**options).graph(), {}).loop.start()
    world.close()
    found = [record.getMessage() for record in caplog.records if "depend on the order" in record.getMessage()]
    expected = (
        "the results of operator `week` depend on the order of messages, because each message is counted with those "
        "that came before it. The input `files.paid` spreads messages over several partitions, which are read side by "
        'side, so later messages may come before earlier ones. To have an order, declare order="event-time" for the '
        "operator, or have the input read in order, or as one partition"
    )
    assert found == ([expected] if warns else [])


def warned(declare: Callable[[ps.StreamApplication, ps.MessageStream[Any]], object]) -> list[str]:
    """The operators of an application over a folder that a start warns of."""
    app = ps.StreamApplication("a")
    declare(app, app.input("files.a", id="a").merge(app.input("m.b", id="b"), id="merged"))
    found = order_warnings(app.graph(), lambda stream: stream.system != "files")
    return [text.removeprefix("the results of operator `").split("`")[0] for text in found]


@pytest.mark.parametrize(
    ("declare", "warns"),
    [
        (lambda app, s: s.window(week(), id="o"), True),
        (lambda app, s: s.window(ps.Windows.count(3), id="o"), True),
        (lambda app, s: s.window(ps.Windows.tumbling(3), id="o"), False),
        (lambda app, s: s.join(s, print, within_ms=1, keep="newest", id="o"), True),
        (lambda app, s: s.join(s, print, within_ms=1, keep="newest", order="event-time", id="o"), False),
        (lambda app, s: s.join(s, print, within_ms=1, id="o"), False),
        (lambda app, s: s.process(Rule, timers=ps.String(), id="o"), True),
        (lambda app, s: s.process(Rule, timers=ps.String(), order="event-time", id="o"), False),
        (lambda app, s: s.process(Rule, id="o"), False),
        (lambda app, s: s.send_to(app.table("t"), id="o"), True),
        (lambda app, s: s.send_to(app.table("t", history_ms=5), id="o"), False),
        (lambda app, s: app.input("m.c").window(week(), id="o"), False),
    ],
)
def test_the_operators_that_a_start_warns_of(declare: Any, warns: bool) -> None:
    assert warned(declare) == (["o"] if warns else [])


def test_rolling_features_over_a_folder_do_not_know_the_future(tmp_path: Path) -> None:
    world = World(tmp_path / "work", "rolling", ("out",))
    world.systems["files"] = folder_of(tmp_path, 2)
    world.make(rolling(order="event-time").graph(), {}, until_latest=True).loop.run()
    found = sorted((timestamp // DAY, json.loads(value or b"")) for timestamp, _, value, *_ in world.records("out"))
    world.close()
    assert found == [(0, 1), (1, 11), (7, 110)]
