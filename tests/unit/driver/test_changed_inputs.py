"""Inputs that were deleted and created again, or have another number of partitions than before, in whole jobs."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.driver.commit.record import Recorder
from penstock.driver.watches import LOOK_SECONDS, STANDSTILL_SECONDS
from penstock.errors import IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.job.paths import JobPaths
from penstock.start.startpoint_manager import StartpointManager
from penstock.system.base import OpenTransaction
from penstock.system.memory import MemoryAdmin, MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import TASKS, TimedWorld, ask, steps, steps_and_commit

IN = SystemStream("m", "in")


def create_again(world: TimedWorld, stream: str = "in", partitions: int = TASKS) -> None:
    admin = world.system.admin()
    admin.delete_stream(stream)
    admin.create_stream(stream, partitions)


def grow(world: TimedWorld, stream: str, partitions: int) -> None:
    """As Kafka's tool does: the stream stays the same one."""
    assert isinstance(world.system, MemorySystem)
    have = world.system.partitions(stream)
    have.extend(type(have[0])() for _ in range(partitions - len(have)))


def stopped(world: TimedWorld) -> None:
    """After a run that has read two messages of each partition."""
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    driver.loop.finish()
    driver.close()


def running(world: TimedWorld) -> InProcessDriver:
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps_and_commit(driver)
    return driver


def to_the_end(world: TimedWorld) -> None:
    world.driver(until_latest=True).loop.run()


class TestCreatedAgain:
    def test_the_records_remember_which_stream_it_was(self, timed_world: TimedWorld) -> None:
        stopped(timed_world)
        identity = timed_world.system.admin().stream_identity("in")
        assert [dict(record.identities) for record in timed_world.checkpoints] == [{IN: identity}] * 2

    def test_a_start_is_refused(self, timed_world: TimedWorld) -> None:
        """Although its positions are within the new stream."""
        stopped(timed_world)
        create_again(timed_world)
        timed_world.put(*range(50, 250, 10))
        before = timed_world.checkpoints
        with pytest.raises(IncompatibleError) as caught:
            timed_world.driver()
        for part in (
            "the input `m.in` was deleted and created again",
            "penstock startpoint set JOB --oldest --all-partitions --stream m.in",
            "`streams.m.in.samza.reset.offset=true`",
        ):
            assert part in str(caught.value)
        assert timed_world.checkpoints == before

    @pytest.mark.few(1)
    @pytest.mark.parametrize("way", ["keep", "clear", "reset"])
    def test_the_ways_out_work(self, timed_world: TimedWorld, way: str) -> None:
        stopped(timed_world)
        create_again(timed_world)
        first = set(timed_world.given)
        timed_world.put(*range(50, 250, 10))
        if way == "reset":
            timed_world.config["streams.m.in.samza.reset.offset"] = True
        else:
            ask(timed_world, "keep" if way == "keep" else "clear")
        to_the_end(timed_world)
        assert timed_world.came().keys() - first == timed_world.given.keys() - first
        timed_world.config.pop("streams.m.in.samza.reset.offset", None)
        timed_world.put(500)
        to_the_end(timed_world)
        assert max(timed_world.came()) == max(timed_world.given)

    def test_a_startpoint_for_one_of_its_partitions_is_not_enough(self, timed_world: TimedWorld) -> None:
        stopped(timed_world)
        create_again(timed_world)
        timed_world.put(*range(50, 250, 10))
        ask(timed_world, "keep")
        manager = StartpointManager(timed_world.objects, JobPaths("timed", "1"), 10**9, timed_world.clock.now_ms)
        manager.delete_startpoint(SystemStreamPartition("m", "in", 1))
        with pytest.raises(IncompatibleError, match=r"`m\.in\.1` belongs to the earlier stream"):
            timed_world.driver()

    def test_an_older_checkpoint_is_of_the_earlier_stream(self, timed_world: TimedWorld) -> None:
        stopped(timed_world)
        old = timed_world.checkpoints[-1].id
        create_again(timed_world)
        timed_world.put(*range(50, 250, 10))
        ask(timed_world, "keep")
        to_the_end(timed_world)
        with pytest.raises(IncompatibleError, match="created again"):
            timed_world.driver(from_checkpoint=str(old))

    def test_a_checkpoint_of_an_earlier_version_is_accepted_and_the_next_one_knows(
        self, timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record = Recorder.record
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "record", lambda *given: replace(record(*given), identities={}))
            driver = timed_world.started()
            driver.loop.finish()
        driver.close()
        assert timed_world.checkpoints[-1].identities == {}
        create_again(timed_world)
        timed_world.put(10, 20)
        to_the_end(timed_world)
        assert timed_world.came().keys() == {0, 1}
        assert timed_world.checkpoints[-1].identities == {IN: timed_world.system.admin().stream_identity("in")}

    def test_a_running_job_notices_within_seconds(self, timed_world: TimedWorld) -> None:
        driver = running(timed_world)
        create_again(timed_world)
        timed_world.put(*range(50, 250, 10))
        timed_world.clock.advance(LOOK_SECONDS)
        with pytest.raises(IncompatibleError, match="while the job ran"):
            steps(driver)

    def test_no_record_has_anything_of_the_new_stream(self, timed_world: TimedWorld) -> None:
        """Messages read before the next look at the stream are not committed."""
        driver = running(timed_world)
        create_again(timed_world)
        timed_world.put(*range(50, 250, 10))
        last = timed_world.checkpoints[-1]
        steps(driver)
        assert driver.loop.boundary.batch > last.batch
        with pytest.raises(IncompatibleError, match="no checkpoint has anything of the new one"):
            driver.loop.commit()
        assert timed_world.checkpoints[-1] == last

    def test_a_commit_waits_for_a_slow_system(self, timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        driver = running(timed_world)
        timed_world.put(50, 60)
        steps(driver)
        answer, asked = MemoryAdmin.stream_identity, []

        def slow(admin: MemoryAdmin, stream: str) -> str | None:
            if stream != "in":  # another test's driver, which is ending, may ask as well
                return answer(admin, stream)
            asked.append(stream)
            if len(asked) < 3:
                raise RetryableError("the broker is away")
            return answer(admin, stream)

        monkeypatch.setattr(MemoryAdmin, "stream_identity", slow)
        driver.loop.commit()
        assert asked == ["in"] * 3
        driver.loop.commit()
        assert len(asked) == 3, "nothing was read since"

    def test_a_drain_commits_what_was_read_of_a_stream_that_is_gone(self, timed_world: TimedWorld) -> None:
        driver = running(timed_world)
        timed_world.put(50, 60)
        steps(driver)
        timed_world.system.admin().delete_stream("in")
        driver.loop.finish()
        assert timed_world.checkpoints[-1].batch == driver.loop.boundary.batch


class TestPartitions:
    @pytest.mark.parametrize("partitions", [TASKS + 1, TASKS - 1])
    def test_a_start_is_refused(self, timed_world: TimedWorld, partitions: int) -> None:
        stopped(timed_world)
        if partitions > TASKS:
            grow(timed_world, "in", partitions)
        else:
            create_again(timed_world, partitions=partitions)
        with pytest.raises(
            IncompatibleError, match=rf"`m\.in` had 2 partitions at the checkpoint and has {partitions}"
        ):
            timed_world.driver()

    def test_a_running_job_says_how_to_continue_and_loses_nothing(self, timed_world: TimedWorld) -> None:
        driver = running(timed_world)
        grow(timed_world, "in", TASKS + 1)
        with pytest.raises(IncompatibleError, match=r"had 2 partitions when this run began .* new `job\.id`"):
            steps(driver)
        driver.close()
        timed_world.config["job.id"] = "2"
        to_the_end(timed_world)
        assert timed_world.came().keys() == timed_world.given.keys()

    def test_an_output_that_grew_is_told_once(self, timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
        driver = running(timed_world)
        grow(timed_world, "out", TASKS + 2)
        for _ in range(3):
            timed_world.put(100)
            timed_world.clock.advance(LOOK_SECONDS)
            steps(driver)
        (said,) = [record.message for record in caplog.records if "output `m.out`" in record.message]
        assert "has 4 partitions now. This run writes to the 2 that it had" in said
        driver.loop.finish()
        assert all(not each.upcoming for n, each in timed_world.system.admin().offsets("out").items() if n >= TASKS)

    def test_an_output_with_fewer_partitions_ends_the_run(self, timed_world: TimedWorld) -> None:
        driver = running(timed_world)
        create_again(timed_world, "out", 1)
        timed_world.clock.advance(LOOK_SECONDS)
        with pytest.raises(PenstockError, match=r"the output `m\.out` had 2 partitions when this run began and has 1"):
            steps(driver)

    def test_an_input_that_was_deleted(self, timed_world: TimedWorld) -> None:
        driver = running(timed_world)
        timed_world.system.admin().delete_stream("in")
        with pytest.raises(NotFoundError, match=r"m\.in"):
            steps(driver)


def test_an_open_transaction_is_told_once_when_it_stands_still(
    timed_world: TimedWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {1: OpenTransaction(4, 7, 1_700_000_000_000)}
    monkeypatch.setattr(
        MemoryAdmin, "open_transactions", lambda _, stream: found if stream == "in" else {}, raising=False
    )
    driver = running(timed_world)

    def said() -> list[str]:
        return [r.message for r in caplog.records if r.levelno == logging.WARNING and "transaction" in r.message]

    def pass_time(seconds: float) -> None:
        end = timed_world.clock.monotonic() + seconds
        while timed_world.clock.monotonic() < end:
            steps(driver)

    pass_time(STANDSTILL_SECONDS - 2 * LOOK_SECONDS)
    assert not said()
    pass_time(4 * LOOK_SECONDS)
    (text,) = said()
    assert text.startswith("stream `m.in` partition 1: at most 7 messages behind an open transaction since 2023-11-14")
    found[1] = OpenTransaction(20, 1, 0)
    pass_time(STANDSTILL_SECONDS + 3 * LOOK_SECONDS)
    assert len(said()) == 2
