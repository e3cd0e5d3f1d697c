"""A log is that of a shadow from its first checkpoint on, or never."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import admin
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
