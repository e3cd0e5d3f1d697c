"""Starts that find requests for positions which they cannot take as they are."""

from __future__ import annotations

import pytest

from penstock.api.requests import StartpointOldest, StartpointUpcoming
from penstock.api.ssp import SystemStreamPartition
from penstock.job.paths import JobPaths
from penstock.start.startpoints.manager import StartpointManager
from tests.support.world.timed_job import TimedWorld, steps

PATHS = JobPaths("timed", "1")
YEAR_MS = 365 * 86_400_000


def stopped(world: TimedWorld) -> None:
    """After a run that has read two messages of each partition."""
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    driver.loop.finish()
    driver.close()


def positions(world: TimedWorld) -> dict[int, int]:
    driver = world.started()
    found = {
        ssp.partition: offset for own in world.checkpoints[-1].next_offsets.values() for ssp, offset in own.items()
    }
    driver.close()
    return found


def test_one_that_is_damaged_does_not_keep_the_job_from_starting(
    timed_world: TimedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(timed_world)
    path = PATHS.metadata("samza-startpoint-v1", "m.in.1/u")
    timed_world.objects.put_if_absent(path, b'{"@type":"Newest","creationTimestamp":1}')
    manager = StartpointManager(timed_world.objects, PATHS, now_ms=timed_world.clock.now_ms)
    manager.write_startpoint(
        SystemStreamPartition("m", "in", 0), StartpointOldest(creation_timestamp=timed_world.clock.now_ms())
    )
    for expected in ({0: 0, 1: 2}, {0: 0, 1: 2}):
        caplog.clear()
        assert positions(timed_world) == expected, "the readable one is applied, once"
        (said,) = (record for record in caplog.records if "cannot be read" in record.getMessage())
        assert said.levelname == "ERROR"
        for part in (f"`{path}` is left out", "penstock startpoint delete JOB --stream m.in --partition 1"):
            assert part in said.getMessage()
    assert manager.requests() == ()
    (unreadable,) = manager.read()[1]
    assert unreadable.path == path, "nobody knows what was asked for: it stays until somebody deletes it"


def test_one_from_the_future_is_behind_all_others_and_said(
    timed_world: TimedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(timed_world)
    now_ms = timed_world.clock.now_ms()
    elsewhere = StartpointManager(timed_world.objects, PATHS, now_ms=lambda: now_ms + YEAR_MS)
    here = StartpointManager(timed_world.objects, PATHS, now_ms=lambda: now_ms)
    for partition in (0, 1):
        elsewhere.write_startpoint(
            SystemStreamPartition("m", "in", partition), StartpointOldest(creation_timestamp=now_ms + YEAR_MS)
        )
    here.write_startpoint(SystemStreamPartition("m", "in", 1), StartpointUpcoming(creation_timestamp=now_ms))
    assert positions(timed_world) == {0: 0, 1: 2}, "alone it counts; beside another one it does not"
    said = [record.getMessage() for record in caplog.records if "in the future by the clock" in record.getMessage()]
    assert len(said) == 2
    assert here.requests() == (), "a start takes all of them"
