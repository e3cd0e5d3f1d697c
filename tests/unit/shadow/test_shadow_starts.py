"""A log is that of a shadow from its first checkpoint on, or never."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import admin
from penstock.api.retention import StreamRetention
from penstock.config import load_config
from penstock.errors import ConfigError, IncompatibleError
from penstock.objects.open import open_job_root
from penstock.testing.in_process import InProcessDriver
from tests.support.jobs.example_job import publish
from tests.support.tools.cli import own_home

SHADOW = {"job.shadow.enabled": True}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)
    admin.create_stream(admin.open_stream("trips"), 2)


def sums() -> ps.StreamApplication:
    """The sum of the values of each key, sent whenever it changes."""
    app = ps.StreamApplication("sums")
    total = app.input("local.trips").aggregate({"miles": ps.Sum(lambda miles: miles)}, id="miles")
    total.send_to(app.output("local.totals"))
    return app


class Miles(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.miles = context.store("miles")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.miles[envelope.key] = self.miles.get(envelope.key, 0) + envelope.value
        collector.send("local.totals", key=envelope.key, value=self.miles[envelope.key])


def counted() -> ps.TaskApplication:
    """As `sums`, with a store of its own."""
    app = ps.TaskApplication("sums", Miles)
    app.store("miles")
    app.input("local.trips")
    app.output("local.totals")
    return app


def run(name: str, app: Any = None, **keys: object) -> None:
    config = load_config(overrides={"job.name": name, "task.commit.ms": 0, **keys})
    with closing(open_job_root(config.job)) as objects:
        graph = (app or sums()).graph()
        with closing(InProcessDriver(graph, config, objects, {}, containers=1, until_latest=True)) as driver:
            driver.loop.run()


def totals(stream: str = "totals") -> int:
    return sum(ends.upcoming for ends in admin.open_stream(stream).system.admin().offsets(stream).values())


def test_a_shadow_of_a_fork_goes_on_and_sends_nothing() -> None:
    publish([("N1", 500)])
    run("flights")
    sent = totals()
    with admin.open_job("flights") as job:
        admin.fork(job, "what-if")
    publish([("N1", 700), ("N2", 5)])
    run("what-if", **SHADOW)
    run("what-if", **SHADOW)  # again, from its own checkpoint
    assert totals() == sent
    with admin.open_job("what-if") as job, admin.open_state(job, "miles.aggregate") as miles:
        assert {each.key: each.value["miles"] for each in miles.scan()} == {b"N1": 1200, b"N2": 5}
    with pytest.raises(IncompatibleError, match=r"`what-if-1` is a shadow: .* no output has it"):
        run("what-if")
    run("flights")
    assert totals() == sent + 2


def test_a_fork_of_a_shadow_may_send() -> None:
    publish([("N1", 500)])
    run("what-if", **SHADOW)
    with admin.open_job("what-if") as job:
        admin.fork(job, "loud")
    publish([("N1", 700)])
    run("loud")
    assert totals() == 1


def test_a_job_that_has_sent_does_not_become_a_shadow() -> None:
    publish([("N1", 500)])
    run("flights")
    with pytest.raises(IncompatibleError, match=r"`flights-1` has sent output, .*penstock fork flights-1"):
        run("flights", **SHADOW)
    with admin.open_job("flights") as job:
        admin.fork(job, "what-if")
    run("what-if")
    with pytest.raises(IncompatibleError, match="has sent output"):
        run("what-if", **SHADOW)


def test_a_shadow_does_not_read_what_it_writes() -> None:
    app = ps.StreamApplication("loop")
    app.input("local.trips").send_to(app.output("local.trips"))
    with pytest.raises(ConfigError, match=r"reads `local\.trips`, which it writes as well"):
        run("loop", app, **SHADOW)


def test_code_can_ask(tmp_path: Path) -> None:
    class Notes(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            (tmp_path / context.job_name).write_text(str(context.is_shadow))

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...

    app = ps.TaskApplication("asked", Notes)
    app.input("local.trips")
    publish([("N1", 1)])
    run("shadowed", app, **SHADOW)
    run("loud", app)
    assert [(tmp_path / name).read_text() for name in ("shadowed", "loud")] == ["True", "False"]


def test_a_changelog_that_is_named_is_the_jobs_and_not_its_shadows() -> None:
    key = "stores.miles.aggregate.changelog"
    keys = {"stores.backup.factories": "changelog-stream", "stores.restore.factories": "changelog-stream"}
    publish([("N1", 500)])
    run("flights", **keys, **{key: "local.mine"})
    with admin.open_job("flights", overrides=keys) as job:
        admin.fork(job, "what-if")
    with pytest.raises(ConfigError, match=r"is that of the job that `what-if-1` was forked from.*mine-what-if-1"):
        run("what-if", **keys, **{key: "local.mine"}, **SHADOW)
    publish([("N1", 7)])
    run("what-if", **keys, **{key: "local.mine-what-if-1"}, **SHADOW)
    what_if = admin.open_job("what-if", overrides={**keys, **SHADOW})
    with what_if as job, admin.open_state(job, "miles.aggregate") as miles:
        assert [each.value["miles"] for each in miles.scan()] == [507]


def edit(name: str, **keys: object) -> None:
    with (
        admin.open_job(name, overrides=keys) as job,
        admin.plan_edit(job, "miles", sets={"N1": "7"}) as planned,
    ):
        admin.edit_state(planned)


def set_positions(name: str, **keys: object) -> None:
    with admin.open_job(name, overrides=keys) as job:
        admin.write_checkpoint(admin.plan_offsets(job, {ps.SystemStreamPartition("local", "trips", 0): 0}))


def detach(name: str, **keys: object) -> None:
    with admin.open_job(name, overrides=keys) as job:
        admin.detach(job)


CHANGES = {"edited": edit, "moved": set_positions, "detached": detach}


@pytest.mark.parametrize("change", CHANGES)
def test_a_fork_that_a_command_has_changed_can_still_become_a_shadow(change: str) -> None:
    publish([("N1", 500)])
    run("flights", counted())
    with admin.open_job("flights") as job:
        admin.fork(job, "what-if")
    CHANGES[change]("what-if")
    sent = totals()
    publish([("N1", 700)])
    run("what-if", counted(), **SHADOW)
    assert totals() == sent
    with pytest.raises(IncompatibleError, match="is a shadow"):
        run("what-if", counted())


@pytest.mark.parametrize("change", ["edited", "moved"])
def test_a_shadow_that_a_command_has_changed_remains_one(change: str) -> None:
    publish([("N1", 500)])
    run("what-if", counted(), **SHADOW)
    CHANGES[change]("what-if", **SHADOW)
    with pytest.raises(IncompatibleError, match="is a shadow"):
        run("what-if", counted())
    run("what-if", counted(), **SHADOW)


def test_commands_that_change_a_shadow_must_know_it() -> None:
    publish([("N1", 500)])
    run("what-if", counted(), **SHADOW)
    for change in (edit, set_positions):
        with pytest.raises(ConfigError, match=r"`what-if-1` is a shadow.*-c job\.shadow\.enabled=true"):
            change("what-if")
    with admin.open_job("what-if") as job, pytest.raises(ConfigError, match="is a shadow"):
        admin.collect_garbage(job)
    with admin.open_job("what-if", overrides=SHADOW) as job:
        admin.collect_garbage(job)


def test_what_a_shadow_holds_back_goes_with_it(tmp_path: Path) -> None:
    publish([("N1", 500)])
    run("what-if", **SHADOW)
    held = load_config(overrides={"job.name": "what-if"}).job.shadow_folder
    assert held.is_dir()
    with admin.open_job("what-if") as job:
        assert str(held) in admin.job_content(job).folders
        admin.delete_job(job)
    assert not held.exists()
    run("what-if")
    with admin.open_job("what-if") as job:
        assert str(held) not in admin.job_content(job).folders, "it is no shadow"


def test_nobody_else_writes_to_a_shadows_streams(tmp_path: Path) -> None:
    """An input that was published to there would be held back from then on."""
    publish([("N1", 500)])
    run("what-if", **SHADOW)
    (tmp_path / "more.json").write_text('{"key": "N1", "value": 7}')
    trips = admin.open_stream("trips", overrides={"job.name": "what-if", **SHADOW})
    ways: dict[str, Any] = {
        "publish": lambda: admin.publish(trips.system, "trips", str(tmp_path / "more.json"), admin.PublishOptions()),
        "create": lambda: admin.create_stream(trips, 2),
        "retain": lambda: admin.set_retention(trips, StreamRetention(max_bytes=1 << 30)),
        "end": lambda: admin.end_stream(trips),
        "replay": lambda: admin.replay(trips),
    }
    for way in ways.values():
        with pytest.raises(ConfigError, match=r"job\.shadow\.enabled.*Leave the option out"):
            way()
    assert totals("trips") == 1


def test_a_shadow_in_a_changelog_alone_cannot_be_forked() -> None:
    keys = {"stores.backup.factories": "changelog-stream", "stores.restore.factories": "changelog-stream"}
    publish([("N1", 500)])
    run("what-if", **keys, **SHADOW)
    with (
        admin.open_job("what-if", overrides=keys) as job,
        pytest.raises(IncompatibleError, match=r"its changelog of store `miles\.aggregate` is held back"),
    ):
        admin.fork(job, "loud")
    run("what-if", **keys | {"stores.backup.factories": "changelog-stream,blob"}, **SHADOW)
    with admin.open_job("what-if", overrides=keys | {"stores.backup.factories": "changelog-stream,blob"}) as job:
        admin.fork(job, "loud")
    publish([("N1", 7)])
    run("loud", **{"stores.backup.factories": "blob"})
    with admin.open_job("loud") as job, admin.open_state(job, "miles.aggregate") as miles:
        assert [each.value["miles"] for each in miles.scan()] == [507]


def test_shadows_may_share_a_path(tmp_path: Path) -> None:
    keys = {**SHADOW, "job.shadow.path": tmp_path / "held"}
    publish([("N1", 500)])
    for name in ("first", "second"):
        run(name, **keys)
    (tmp_path / "held" / "mine").write_text("mine")
    with admin.open_job("first", overrides=keys) as job:
        admin.delete_job(job)
    assert sorted(path.name for path in (tmp_path / "held").iterdir()) == ["mine", "second-1"]
    second = admin.open_stream("totals", overrides={"job.name": "second", **keys})
    assert sum(ends.upcoming for ends in second.system.admin().offsets("totals").values()) == 1
