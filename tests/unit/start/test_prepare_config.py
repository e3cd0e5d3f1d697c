"""Refusals and warnings of starts before anything is made: application, configuration and systems must agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.retention import StreamRetention
from penstock.config.load import load_config
from penstock.errors import ConfigError, IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.job.identity import OwnedStreams
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.start.check import check_config, order_warnings
from penstock.start.job_streams import JobStreams
from penstock.start.part import start_parts
from penstock.system.files.system import FilesSystem
from penstock.system.local import LocalSystem
from tests.support.world.world import World


def graph(*stores: str) -> ApplicationGraph:
    app = ps.StreamApplication("flights")
    for store in stores:
        app.store(store, key=ps.String(), value=ps.Json())
    app.input("local.trips").process(ps.StreamTask, stores=list(stores), id="totals")
    return app.graph()


def check(*stores: str, **config: object) -> None:
    check_config(graph(*stores), load_config(overrides={"job.name": "flights", **config}, environ={}), start_parts())


def test_a_store_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"`stores\.b\.\*` is configured, but the application has the stores: `a`"):
        check("a", **{"stores.b.factory": "memory"})


@pytest.mark.parametrize(
    "versions",
    [
        {"task.checkpoint.write.versions": "1"},
        {"task.checkpoint.write.versions": "1,2", "task.checkpoint.read.versions": "1"},
        {"task.checkpoint.write.versions": "1,2", "task.checkpoint.read.versions": "1,2"},
    ],
)
def test_a_version_that_cannot_hold_a_stores_markers(versions: dict[str, str]) -> None:
    streamed = {"stores.a.backup.factories": "blob,changelog-stream"}
    with pytest.raises(ConfigError, match=r"read in version 1 .* The stores `b`, `c` are not backed up to it"):
        check("a", "b", "c", **versions, **streamed)
    check("a", **versions, **streamed)
    check(**versions)


def test_versions_that_hold_everything() -> None:
    check("a", **{"task.checkpoint.write.versions": "1,2"})
    check("a", **{"task.checkpoint.read.versions": "1,2"})


def test_outputs_are_created_with_the_configured_retention(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.start")
    app = ps.StreamApplication("flights")
    app.input("local.trips").send_to(app.output("local.copies"))
    config: dict[str, object] = {"systems.local.path": str(tmp_path), "streams.local.copies.retention.bytes": "2GB"}

    def create(**more: object) -> StreamRetention:
        overrides = {"job.name": "flights", **config, **more}
        streams = JobStreams.open(app.graph(), load_config(overrides=overrides, environ={}))
        try:
            owned = OwnedStreams(open_store("memory://outputs"), JobPaths("flights", "1"))
            assert streams.create_outputs(3, owned) == {"local.copies": 3}
            return streams.admins["local"].retention("copies")
        finally:
            streams.close()

    for _ in range(2):
        assert create() == StreamRetention(max_bytes=2 << 30)
    (created,) = [record.getMessage() for record in caplog.records]
    assert created == (
        "created the output `local.copies`, which did not exist, with 3 partitions; it keeps its messages: 2GB per "
        "partition"
    )
    with pytest.raises(IncompatibleError, match=r"2GB per partition; asked for: 7d, 2GB per partition.* stream retain"):
        create(**{"streams.local.copies.retention.ms": "7d"})
    LocalSystem("local", str(tmp_path)).admin().set_retention("copies", StreamRetention(max_age_ms=1))
    with pytest.raises(IncompatibleError, match="keeps its messages: 1ms"):
        create()
    config.clear()
    assert create(**{"systems.local.path": str(tmp_path)}) == StreamRetention(max_age_ms=1)


def test_retention_of_a_stream_that_is_no_output() -> None:
    with pytest.raises(ConfigError, match=r"`local.trips` is not an output .*penstock stream retain local.trips"):
        check(**{"streams.local.trips.retention.ms": "1d"})
    check(**{"task.dead.letter.stream": "local.dead", "streams.local.dead.retention.ms": "1d"})
    for wrong in ({"streams.local.x.retention.bytes": "1000"}, {"streams.local.x.retention.ms": "0"}):
        with pytest.raises(ConfigError, match="expected"):
            check(**wrong)


def test_a_consumer_group_needs_an_input_that_has_them() -> None:
    app = ps.StreamApplication("copy")
    app.input("local.in").send_to(app.output("local.out"))
    config = load_config(overrides={"job.name": "copy", "task.commit.group": "copies"}, environ={})
    with pytest.raises(ConfigError, match=r"`task\.commit\.group` = `copies`, and no input is of a system that has"):
        JobStreams.used(app.graph(), config)


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


SCHEMA = {"schema": "n INT"}


@pytest.mark.parametrize(
    ("stream", "options", "reason"),
    [
        ("rides", SCHEMA, "Penstock cannot write to `local.rides`"),
        ("new", {}, "need a schema"),
        ("new", {**SCHEMA, "order": "name"}, "`systems.local.order` is for inputs"),
    ],
)
@pytest.mark.parametrize("role", ["output", "dead letters"])
def test_nothing_is_made_for_a_start_that_is_refused(
    tmp_path: Path, stream: str, options: dict[str, str], reason: str, role: str
) -> None:
    """Neither the outputs that could be made, nor anything in the folders."""
    (folder := tmp_path / "lake" / "rides").mkdir(parents=True)
    (folder / "hour-0.csv").write_bytes(b"n\n1\n")
    world = World(tmp_path / "work", "rides", ("in",))
    given = {"folder": str(tmp_path / "lake"), "listing": str(tmp_path / "listing"), **options}
    world.systems["local"] = FilesSystem.configured("local", given)
    app = ps.StreamApplication("rides")
    source = app.input("m.in")
    source.send_to(app.output("m.first"))
    if role == "output":
        source.send_to(app.output(f"local.{stream}"))
    keys = {} if role == "output" else {"task.dead.letter.stream": f"local.{stream}"}
    with pytest.raises(ConfigError, match=reason):
        world.make(app.graph(), keys).loop.start()
    assert world.system.admin().streams() == ["in"]
    assert [each.name for each in (tmp_path / "lake").rglob("*")] == ["rides", "hour-0.csv"]
    world.close()
