"""Exactly-once output, whatever fails at whichever step: the schedules of the outbox."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import penstock as ps
from penstock.admin.checkpoint.change import CheckpointChange, append_successor
from penstock.admin.jobs import FoundJob
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.edit import CheckpointContent
from penstock.checkpoint.task_versions import markers_of
from penstock.drain.requests import write_drain_notification
from penstock.errors import (
    ConfigError,
    IncompatibleError,
    NotFoundError,
    PenstockError,
    PenstockTimeoutError,
    RetryableError,
)
from penstock.outbox.wing import OUTBOX, Publish
from penstock.start.startpoint_manager import StartpointManager
from penstock.testing.in_process import InProcessDriver
from tests.support.jobs.home import wait_until
from tests.support.tools.fixtures import fixture_of
from tests.support.world.once_world import PATHS, OnceWorld, die
from tests.support.world.sums_job import TASKS, Sum, drain, drain_and_commit

world = fixture_of(OnceWorld)


def crash(world: OnceWorld, step: str, nth: int = 1) -> None:
    """A run that commits twice, and is killed at this step of the second commit."""
    world.put(1, 2, 3, 4, 5, 6)
    driver = world.next()
    driver.loop.start()
    drain_and_commit(driver)
    world.put(7, 8, 9, 10, 11, 12)
    drain(driver)
    if step == "published":
        driver.loop.commit()
    else:
        came = world.at(driver, step, die, nth)
        with pytest.raises(PenstockError, match="was killed"):
            driver.loop.commit()
        assert came.count(step) >= nth
    world.kill(driver)


class TestRewinds:
    def test_what_was_published_is_not_asked_for_again(self, world: OnceWorld) -> None:
        world.put(1, 2, 3)
        driver = world.next()
        driver.loop.start()
        drain_and_commit(driver)
        came = world.at(driver, "", die)
        driver.loop.rewind(None)
        assert "open" in came
        assert "publish" not in came


class TestRecord9:
    """Record 9 written, crash, then `checkpoint set`, or `--from 6`, or one commit of lag with one retained."""

    @pytest.mark.parametrize("base", [0, -1])
    def test_then_checkpoint_set(self, world: OnceWorld, base: int) -> None:
        crash(world, "publish")
        latest = world.log.latest
        assert latest is not None
        left = latest.section(OUTBOX)
        assert left.objects
        content = CheckpointContent(latest.next_offsets, {task: markers_of(latest, task) for task in range(TASKS)})
        origin = world.log.checkpoints[base]
        job = FoundJob(world.config(), PATHS, world.objects)
        record = append_successor(CheckpointChange(job, "set", origin, None, content, job.log.read(), ()))
        found = record.section(OUTBOX)
        assert not found.objects
        assert [each.objects for each in found.unpublished] == [left.objects]
        assert (found.keepers, found.publisher) == (left.keepers, left.publisher)
        world.finish()

    def test_then_from_6(self, world: OnceWorld, caplog: pytest.LogCaptureFixture) -> None:
        crash(world, "publish")
        sixth = world.log.checkpoints[-2]
        driver = world.next(from_checkpoint=str(sixth.id))
        driver.loop.start()
        assert "this start goes back in `m.events.0`" in caplog.text
        assert "`m.sums` from there on is sent again" in caplog.text
        assert len(world.output()) == 12
        drain(driver)
        driver.loop.finish()
        again = Counter(world.output())
        assert sorted(again.values()) == [1] * 6 + [2] * 6  # what the sixth has, once; what came after it, again

    def test_then_a_startpoint_that_clears_the_state(self, world: OnceWorld, caplog: pytest.LogCaptureFixture) -> None:
        crash(world, "publish")
        manager = StartpointManager(world.objects, PATHS, 10**9, world.clock.now_ms)
        for partition in range(TASKS):
            ssp = SystemStreamPartition("m", "events", partition)
            manager.write_startpoint(
                ssp, ps.StartpointOldest(creation_timestamp=world.clock.now_ms()), with_state="clear"
            )
        driver = world.next()
        driver.loop.start()
        assert "is sent again" in caplog.text
        assert len(world.output()) == 12
        drain(driver)
        driver.loop.finish()
        assert sorted(Counter(world.output()).values()) == [2] * 12


def test_a_guarantee_that_is_taken_away_and_given_back(world: OnceWorld) -> None:
    crash(world, "append")
    guarantee = {"streams.m.sums.output.guarantee": world.keys.pop("streams.m.sums.output.guarantee")}
    world.put(13, 14)
    world.finish()
    world.keys |= guarantee
    world.put(15, 16)
    driver = world.next()
    driver.loop.start()
    drain(driver)
    world.at(driver, "committed", die)
    with pytest.raises(PenstockError, match="was killed"):
        driver.loop.commit()
    world.kill(driver)
    world.finish()


class TestOutputsThatAreNoLongerDeclared:
    def change(self, world: OnceWorld, source: str) -> None:
        """Another application from now on, with a new output, that still has the store."""
        world.app = ps.StreamApplication("sums")
        world.app.store("sums", key=ps.String(), value=ps.Integer())
        world.app.input(source, key=ps.String(), value=ps.Integer()).partition_by(
            lambda envelope: envelope.key, envelope=True
        ).process(Sum, stores=["sums"], id="sum").send_to(
            world.app.output("local.other", key=ps.String(), value=ps.Integer())
        )

    def test_what_is_left_is_published_all_the_same(self, world: OnceWorld) -> None:
        crash(world, "publish")
        self.change(world, "m.events")
        del world.keys["streams.m.sums.output.guarantee"]
        driver = world.next()
        driver.loop.start()
        assert len(world.output()) == 12
        assert "m.sums" in map(str, driver.job.streams.fenced)

    def test_its_system_is_not_configured(self, world: OnceWorld) -> None:
        crash(world, "publish")
        self.change(world, "local.events")
        world.keys = {}
        world.systems["local"].admin().create_stream("events", TASKS)
        del world.systems["m"]
        claims = len(world.log.claims)
        with pytest.raises(ConfigError, match=r"to be published to `m\.sums`.*systems\.m\.samza\.factory"):
            world.next()
        assert len(world.log.claims) == claims


class TestWhatEndsAStart:
    def test_the_output_was_deleted(self, world: OnceWorld) -> None:
        crash(world, "publish")
        world.system.admin().delete_stream("sums")
        world.system.admin().create_stream("sums", 1)
        with pytest.raises(NotFoundError, match=r"left messages to be published to `m\.sums`, which has 1 partition"):
            world.next()
        assert world.outbox

    @pytest.mark.parametrize("step", ["mark", "committed"])
    def test_the_output_was_deleted_and_is_not_created_again(self, world: OnceWorld, step: str) -> None:
        """As an output that never was there would be: half of the messages would be in one stream, half in another."""
        crash(world, step)
        world.system.admin().delete_stream("sums")
        claims = len(world.log.claims)
        with pytest.raises(NotFoundError, match=r"which does not exist.*penstock stream create m\.sums --partitions"):
            world.next()
        assert len(world.log.claims) == claims
        assert "sums" not in world.system.admin().streams()
        world.system.admin().create_stream("sums", TASKS)
        world.next().loop.start()
        assert len(world.output()) == 6  # those of the last commit

    def test_a_system_has_lost_how_far_publishing_is(self, world: OnceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        crash(world, "committed")
        kind = type(world.system.admin())
        monkeypatch.setattr(kind, "keeps_progress_of", lambda self, name: False)
        claims = len(world.log.claims)
        with pytest.raises(IncompatibleError, match=r"the system `m` has lost its record.*create it by hand and empty"):
            world.next()
        assert len(world.log.claims) == claims
        monkeypatch.undo()
        world.finish()

    def test_a_system_loses_it_while_the_job_runs(self, world: OnceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        world.put(1, 2, 3)
        driver = world.next()
        driver.loop.start()
        drain_and_commit(driver)
        monkeypatch.setattr(type(world.system.admin()), "keeps_progress_of", lambda self, name: False)
        with pytest.raises(IncompatibleError, match="has lost its record"):
            driver.loop.rewind(None)

    def test_an_object_is_missing(self, world: OnceWorld) -> None:
        crash(world, "publish")
        world.objects.delete(world.outbox[0])
        driver = world.next()
        with pytest.raises(NotFoundError, match=r"cannot be published to `m\.sums`.*Nothing is lost|put back"):
            driver.loop.start()

    def test_an_object_is_damaged(self, world: OnceWorld) -> None:
        crash(world, "publish")
        key = world.outbox[0]
        data = world.objects.get(key)
        world.store.replace(key, data[:-1] + bytes([data[-1] ^ 1]))
        driver = world.next()
        with pytest.raises(ps.errors.CorruptError, match=r"cannot be published to `m\.sums`"):
            driver.loop.start()
        world.kill(driver)
        world.store.replace(key, data)
        world.finish()


def test_messages_that_no_container_publishes(world: OnceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record counts as published only if the answers of all containers add up to its messages."""
    crash(world, "publish")
    of_tasks = Publish.for_tasks
    monkeypatch.setattr(Publish, "for_tasks", lambda self, tasks: of_tasks(self, ()))
    driver = world.next()
    with pytest.raises(PenstockError, match=r"published 0 of the 6 messages of record \d+, and say"):
        driver.loop.start()
    world.kill(driver)
    assert world.outbox
    monkeypatch.undo()
    world.finish()


class TestTheEndOfARun:
    def test_it_ends_only_once_its_last_record_is_published(self, world: OnceWorld) -> None:
        world.put(1, 2, 3)
        driver = world.next()
        driver.loop.start()
        drain(driver)
        world.at(driver, "commit", die)
        with pytest.raises(PenstockError, match="was killed"):
            driver.loop.finish()
        world.kill(driver)
        assert world.log.latest is not None
        assert world.log.latest.ended == "stopped"
        assert not world.output()
        world.finish()

    def test_a_drain_deletes_its_request_only_after_that(self, world: OnceWorld) -> None:
        world.put(1, 2, 3)
        driver = world.next()
        driver.loop.start()
        drain(driver)
        write_drain_notification(world.objects, PATHS)
        world.at(driver, "commit", die)
        with pytest.raises(PenstockError, match="was killed"):
            driver.loop.run_to_the_end()
        assert world.objects.list(PATHS.metadata_folder("samza-drain-v1"))
        world.kill(driver)
        world.put(4)
        world.finish()
        assert not world.objects.list(PATHS.metadata_folder("samza-drain-v1"))


class TestASystemThatIsDown:
    def down(self, world: OnceWorld, **config: object) -> tuple[InProcessDriver, threading.Event]:
        """A driver with a commit that cannot be published until the event is set."""
        world.put(1, 2, 3)
        driver, up = world.next(None, until_latest=False, **config), threading.Event()
        driver.loop.start()
        drain(driver)

        def at(step: str) -> None:
            if step == "commit" and not up.is_set():
                raise RetryableError("it is down")

        world.hooked.at = at
        driver.loop.parts.commits.request()
        driver.loop.step()
        wait_until(lambda: "it is down" in str(driver.board.wings.get("outbox")), "the publication to wait")
        return driver, up

    def test_processing_goes_on_and_further_commits_wait(self, world: OnceWorld) -> None:
        driver, up = self.down(world)
        records = len(world.log.checkpoints)
        world.put(4, 5, 100, 6)
        drain(driver)
        assert len(world.log.checkpoints) == records
        assert str(driver.board.wings.get("outbox")).startswith("0 of 3 messages to m.sums, waits for the system `m`")
        up.set()
        driver.loop.await_commit()
        driver.loop.commit()
        assert driver.board.wings.get("outbox") is None
        world.check(driver)

    def test_the_wait_is_bounded(self, world: OnceWorld) -> None:
        driver, up = self.down(world, **{"task.commit.timeout.ms": 1000})
        with pytest.raises(PenstockTimeoutError, match=r"published.*Nothing is lost"):
            driver.loop.finish()
        up.set()
        world.kill(driver)
        world.finish()


def test_nothing_grows(world: OnceWorld) -> None:
    driver = world.next()
    driver.loop.start()
    for value in range(30):
        world.put(value)
        drain_and_commit(driver)
    driver.loop.commit()
    assert len(world.outbox) <= 2
    records = world.log.checkpoints
    assert all(not record.section(OUTBOX).unpublished for record in records)
    world.check(driver)
