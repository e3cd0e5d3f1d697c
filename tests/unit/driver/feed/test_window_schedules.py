"""Windows in whole jobs, on drivers and containers of this process: the schedules of event time that must go well, each
against a plain computation."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.world.timed_job import TimedWorld, ask, steps, steps_and_commit

SHORT, LONG = 10, 50


class WindowedWorld(TimedWorld):
    """The messages of each key in short windows, and how many there are in long ones, behind the short ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.system.admin().create_stream("late", 2)
        self.system.admin().create_stream("short", 2)
        self.config["job.batch.max.messages"] = 20

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("timed")
        first, *others = [
            app.input(name, timestamp=lambda v: v["t"], watermark=policy, id=name.partition(".")[2])
            for name, policy in self.inputs.items()
        ]
        merged = first.merge(*others, id="all") if others else first
        stream = merged.partition_by(lambda v: v["k"], through="m.by-key" if self.through else None, id="by-key")
        fold = (list, lambda found, v: sorted([*found, v["n"]]))
        short = ps.Windows.tumbling(SHORT, fold=fold, late_to=app.output("m.late"))
        panes = stream.window(short, id="one")
        panes.map(shown, id="shown-one").send_to(app.output("m.short"), id="short")
        if self.apart:
            panes = panes.partition_by(lambda pane: pane.key, id="by-key-again")
        long = ps.Windows.tumbling(LONG, fold=(0, lambda total, pane: total + len(pane.message)))
        panes.window(long, id="two").map(shown, id="shown-two").send_to(app.output("m.out"), id="out")
        return app

    def read(self, stream: str) -> list[tuple[str, Any]]:
        """Keys and values of an output."""
        found = []
        for partition, ends in self.system.admin().offsets(stream).items():
            ssp = SystemStreamPartition("m", stream, partition)
            for chunk in self.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100):
                found += [((key or b"").decode(), json.loads(value or b"")) for _, _, key, value, *_ in chunk]
        return found

    def panes(self, stream: str) -> dict[tuple[str, int], tuple[Any, int]]:
        """(key, start) of each window that fired -> what it held, and how often it came. It must be equal each time."""
        panes: dict[tuple[str, int], tuple[Any, int]] = {}
        for key, (start, content, firing) in self.read(stream):
            assert firing == "on-time"
            before, times = panes.get((key, start), (content, 0))
            assert before == content
            panes[key, start] = content, times + 1
        return panes

    def late(self) -> list[int]:
        """The numbers of the messages that were late."""
        return sorted(value["n"] for _, value in self.read("late"))

    def expected(self, *, late: tuple[int, ...] = (), before: int = 1 << 60) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """The totals of the short and the long windows that end before `before`, without the late messages."""
        short: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        long: Counter[tuple[str, int]] = Counter()
        for n, t in self.given.items():
            if n not in late:
                short[f"k{n % 5}", t // SHORT * SHORT].append(n)
                long[f"k{n % 5}", t // LONG * LONG] += 1
        return (
            {at: numbers for at, numbers in short.items() if at[1] + SHORT <= before},
            {at: total for at, total in long.items() if at[1] + LONG <= before},
        )

    def check(self, *, late: tuple[int, ...] = (), before: int = 1 << 60, once: bool = True) -> None:
        """All panes are those of the plain computation."""
        for stream, expected in zip(("short", "out"), self.expected(late=late, before=before), strict=True):
            found = self.panes(stream)
            assert {at: content for at, (content, _) in found.items()} == expected
            assert not once or {times for _, times in found.values()} <= {1}
        assert self.late() == sorted(late)


def shown(pane: ps.WindowPane[Any, Any]) -> Any:
    return [pane.window.start_ms, pane.message, pane.firing]


def finish(world: WindowedWorld, driver: InProcessDriver) -> None:
    """To the end of the streams."""
    for stream in {name.partition(".")[2] for name in world.inputs}:
        world.system.admin().end_stream(stream)
    while not driver.loop.step():
        pass
    driver.loop.commit()
    driver.close()


world = fixture_of(WindowedWorld)


@pytest.mark.few(1)
@pytest.mark.parametrize("apart", [False, True])
def test_two_windows_in_a_row_in_one_stage_and_in_two(world: WindowedWorld, *, apart: bool) -> None:
    """Although drivers are killed between their commits."""
    world.apart = apart
    for first in range(0, 300, 60):
        driver = world.started()
        world.put(*range(first, first + 30))
        steps_and_commit(driver)
        world.put(*range(first + 30, first + 60))
        steps(driver)
        driver.close()
    finish(world, world.started())
    world.check(once=False)


def test_a_window_behind_a_durable_intermediate_stream_that_lags(world: WindowedWorld) -> None:
    """The inputs' watermark is at the last message, and the window has few of them. Drivers are killed meanwhile."""
    world.through = True
    world.config["job.batch.max.messages"] = 300
    driver = world.started()
    world.put(*range(300))
    driver.loop.step()
    driver.loop.commit()
    driver.close()
    world.config["job.batch.max.messages"] = 20
    for unread in (300, 240, 180):
        driver = world.started()
        assert driver.loop.boundary.left == unread
        for _ in range(3):
            driver.loop.step()
        assert driver.loop.boundary.watermarks["by-key"] == 298
        driver.loop.commit()
        driver.loop.step()
        driver.close()
    finish(world, world.started())
    world.check(once=False)


def ran_once(world: WindowedWorld) -> None:
    first = world.started()
    world.put(*range(0, 100, 2), 125, 125)
    steps_and_commit(first)
    first.close()
    world.check(before=125)


def test_everything_is_read_again_after_clear(world: WindowedWorld) -> None:
    ran_once(world)
    ask(world, "clear")
    steps(world.started())
    world.check(before=125, once=False)
    assert {times for stream in ("short", "out") for _, times in world.panes(stream).values()} == {2}


def test_everything_is_read_again_with_keep(world: WindowedWorld) -> None:
    """It is late where its windows have fired. A window that waited has it twice, which is what `keep` asks for."""
    ran_once(world)
    ask(world, "keep")
    driver = world.started()
    steps(driver)
    assert world.late() == sorted(n for n, t in world.given.items() if t < 120)
    assert {times for _, times in world.panes("short").values()} == {1}
    finish(world, driver)
    waited = [n for n, t in world.given.items() if t == 125]
    assert [content for (_, start), (content, _) in sorted(world.panes("short").items()) if start == 120] == [
        [n, n] for n in sorted(waited, key=lambda n: n % 5)
    ]


def test_out_of_orderness_raised(world: WindowedWorld) -> None:
    """No window fires a second time, and what is late stays late."""
    first = world.started()
    world.put(5, 5, 100, 100)
    steps_and_commit(first)
    first.close()
    world.inputs["m.in"] = ps.BoundedOutOfOrderness(60)
    second = world.started()
    world.put(6, 110, 105, 103)
    steps(second)
    finish(world, second)
    world.check(late=(4,))


def test_an_input_added(world: WindowedWorld) -> None:
    first = world.started()
    world.put(5, 5, 100, 100)
    steps_and_commit(first)
    first.close()
    world.inputs["m.other"] = None
    second = world.started()
    world.put(*[150] * 4)
    steps(second)
    world.put(7, 120, 121, stream="other")
    steps(second)
    finish(world, second)
    world.check(late=(8,))


def test_an_idle_partition_returns(world: WindowedWorld) -> None:
    world.config["streams.m.in.idle.ms"] = 0
    driver = world.started()
    steps(driver)
    world.put(5, 100, partition=0)
    steps(driver)
    world.put(6, 104, partition=1)
    steps(driver)
    finish(world, driver)
    world.check(late=(2,))


def test_started_after_a_day_with_a_day_of_backlog(world: WindowedWorld) -> None:
    first = world.started()
    world.put(10, 10)
    steps_and_commit(first)
    first.close()
    world.clock.advance(86_400)
    world.put(*range(1000, 1200, 5), partition=0)
    world.put(*range(500, 600, 5), partition=1)
    second = world.started()
    steps(second)
    finish(world, second)
    world.check()


def test_a_second_until_latest_after_the_first(world: WindowedWorld) -> None:
    """Event time begins again: what is older is not late, and what had fired is not in the new windows."""
    world.put(100, 103, 140)
    world.driver(until_latest=True).loop.run()
    world.check()
    world.put(20, 60, 101)
    world.driver(until_latest=True).loop.run()
    assert world.late() == []
    panes = [(key, start, content) for key, (start, content, _) in world.read("short")]
    assert sorted(panes) == sorted((f"k{n % 5}", t // SHORT * SHORT, [n]) for n, t in world.given.items()), (
        "number 5 has the key and the window of number 0, and comes alone"
    )
    assert sum(total for _, (_, total, _) in world.read("out")) == 6
