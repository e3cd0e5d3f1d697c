"""Starts, rewinds and truncation of jobs with durable intermediate streams, on drivers of this process."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.api.requests import StartpointOldest
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.streams import STREAMS
from penstock.config.load import load_config
from penstock.drain.driver import Drain
from penstock.drain.requests import write_drain_notification
from penstock.errors import ConfigError, ContainerLostError, IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.metrics.snapshot import GaugeValue, MetricId
from penstock.start.job_streams import JobStreams
from penstock.start.startpoint_manager import StartpointManager
from penstock.system.memory import MemorySystem
from tests.support.world.timed_job import TASKS, TimedWorld, ask, steps

PATHS = JobPaths("timed", "1")
BY_KEY = SystemStream("m", "by-key")


@pytest.fixture
def world(timed_world: TimedWorld) -> TimedWorld:
    timed_world.through = True
    timed_world.config["task.checkpoint.retained"] = 3
    return timed_world


@pytest.fixture
def unread(world: TimedWorld) -> TimedWorld:
    """A job with a checkpoint at which messages wait in its first stream, and no driver."""
    driver = begun(world)
    driver.close()
    return world


def begun(world: TimedWorld) -> Any:
    world.put(10, 20, 30, 40)
    driver = world.started()
    driver.loop.step()
    driver.loop.commit()
    assert left(world) == 4
    return driver


def left(world: TimedWorld) -> int:
    return sum(each.left() for each in world.checkpoints[-1].section(STREAMS).streams.values())


def oldest(world: TimedWorld) -> list[int]:
    return [ends.oldest for ends in world.system.admin().offsets("by-key").values()]


def generations(world: TimedWorld) -> list[int]:
    return [each.generation for each in world.checkpoints[-1].section(STREAMS).streams.values()]


def everything(world: TimedWorld) -> None:
    """Later messages, until all that were given have come, none of them late."""
    driver = world.started()
    steps(driver)
    for _ in range(2):
        world.put(*[max(world.given.values()) + 1000] * TASKS)
        steps(driver)
    came = world.came()
    assert {number: came.get(number) for number, time in world.given.items() if time < 1000} == {
        number: [] for number, time in world.given.items() if time < 1000
    }
    driver.close()


def test_a_start_reads_what_ended_batches_wrote(unread: TimedWorld) -> None:
    everything(unread)
    assert len(unread.output()) == len(unread.came()), "nothing came twice"


def test_what_is_unread_is_the_lag_of_the_stream(world: TimedWorld) -> None:
    driver = begun(world)
    found = driver.board.metrics.snapshot()
    assert found[MetricId("job", "stream.m.by-key", "messages-behind-high-watermark")] == GaugeValue(4)


def test_what_a_batch_wrote_that_no_checkpoint_has_is_not_read(world: TimedWorld) -> None:
    driver = begun(world)
    world.put(50, 60)
    driver.loop.step()  # writes two more, and reads four
    driver.close()
    before = world.system.admin().offsets("by-key")
    driver = world.started()
    assert driver.loop.boundary.intermediate[BY_KEY].left() == 4
    driver.close()
    everything(world)
    after = world.system.admin().offsets("by-key")
    assert sum(end.upcoming for end in after.values()) > sum(end.upcoming for end in before.values())


def test_a_death_between_the_start_checkpoint_and_the_first_batch_changes_nothing(unread: TimedWorld) -> None:
    for _ in range(2):
        driver = unread.started()
        assert driver.loop.boundary.intermediate[BY_KEY].left() == 4
        driver.close()
    everything(unread)


def test_a_death_before_the_first_start_checkpoint_leaves_streams_that_the_next_start_takes(world: TimedWorld) -> None:
    world.put(10, 20)
    world.driver().close()
    assert world.checkpoints == ()
    everything(world)


def test_a_rewind_reads_again_what_the_last_checkpoint_had_not(world: TimedWorld) -> None:
    driver = begun(world)
    driver.loop.step()
    assert driver.loop.boundary.intermediate[BY_KEY].left() == 0
    driver.loop.rewind(ContainerLostError("a container is gone"))
    assert driver.loop.boundary.intermediate[BY_KEY].left() == 4
    driver.close()
    everything(world)


def test_a_start_that_clears_the_state_drops_what_is_unread_and_reads_everything_again(unread: TimedWorld) -> None:
    ask(unread, "clear")
    driver = unread.started()
    assert (left(unread), generations(unread)) == (0, [2, 2])
    driver.close()
    everything(unread)


def test_a_start_that_keeps_the_state_keeps_what_is_unread(unread: TimedWorld) -> None:
    ask(unread, "keep")
    unread.started().close()
    assert (left(unread), generations(unread)) == (4, [1, 1])


@pytest.mark.parametrize("operator", ["by-key", "by-key.through"])
def test_a_reset_of_the_operator_drops_what_is_unread(unread: TimedWorld, operator: str) -> None:
    unread.started(reset_operators=[operator]).close()
    record = unread.checkpoints[-1]
    assert record.reset_operators == (operator,)
    assert (left(unread), generations(unread)) == (0, [2, 1])


def test_an_operator_that_waits_for_nothing_cannot_be_reset(unread: TimedWorld) -> None:
    with pytest.raises(NotFoundError, match=r"`by-key`, `by-key\.through`, `by-n`"):
        unread.driver(reset_operators=["out"])


def test_a_stream_that_is_taken_out_while_messages_wait_in_it_is_refused(unread: TimedWorld) -> None:
    unread.through = False
    refusal = r"`m.by-key` has 4 messages .* is no longer in the application.*`penstock drain timed-1 --wait`"
    with pytest.raises(IncompatibleError, match=refusal):
        unread.driver()
    driver = unread.started(reset_operators=["by-key"])
    assert unread.checkpoints[-1].section(STREAMS).streams == {}
    driver.close()


def test_a_stream_without_unread_messages_may_be_taken_out_and_put_back(world: TimedWorld) -> None:
    driver = begun(world)
    steps(driver)
    driver.loop.finish()
    driver.close()
    assert left(world) == 0
    world.through = False
    world.started().close()
    world.through = True
    everything(world)


def test_another_number_of_tasks_is_refused_and_the_stream_stays(unread: TimedWorld) -> None:
    unread.config["job.intermediate.stream.partitions"] = 3
    with pytest.raises(IncompatibleError, match="was made with 2 tasks, now there are 3"):
        unread.driver()
    assert unread.system.admin().partition_count("by-key") == TASKS
    del unread.config["job.intermediate.stream.partitions"]
    everything(unread)


def test_a_stream_that_somebody_created_again_is_refused(unread: TimedWorld) -> None:
    unread.system.admin().delete_stream("by-key")
    for _ in range(2):  # the first start creates it
        with pytest.raises(IncompatibleError, match=r"`m.by-key` does not have all of the 4 messages"):
            unread.driver()
    unread.started(reset_operators=["by-key"]).close()
    assert left(unread) == 0


def test_a_stream_that_was_created_again_while_nothing_waited_in_it_is_used(world: TimedWorld) -> None:
    driver = begun(world)
    steps(driver)
    driver.loop.finish()
    driver.close()
    world.system.admin().delete_stream("by-key")
    everything(world)


@pytest.mark.attack
def test_a_stream_that_holds_messages_of_others_is_refused_and_keeps_them(world: TimedWorld) -> None:
    world.system.writer(None).append(SystemStreamPartition("m", "by-key", 1), [(0, None, b"of another program")])
    world.put(10, 20)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"`m.by-key` has messages that this job did not write \(partition 1\)"):
            world.driver()
    assert world.system.admin().owner("by-key") is None
    world.system.admin().delete_stream("by-key")
    everything(world)


def test_what_was_in_the_stream_before_the_job_is_not_read_where_streams_have_no_owners(
    world: TimedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(world.system), "compacts_on_request", False)
    monkeypatch.setattr(type(world.system), "keeps_owners", False)
    writer = world.system.writer(None)
    writer.append(SystemStreamPartition("m", "by-key", 0), [(0, None, b"neither a value nor a control message")])
    world.put(10, 20)
    everything(world)


@pytest.mark.attack
@pytest.mark.parametrize("claim", [None, "job other-1 (uid 77), intermediate stream"])
def test_a_claim_that_is_removed_or_forged_later_ends_no_job(world: TimedWorld, claim: str | None) -> None:
    world.put(10, 20)
    everything(world)
    system = world.system
    assert isinstance(system, MemorySystem)
    system.owners.clear()
    if claim is not None:
        system.owners["by-key"] = claim
    everything(world)


@pytest.mark.attack
def test_a_stream_of_another_owner_is_refused(world: TimedWorld) -> None:
    world.system.admin().own("by-key", "job other-1 (uid 77), intermediate stream")
    with pytest.raises(ConfigError, match="belongs to another owner: job other-1"):
        world.driver()


def test_a_stream_with_other_partitions_is_refused(world: TimedWorld) -> None:
    world.system.admin().delete_stream("by-n")
    world.system.admin().create_stream("by-n", 5)
    with pytest.raises(IncompatibleError, match="has a partition for each task of the job"):
        world.driver()


def test_an_older_epoch_cannot_append_to_the_stream(world: TimedWorld) -> None:
    driver = begun(world)
    old = driver.job.writer(driver.loop.epoch)
    driver.loop.rewind(ContainerLostError("a container is gone"))
    with pytest.raises(ps.FencedError):
        world.system.writer(old).append(SystemStreamPartition("m", "by-key", 0), [(0, None, b"\x00")])


def test_streams_begin_at_the_oldest_retained_checkpoint(world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    """And going back to it reads everything that it needs."""
    driver = begun(world)
    seen = []
    for time in range(50, 250, 10):
        world.put(time, time + 5)
        driver.loop.step()
        driver.loop.commit()
        kept = [record for record in world.checkpoints if record.id in retained(world)]
        needed = [min(record.section(STREAMS).streams[BY_KEY].needed(p) or 0 for record in kept) for p in range(TASKS)]
        seen.append((needed, kept[0]))
        assert all(begin <= offset for begin, offset in zip(oldest(world), needed, strict=True))
    driver.close()  # waits for the collection
    first = seen[-1][1]
    assert oldest(world) in [needed for needed, _ in seen]  # a collection leaves to the next one what comes meanwhile
    assert min(oldest(world)) > 0
    assert first.section(STREAMS).streams[BY_KEY].left() > 0

    caplog.clear()
    driver = world.started(from_checkpoint=str(first.id))
    assert (
        f"this start begins with checkpoint {first.id} (batch {first.batch}), and not with the last one" in caplog.text
    )
    assert driver.loop.boundary.intermediate == first.section(STREAMS).streams
    driver.close()
    everything(world)


def retained(world: TimedWorld) -> set[object]:
    last = world.checkpoints[-1]
    return {*(last.retained or {}).values(), last.id}


def test_a_drained_checkpoint_has_another_generation_and_nothing_unread(unread: TimedWorld) -> None:
    driver = unread.started()
    write_drain_notification(unread.objects, PATHS)
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.step():
        pass
    driver.loop.finish()
    driver.close()
    record = unread.checkpoints[-1]
    assert record.ended == "drained"
    assert (left(unread), generations(unread)) == (0, [2, 2])
    assert {each.watermark for each in record.section(STREAMS).streams.values()} == {-(2**63)}
    unread.through = False
    unread.started().close()


class Silent(MemorySystem):
    reports_appended = False


def opened(app: ps.StreamApplication, system: MemorySystem, **config: object) -> JobStreams:
    overrides = {"job.name": "a", "systems.m.samza.factory": "memory", **config}
    return JobStreams.open(app.graph(), load_config(overrides=overrides, environ={}), {"m": system})


def test_streams_of_systems_that_do_not_report_and_streams_with_another_use_are_refused(world: TimedWorld) -> None:
    with pytest.raises(ConfigError, match=r"`m.by-key` cannot be an intermediate stream: .*reports_appended"):
        opened(world.app(), Silent("m"))
    with pytest.raises(ConfigError, match=r"task.dead.letter.stream `m.by-key` is an intermediate stream"):
        opened(world.app(), MemorySystem("m"), **{"task.dead.letter.stream": "m.by-key"})
    with pytest.raises(ConfigError, match=r"`m.by-key` is an intermediate stream and the changelog of store"):
        opened(world.app(), MemorySystem("m"), **{"stores.one.hold.changelog": "m.by-key"})


def test_startpoints_for_a_stream_between_operators_are_refused_by_name(world: TimedWorld) -> None:
    ssp = SystemStreamPartition("m", "by-key", 0)
    StartpointManager(world.objects, PATHS).write_startpoint(ssp, StartpointOldest())
    with pytest.raises(IncompatibleError, match=r"`m\.by-key` is an intermediate stream of the job"):
        world.driver()
