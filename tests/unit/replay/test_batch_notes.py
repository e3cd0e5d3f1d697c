"""The checkpoints of a run name the batches that it made, whatever failed: all that was read, once and in order."""

from __future__ import annotations

import random

import pytest

from penstock.batch.batch import to_positions
from penstock.replay import driver as notes
from penstock.replay.wing import MOST_NUMBERS, REPLAY, batches_of
from tests.support.world.timed_job import TimedWorld


@pytest.mark.parametrize("most", [notes._MOST, 12])
@pytest.mark.parametrize("seed", range(6))
def test_the_batches_of_all_checkpoints_are_those_that_ended(
    seed: int, most: int, timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers are lost, commits come rarely and while messages wait, and batches read nothing but let time pass."""
    monkeypatch.setattr(notes, "_MOST", most)
    rng = random.Random(seed)
    times: dict[int, int] = {}
    """Number of a batch that has ended, and stands → its time."""
    timed_world.config = {"task.checkpoint.retained": 100, "job.retry.max": 1000}
    driver = timed_world.started()
    first = driver.loop.boundary.positions
    for _ in range(60):
        match rng.randrange(10):
            case 0:
                driver.fleet.lose(0)
            case 1 | 2:
                driver.loop.commit()
            case 3:
                timed_world.clock.advance(2)
            case _:
                timed_world.put(*(rng.randrange(1000) for _ in range(rng.randrange(6))))
        driver.loop.step()
        now = driver.loop.boundary
        times = {number: time_ms for number, time_ms in times.items() if number < now.batch}
        if now.batch:
            times[now.batch] = now.batch_time_ms
    driver.loop.commit()
    last = driver.loop.boundary.positions
    driver.close()
    reached, found = dict(first), []
    records = timed_world.log.restorable
    assert len(records) > 4
    for record in records:
        begins, *batches = batches_of(record)
        assert not begins.named
        assert begins.positions == reached, "they begin where those of the one before end"
        for each in batches:
            assert all(reached[at] < to for at, to in each.positions.items())
            reached |= each.positions
        found += [each.time_ms for each in batches]
        assert reached == to_positions(record.next_offsets)
        assert record.section(REPLAY).line == records[0].section(REPLAY).line
    assert reached == last
    expected = [times[number] for number in sorted(times)]
    assert found == expected if most > MOST_NUMBERS else set(found) <= set(expected)
    assert found[-1] == expected[-1]
