"""A shadow that makes the batches of another job is where that job was, at each of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import admin
from penstock.admin.job.deploy import Deployment
from penstock.batch.batch import to_positions
from penstock.batch.watermarks import TIME
from penstock.replay import follow
from penstock.replay.follow import lineage
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
    world = DeployedWorld(2, {}, **{"task.checkpoint.retained": 50})
    world.begin_deployment()
    for _ in range(12):
        for act in (world.publish, world.step_job, *(world.step_follower,) * 3):
            act()
    assert world.job is not None
    world.job.loop.commit()
    world.job.end()
    world.job = None
    catch_up(world).end()
    theirs, own = named(world, "one"), named(world, "two")
    assert len(theirs) > 5
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
