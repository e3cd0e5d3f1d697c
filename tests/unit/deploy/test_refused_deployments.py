"""Deployments that are refused before anything has changed; and commands on a job that has handed over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import admin
from penstock.admin.job.charge import hand_over, take_back, take_over
from penstock.admin.job.check import check_application
from penstock.admin.job.deploy import Deployment
from penstock.admin.jobs import FoundJob
from penstock.config import load_config
from penstock.deploy.wing import handed_to
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.replay.wing import REPLAY
from penstock.testing.in_process import InProcessDriver
from tests.support.jobs.example_job import publish
from tests.support.tools.cli import call
from tests.support.world.deployed_world import own_place
from tests.unit.shadow.test_shadow_starts import counted, sums, totals
from tests.unit.test_readme import examples

FOLLOWS: dict[str, Any] = {"job.shadow.enabled": True, "job.replay.follows": "one-1"}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_place(tmp_path, monkeypatch)
    admin.create_stream(admin.open_stream("trips"), 2)


def run(name: str, app: Any = None, *, steps: int | None = None, close: bool = False, **keys: Any) -> None:
    """Run a job to the end of what is there, or so many steps."""
    config = load_config(overrides={"job.name": name, "task.commit.ms": 1, **keys})
    objects = open_job_root(config.job)
    graph = (app or sums()).graph()
    with closing(
        InProcessDriver(graph, config, objects, {}, containers=1, until_latest=steps is None, close=close)
    ) as driver:
        if steps is None:
            driver.loop.run()
            return
        driver.loop.start()
        for _ in range(steps):
            driver.loop.step()
        driver.stop.ask()
        driver.loop.run_to_the_end()


def found(name: str, **keys: object) -> FoundJob:
    config = load_config(overrides={"job.name": name, **keys})
    return FoundJob(config, JobPaths(name, "1"), open_job_root(config.job))


def deployment(new: str = "two", app: Any = None, old: str = "one", **given: Any) -> Deployment:
    return Deployment(found(old), load_config(overrides={"job.name": new}), app or sums(), **given)


def hand(to: str = "two", old: str = "one") -> Any:
    """Hand over, whatever follows."""
    latest = found(old).log.read().latest
    return hand_over(found(old), f"{to}-1", 0 if latest is None else latest.section(REPLAY).line.epoch)


def deploy(new: str = "two", old: str = "one") -> None:
    """All of a deployment of a job that does not run."""
    first = deployment(new, old=old, rollback=found(new).log.read().latest is not None)
    first.begin()
    hand(new, old)
    run(new, steps=20, **{**FOLLOWS, "job.replay.follows": f"{old}-1"})
    take_over(found(old), first.new)


def statuses() -> list[Any]:
    with admin.open_all_jobs() as jobs:
        return admin.statuses(jobs)


def test_the_job_is_in_charge_that_the_record_names() -> None:
    publish([("N1", 500)])
    run("one")
    deploy()
    for keys in ({}, {"job.shadow.enabled": True}, {**FOLLOWS, "job.replay.follows": "three-1"}):
        with pytest.raises(IncompatibleError, match="has handed over to job `two-1`"):
            run("one", **keys)
    with pytest.raises(IncompatibleError, match="has handed over to job `two-1`"):
        check_application(sums(), overrides={"job.name": "one"})
    assert check_application(sums(), overrides={"job.name": "two"}).begins_with is not None
    assert "handed over to two-1" in " ".join(call("status", "one")[0].split())
    assert "took over from one-1" in " ".join(call("status", "two")[0].split())
    shown = {each.job: (each.successor, each.status, each.failure) for each in statuses()}
    assert shown["one-1"] == ("two-1", "not running", None), "a start that was refused is no failure"
    lines = [line.split() for line in call("status")[0].splitlines()]
    assert ["one-1", "handed", "over", "to", "two-1"] in [line[:5] for line in lines]
    assert ["two-1", "not", "running"] in [line[:3] for line in lines]
    sent = totals()
    publish([("N1", 7)])
    run("two")
    assert totals() == sent + 1
    deploy("one", old="two")
    with pytest.raises(IncompatibleError, match="has handed over to job `one-1`"):
        run("two")
    publish([("N1", 1)])
    run("one")
    with admin.open_job("one") as job, admin.open_state(job, "miles.aggregate") as miles:
        assert {each.key: each.value["miles"] for each in miles.scan()} == {b"N1": 508}


def test_no_command_changes_a_job_that_has_handed_over() -> None:
    publish([("N1", 500)])
    run("one", counted())
    checkpoint = str(admin.read_checkpoint(found("one")).id)
    deployment(app=counted()).begin()
    hand()
    with admin.open_job("one") as job:
        change = admin.plan_offsets(job, {ps.SystemStreamPartition("local", "trips", 0): 0}, checkpoint)
        with pytest.raises(IncompatibleError, match="has handed over to job `two-1`, so its last checkpoint stays"):
            admin.write_checkpoint(change)
        with (
            admin.plan_edit(job, "miles", sets={"N1": "7"}) as planned,
            pytest.raises(IncompatibleError, match="change that job, or a fork of this one"),
        ):
            admin.edit_state(planned)
        admin.fork(job, "free")
    run("free", counted())
    assert handed_to(found("free").log.read()) == ""


def test_who_has_not_taken_over_gives_the_charge_back() -> None:
    """The changed application may not be able to process the last messages."""
    publish([("N1", 500)])
    run("one")
    deployment().begin()
    hand()
    run("two", steps=1, **FOLLOWS)
    back = deployment("one", old="two", rollback=True)
    sent = totals()
    assert back.begin().job.shadow_enabled is False
    assert back.is_over
    publish([("N1", 7)])
    run("one")
    assert totals() == sent + 1
    with pytest.raises(IncompatibleError, match="job `two-1` has given up, and never takes over"):
        deployment().begin()
    assert deployment("one", old="two", rollback=True).begin().job.shadow_enabled is False
    with pytest.raises(IncompatibleError, match="cannot be taken back"):
        take_back(found("two"), found("one"))


def test_a_successor_that_was_deleted_is_made_again() -> None:
    publish([("N1", 500)])
    run("one")
    deployment().begin()
    hand()
    admin.delete_job(found("two"))
    again = deployment()
    again.begin()
    run("two", steps=20, **FOLLOWS)
    take_over(found("one"), again.new)
    publish([("N1", 7)])
    run("two")
    with admin.open_job("two") as job, admin.open_state(job, "miles.aggregate") as miles:
        assert {each.key: each.value["miles"] for each in miles.scan()} == {b"N1": 507}


def shadow() -> None:
    run("one", **{"job.shadow.enabled": True})


def other() -> None:
    run("one")
    run("two")


def handed() -> None:
    run("one")
    deploy("three")


def of_another() -> None:
    run("one")
    admin.fork(found("one"), "two")
    run("one", steps=1)
    admin.label_checkpoint(found("one"), None, "later")


def begun() -> None:
    run("one")
    deployment().begin()
    run("two", steps=1, **FOLLOWS)


REFUSED: dict[str, tuple[Callable[[], None], dict[str, Any], str]] = {
    "no checkpoint": (lambda: None, {}, "has no checkpoint yet: there is nothing to take over"),
    "the same job": (lambda: run("one"), {"new": "one"}, "cannot take over from itself"),
    "a shadow": (shadow, {}, "is a shadow, whose output was held back"),
    "another job": (other, {}, "there is a job `two-1` already"),
    "handed over": (handed, {}, "has handed over to job `three-1`, which is in charge: deploy from that one"),
    "not back by chance": (handed, {"old": "three", "new": "one"}, "To bring it back: .* --rollback"),
    "back without a past": (lambda: run("one"), {"rollback": True}, "has no checkpoint, so it cannot come back"),
    "an unknown operator": (lambda: run("one"), {"reset_operators": ["hours"]}, "no operator `hours`.* `miles`"),
    "an unknown checkpoint": (lambda: run("one"), {"from_checkpoint": "before"}, "before"),
    "an unknown checkpoint, again": (begun, {"from_checkpoint": "before"}, "is a fork of .*, and not of `before`"),
    "an unknown operator, again": (begun, {"reset_operators": ["hours"]}, "no operator `hours`.* `miles`"),
    "another checkpoint": (of_another, {"from_checkpoint": "later"}, "is a fork of checkpoint .*, and not of `later`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_deployment_is_refused(case: str) -> None:
    prepare, given, message = REFUSED[case]
    prepare()
    before = {name: found(name).log.read().end for name in ("one", "two")}
    with pytest.raises(PenstockError, match=message):
        deployment(**given).begin()
    assert {name: found(name).log.read().end for name in ("one", "two")} == before


def test_a_job_at_the_end_of_its_inputs_has_nothing_to_hand_over() -> None:
    app = ps.StreamApplication("windows")
    trips = app.input("local.trips", timestamp=lambda _: 1000, watermark=ps.BoundedOutOfOrderness(0))
    window = ps.Windows.tumbling(1000, aggregates={"trips": ps.Count()})
    trips.window(window, id="w").map(lambda pane: pane.message).send_to(app.output("local.out"))
    publish([("N1", 500)])
    run("one", app, close=True)
    with pytest.raises(IncompatibleError, match="has come to the end of its inputs"):
        deployment(app=app).begin()


def test_state_in_a_changelog_stream_alone_is_not_taken_over() -> None:
    publish([("N1", 500)])
    run("one", counted())
    first = deployment(app=counted())
    first.begin()
    changelog: dict[str, Any] = {
        "stores.backup.factories": "changelog-stream",
        "stores.restore.factories": "changelog-stream",
    }
    hand()
    run("two", counted(), steps=20, **FOLLOWS, **changelog)
    with pytest.raises(IncompatibleError, match="store `miles` in its changelog alone"):
        take_over(found("one"), first.new)


def test_a_shadow_follows_what_it_is_a_fork_of() -> None:
    publish([("N1", 500)])
    run("one")
    with pytest.raises(IncompatibleError, match="is no fork of a retained checkpoint of job `one-1`"):
        run("two", **FOLLOWS)
    with pytest.raises(ConfigError, match=r"would send its output a second time: set `job\.shadow\.enabled=true`"):
        run("three", **{**FOLLOWS, "job.shadow.enabled": False})
    with pytest.raises(ConfigError, match="job `one-1` cannot follow itself"):
        run("one", **FOLLOWS)
    durable = ps.StreamApplication("durable")
    keyed = durable.input("local.trips").partition_by(lambda miles: str(miles), through="local.by-miles", id="by")
    keyed.send_to(durable.output("local.out"))
    with pytest.raises(ConfigError, match=r"the application has the durable stream `local\.by-miles`"):
        run("four", durable, **FOLLOWS)


def test_who_is_in_charge_and_what_stays_is_told_at_each_step(caplog: pytest.LogCaptureFixture) -> None:
    publish([("N1", 500)])
    run("one", hourly())
    planned = deployment(app=sums(), reset_operators=["hours"])
    assert planned.outcome() == "job one-1 is in charge"
    planned.begin()
    assert "some messages before the change are in no window that is sent" in caplog.text
    told = planned.outcome()
    assert told.startswith("job one-1 is in charge. Job two-1, which follows it, stays")
    assert "`penstock job delete two-1`" in told
    caplog.clear()
    deployment(app=sums(), reset_operators=["hours"]).begin()
    assert "in no window" not in caplog.text, "it was told when the fork was made"
    hand()
    assert "has handed over to two-1" in planned.outcome()


def test_no_job_but_the_fork_is_said_to_be_given_up() -> None:
    """A job that has sent output, or that comes back, has state that nobody else has."""
    publish([("N1", 500)])
    run("one")
    run("two")
    planned = deployment()
    with pytest.raises(IncompatibleError, match="there is a job `two-1` already"):
        planned.begin()
    assert planned.outcome() == "job one-1 is in charge"
    with admin.open_job("two") as job:
        admin.delete_job(job)
    deploy()
    publish([("N1", 7)])
    run("two")
    back = deployment("one", old="two", rollback=True)
    assert back.outcome() == "job two-1 is in charge"
    back.begin()
    assert back.outcome() == "job two-1 is in charge"


def hourly() -> ps.StreamApplication:
    """As `sums`, with a window as well."""
    app = ps.StreamApplication("sums")
    trips = app.input("local.trips")
    trips.aggregate({"miles": ps.Sum(lambda miles: miles)}, id="miles").send_to(app.output("local.totals"))
    trips.window(ps.Windows.tumbling("1h", aggregates={"trips": ps.Count()}), id="hours").map(str, id="shown")
    return app


def test_a_follower_neither_drains_nor_goes_elsewhere() -> None:
    publish([("N1", 500)])
    run("one")
    deployment().begin()
    config = load_config(overrides={"job.name": "two", **FOLLOWS})
    with closing(InProcessDriver(sums().graph(), config, open_job_root(config.job), {}, containers=1)) as driver:
        driver.loop.start()
        driver.loop.ask_to_drain()
        with pytest.raises(IncompatibleError, match="cannot drain by itself"):
            driver.loop.run_to_the_end()
    admin.cancel_drain(found("two"))
    call("startpoint", "set", "two", "--oldest", "--all-partitions", "--stream", "local.trips")
    with pytest.raises(IncompatibleError, match="Delete the startpoints of the job"):
        run("two", steps=3, **FOLLOWS)


def test_a_job_that_is_moved_is_not_followed_further() -> None:
    publish([("N1", 500), ("N2", 5)])
    run("one")
    deployment().begin()
    run("two", steps=3, **FOLLOWS)
    admin.write_checkpoint(admin.plan_offsets(found("one"), {ps.SystemStreamPartition("local", "trips", 0): 0}))
    with pytest.raises(IncompatibleError, match="does not follow by reading alone"):
        run("two", steps=3, **FOLLOWS)


def test_nobody_takes_over_before_the_batches_are_made() -> None:
    publish([("N1", 500)])
    run("one")
    first = deployment()
    first.begin()
    with pytest.raises(IncompatibleError, match="cannot take over from job `one-1` yet"):
        take_over(found("one"), first.new)
    publish([("N1", 5)])
    run("one")
    hand()
    with pytest.raises(IncompatibleError, match="cannot take over from job `one-1` yet"):
        take_over(found("one"), first.new)
    with pytest.raises(IncompatibleError, match="has handed over to job `two-1`"):
        hand("three")
    run("two", steps=0, **FOLLOWS)
    assert deployment().begin().job.shadow_enabled
    assert str(hand().id) == str(admin.read_checkpoint(found("one")).id)


def test_a_follower_that_was_started_by_itself_is_told_and_leads_back() -> None:
    publish([("N1", 500)])
    run("one")
    deployment().begin()
    hand()
    run("two", steps=1, **FOLLOWS)
    with pytest.raises(IncompatibleError, match=r"To let it take over.*`penstock deploy one APP`"):
        run("two")
    publish([("N1", 5)])
    run("two", **{"job.shadow.enabled": True})
    assert deployment().begin().job.replay_follows == "one-1"
    with pytest.raises(IncompatibleError, match="it was started without following that job, and can never take over"):
        run("two", steps=20, **FOLLOWS)
    deployment("one", old="two", rollback=True).begin()
    run("one")
    with admin.open_job("one") as job, admin.open_state(job, "miles.aggregate") as miles:
        assert {each.key: each.value["miles"] for each in miles.scan()} == {b"N1": 505}


def test_what_is_held_back_is_gone_once_the_job_is_in_charge(tmp_path: Path) -> None:
    publish([("N1", 500)])
    run("one")
    deploy()
    held = deployment().held.job.shadow_folder
    assert held.exists()
    assert deployment().begin().job.shadow_enabled is False
    assert not held.exists()


def test_the_command_says_what_it_refuses() -> None:
    Path("job.py").write_text('import penstock as ps\napp = ps.StreamApplication("one")\napp.input("local.trips")\n')
    run("one")
    _, said = call("deploy", "one", "job.py:app", status=2)
    assert "cannot take over from itself" in said
    with pytest.raises(NotFoundError):
        deployment(old="nobody").begin()


def test_the_example_of_the_page() -> None:
    (block,) = examples("docs/deploy.md")
    namespace: dict[str, Any] = {}
    exec(compile(block, "deploy.md", "exec"), namespace)
    run("flights", namespace["app"])
    config = load_config(overrides={"job.name": "flights-2"})
    assert Deployment(found("flights"), config, namespace["app"]).begin().job.replay_follows == "flights-1"
