"""A job is drained, changed, and started again: nothing in flight is lost, and nothing old is read."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.drain.driver import Drain
from penstock.drain.requests import write_drain_notification
from penstock.job.paths import JobPaths
from tests.support.tools.fixtures import fixture_of
from tests.support.world.windowed_job import BACKENDS, Windowed, entries, seen

PATHS = JobPaths("windowed", "1")


job = fixture_of(Windowed, params=BACKENDS)


def drain(job: Windowed) -> None:
    (driver,) = job.drivers
    write_drain_notification(job.objects, PATHS)
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.step():
        pass
    driver.loop.finish()
    job.die()


def counted(panes: list[list[int]]) -> Counter[tuple[int, int]]:
    """Messages by window, of all keys."""
    found: Counter[tuple[int, int]] = Counter()
    for start, end, number in panes:
        found[start, end] += number
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize("size", [20, None, 10], ids=["another window", "no window", "the same window"])
def test_every_message_is_in_one_pane(job: Windowed, size: int | None) -> None:
    job.run(job.start(10), 1, 2, 13, 24)
    before = counted(job.panes())
    drain(job)
    assert counted(job.panes()) == Counter({(0, 10): 2, (10, 20): 1, (20, 30): 1})
    assert before != counted(job.panes())
    assert set(job.checkpoints[-1].stores) == {"seen"}
    driver = job.start(size)
    assert seen(driver) == 4, "a user's store goes on"
    job.run(driver, 5, 6)
    if size is None:
        return
    assert len(entries(driver, "w.window")) == len({f"k{time % 3}" for time in (5, 6)}), "nothing old, nothing late"
    drain(job)
    after = counted(job.panes())
    after.subtract({(0, 10): 2, (10, 20): 1, (20, 30): 1})
    assert +after == Counter({(0, size): 2})


@pytest.mark.few(1)
def test_a_kill_after_the_start_of_the_changed_job(job: Windowed) -> None:
    """The drained window is still in a backend, and is not restored."""
    job.run(job.start(10), 1, 2, 13, 24)
    drain(job)
    driver = job.start(20)
    job.put(35, 36)
    driver.loop.step()
    driver = job.start(20)  # from its start checkpoint
    assert entries(driver, "w.window") == {}
    job.run(driver)
    driver = job.start(20)
    drain(job)
    assert counted(job.panes())[20, 40] == 2
    assert seen(job.start(20)) == 6
