"""A shadow that makes the batches of another job is where that job was, at each of its checkpoints."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock import admin
from penstock.admin.job.deploy import Deployment
from penstock.batch.batch import to_positions
from penstock.batch.watermarks import TIME, Watermarks
from penstock.replay import follow
from penstock.replay.lines import lineage
from penstock.replay.wing import batches_of
from tests.support.world.deployed_world import TRIPS, WINDOW_MS, DeployedWorld, RunningJob, own_place, sorted_messages


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_place(tmp_path, monkeypatch)


def named(world: DeployedWorld, job: str) -> list[tuple[int, dict[Any, int]]]:
    """The batches that a job's checkpoints name: the time, and how far it read."""
    records = lineage(world.found(job).log.read())
    return [(each.time_ms, dict(each.positions)) for record in records for each in batches_of(record) if each.named]


def catch_up(world: DeployedWorld) -> RunningJob:
    """Let the follower make all that the other job's log names."""
    assert world.follower is not None
    for _ in range(400):
        world.step_follower()
        if (found := world.follower.following) is not None and found.caught_up:
            return world.follower
    raise AssertionError("it does not catch up")


@pytest.mark.parametrize("delays", [{}, {"one": 5000}, {"two": 5000}], ids=["alike", "ahead", "behind"])
def test_a_follower_is_where_the_other_job_was_at_a_checkpoint(delays: dict[str, int]) -> None:
    world = DeployedWorld(1, delays)
    world.begin_deployment()
    for _ in range(6):
        for act in (world.publish, *(world.step_job,) * 3):
            act()
        assert world.job is not None
        world.job.loop.commit()
        boundary, last = catch_up(world).loop.boundary, world.found("one").log.read().latest
        assert last is not None
        assert boundary.positions == to_positions(last.next_offsets)
        assert boundary.batch_time_ms == last.batch_time_ms
        marks = last.section(TIME).watermarks
        assert {op: mark for op, mark in boundary.watermarks.items() if op in marks} == marks


def test_the_batches_before_a_stop_are_made_as_they_were() -> None:
    """The last record of a run takes the place of the commit at the same boundary, which names them."""
    world = DeployedWorld(2, {}, **{"task.checkpoint.retained": 50, "task.commit.ms": 60_000})
    world.begin_deployment()
    for number in range(5):
        while len(world.sent) <= number:
            world.publish()
        for act in (world.step_job, *(world.step_follower,) * 3):
            act()
    assert world.job is not None
    world.job.loop.commit()
    world.job.end()
    world.job = None
    catch_up(world).end()
    theirs, own = named(world, "one"), named(world, "two")
    assert len(theirs) > 2
    assert [each for each in theirs if each not in own] == []


def test_a_follower_that_is_far_behind_makes_fewer_batches() -> None:
    world = DeployedWorld(3, {}, **{"task.checkpoint.retained": 200, "job.batch.max.messages": 50})
    world.begin_deployment()
    for _ in range(60):
        world.publish()
        world.step_job()
    assert world.job is not None
    world.job.loop.commit()
    follower, made = catch_up(world).loop.boundary, world.job.loop.boundary
    assert made.batch > 30
    assert follower.batch < made.batch / 3
    assert (follower.positions, follower.watermarks) == (made.positions, made.watermarks)


def test_a_job_as_busy_as_its_follower_is_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is always a batch that the follower has not made yet."""
    for name in ("LEAST_SECONDS", "MOST_SECONDS"):
        monkeypatch.setattr(follow, name, 0.0)
    world = DeployedWorld(5, {}, **{"task.checkpoint.retained": 200})
    world.begin_deployment()
    deployment, follower = world.deployment, world.follower
    assert deployment is not None
    assert follower is not None
    for number in range(60):
        sent = len(world.sent)
        while len(world.sent) == sent:
            world.publish()
        world.step_job()
        if world.job is None:
            break
        world.job.loop.commit()
        if number > 3:
            follower.step()
            assert follower.following is not None
            assert not follower.following.caught_up
            deployment.step(follower)
    assert world.job is None
    world.finish()
    assert world.charged == "two"
    assert sorted_messages(world.read("totals")) == sorted_messages(world.expected_totals())


def test_no_checkpoint_counts_that_lies_before_the_fork() -> None:
    world = DeployedWorld(2, {}, **{"task.checkpoint.retained": 50})
    assert world.job is not None
    for _ in range(20):
        world.publish()
        world.step_job()
        world.job.loop.commit()
    before = [str(each.id) for each in world.found("one").log.read().checkpoints][:-1]
    assert len(before) > 3
    world.begin_deployment()
    assert world.follower is not None
    made = set[str]()
    for _ in range(10):
        world.publish()
        world.step_job()
        world.job.loop.commit()
        world.step_follower()
        made |= {world.follower.following.made} if world.follower.following else set()
    assert len(made) > 1
    assert not made.intersection(before)


def swapped(*inputs: str) -> ps.StreamApplication:
    """The messages of each town and window, of each of two inputs, in an order of declarations."""
    app = ps.StreamApplication("trips")
    out = app.output("local.panes")
    for name in inputs:
        trips = app.input(f"local.{name}", timestamp=lambda trip: trip["at"], watermark=ps.BoundedOutOfOrderness(0))
        windows = ps.Windows.tumbling(WINDOW_MS, aggregates={"trips": ps.Count()})
        panes = trips.partition_by(lambda trip: trip["town"], id=f"by-town-of-{name}").window(windows, id=name)
        panes.map(partial(shown, name), id=f"shown-{name}").send_to(out)
    return app


def shown(name: str, pane: Any) -> dict[str, Any]:
    return {"from": pane.window.start_ms, "trips": pane.message["trips"], "of": name}


def test_event_time_is_that_of_the_same_input_in_whatever_order_it_is_declared() -> None:
    """One of them is far ahead."""
    world = DeployedWorld(4, {}, **{"streams.local.more.idle.ms": 0})
    more = admin.open_stream("more")
    admin.create_stream(more, 1)
    world.kill_job()
    old = RunningJob(world.config("three"), swapped(TRIPS, "more"))
    deployment = Deployment(world.found("three"), world.config("four"), swapped("more", TRIPS))
    follower = RunningJob(deployment.begin(), swapped("more", TRIPS))
    with closing(more.system.writer(None)) as writer:
        for number in range(60):
            if number < 20:
                world.publish()
                value = {"at": 1_000_000_000 + 1000 * number, "town": "N1"}
                writer.append(ps.SystemStreamPartition("local", "more", 0), [(0, b"N1", orjson.dumps(value))])
            old.step()
            follower.step()
    old.loop.commit()
    for _ in range(20):
        follower.step()
    marks, theirs = follower.loop.boundary.watermarks, old.loop.boundary.watermarks
    old.end()
    follower.end()
    assert marks["input-1"] > 1_000_000_000 > marks["input-2"] > 0
    assert {name: marks[name] for name in (TRIPS, "more")} == {name: theirs[name] for name in (TRIPS, "more")}
    assert (marks["input-1"], marks["input-2"]) == (theirs["input-2"], theirs["input-1"])


@given(st.integers(0, 50), st.integers(0, 50), st.none() | st.integers(0, 50), st.integers(0, 50), st.booleans())
def test_no_operator_comes_further_than_the_other_job_or_past_what_is_due(
    read: int, late: int, theirs: int | None, due: int, reached: bool
) -> None:
    """A window, and another one behind it that the other job does not have."""
    upstream = {"input": (), "one": ("input",), "two": ("one",)}
    own = Watermarks({"one": late}, {"input": read})
    known = {} if theirs is None else {"input": theirs, "one": theirs}
    found = follow.in_step(own, upstream, known, {"one": due}, reached=reached)
    one = found.firing.get("one", 0)
    assert one >= late
    assert one <= max(late, read, theirs or 0)
    if theirs is not None:
        assert one == max(late, theirs) if reached else one <= max(late, theirs)
    assert found.firing.get("two", 0) <= (due - 1 if due <= one else one) or found.firing.get("two", 0) == 0
    assert (found.held == {"one": due - 1}) == (due <= one)


def merged(inputs: int) -> ps.StreamApplication:
    """The messages of each town and window, of one input or of both."""
    app = ps.StreamApplication("trips")
    streams = [
        app.input(f"local.{stream}", timestamp=lambda trip: trip["at"], watermark=ps.BoundedOutOfOrderness(0))
        for stream in (TRIPS, "more")[:inputs]
    ]
    all_trips = streams[0] if inputs == 1 else streams[0].merge(streams[1])
    windows = ps.Windows.tumbling(WINDOW_MS, aggregates={"trips": ps.Count()})
    panes = all_trips.partition_by(lambda trip: trip["town"], id="by-town").window(windows, id="windows")
    shown = panes.map(lambda pane: {"from": pane.window.start_ms, "trips": pane.message["trips"]}, id="shown")
    shown.send_to(app.output("local.panes"))
    return app


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)], ids=["added", "dropped"])
def test_another_input_before_a_window_loses_no_row_and_sends_none_twice(before: int, after: int) -> None:
    """Until the change, event time is that of the old job."""
    world = DeployedWorld(4, {}, **{"streams.local.more.idle.ms": 0 if before == 2 else 60_000})
    admin.create_stream(admin.open_stream("more"), 1)
    world.kill_job()
    old = RunningJob(world.config("three"), merged(before))
    deployment = Deployment(world.found("three"), world.config("four"), merged(after))
    follower = RunningJob(deployment.begin(), merged(after))
    has_ended = False
    for number in range(400):
        if number < 12:
            world.publish()
        has_ended = has_ended or not old.step()
        if follower.begins_again:
            break
        follower.step()
        if number > 20:
            deployment.step(follower)
    follower.end()
    assert has_ended
    new = RunningJob(deployment.begin(), merged(after))
    assert deployment.is_over
    sent = world.read("panes")
    assert len(sent) == len({repr(each) for each in sent})
    new.end()
    config = world.config("four", **{"streams.local.more.idle.ms": 0})
    world.charged, world.job = "four", None
    world.to_the_end(merged(after), config)
    assert sorted_messages(world.read("panes")) == sorted_messages(world.expected_panes())
