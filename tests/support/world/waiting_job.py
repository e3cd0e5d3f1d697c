"""A job in which everything waits for time, on drivers of this process: windows, timers and a left join."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.job.paths import JobPaths
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import steps_and_commit
from tests.support.world.world import World

TASKS = 2
HOUR_MS = 3_600_000
PATHS = JobPaths("waiting", "1")


class Remind(ps.StreamTask):
    """Sets a timer for each message."""

    def init(self, context: Any) -> None:
        self.context, self.newest = context, context.store("newest")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.newest[envelope.key] = envelope.value["n"]
        self.context.schedule(envelope.key, envelope.value["t"] + HOUR_MS, str(envelope.value["n"]))

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=["timer", int(timer.name)])


class Last(ps.DrainListenerTask):
    """Counts what comes, and says at a drain how much that was."""

    on_draining: Callable[[], None] = staticmethod(lambda: None)
    """Called in `on_drain`."""

    def init(self, context: Any) -> None:
        self.came = context.store("came")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.came["n"] = (self.came.get("n") or 0) + 1
        collector.emit(key=envelope.key, value=envelope.value)

    def on_drain(self, collector: Any, coordinator: Any) -> None:
        Last.on_draining()
        collector.emit(value=["drained", self.came.get("n") or 0])


def application(name: str = "waiting") -> ps.StreamApplication:
    """The job, whose watermark never comes near a message."""
    app = ps.StreamApplication(name)
    app.store("came")
    app.store("newest")
    late = ps.BoundedOutOfOrderness(max_delay_ms=10**12)
    left, right = (
        app.input(f"m.{stream}", timestamp=lambda value: value["t"], watermark=late, id=stream).partition_by(
            lambda value: value["k"], id=f"{stream}-by-key"
        )
        for stream in ("in", "other")
    )
    panes = left.window(ps.Windows.tumbling(HOUR_MS, aggregates={"n": ps.Count()}), id="hours")
    timers = left.process(Remind, stores=["newest"], timers=ps.String(), id="remind")
    pairs = left.join(right, lambda own, other: ["alone", own["n"], other], within_ms=(0, 10), kind="left", id="pairs")
    shown = panes.map(lambda pane: ["pane", pane.window.start_ms, pane.message["n"]], id="shown")
    merged = shown.merge(timers, pairs, id="all").partition_by(lambda value: str(value[1]), id="by-number")
    merged.process(Last, stores=["came"], id="last").send_to(app.output("m.out"), id="out")
    return app


class Waiting(World):
    """The job, and what was put into its input."""

    def __init__(self, folder: Path, **config: object) -> None:
        super().__init__(folder, PATHS.name, ("in", "other", "out"), TASKS)
        self.config = config
        self.given: list[dict[str, Any]] = []

    def started(self) -> InProcessDriver:
        driver = self.make(application().graph(), self.config)
        driver.loop.start()
        return driver

    def put(self, count: int) -> None:
        """Append so many messages of three keys, a quarter of an hour apart."""
        for n in range(len(self.given), len(self.given) + count):
            value = {"n": n, "k": f"k{n % 3}", "t": n * HOUR_MS // 4}
            self.append("in", n % TASKS, (0, None, json.dumps(value).encode()))
            self.given.append(value)

    def waits(self, count: int = 12) -> InProcessDriver:
        """A driver that has read and committed so many messages, of which nothing has come out."""
        self.put(count)
        driver = self.started()
        steps_and_commit(driver)
        assert self.came() == []
        return driver

    def came(self) -> list[list[Any]]:
        return sorted((json.loads(value or b"") for _, _, value, *_ in self.records("out")), key=str)

    def results(self) -> set[str]:
        """The output that the messages come to, as texts."""
        hours = Counter((value["k"], value["t"] // HOUR_MS) for value in self.given)
        panes = {str(["pane", hour * HOUR_MS, count]) for (_, hour), count in hours.items()}
        numbers = [value["n"] for value in self.given]
        return panes | {str(["timer", n]) for n in numbers} | {str(["alone", n, None]) for n in numbers}

    def panes(self) -> int:
        """The number of windows, of all keys, that the messages make."""
        return len({(value["k"], value["t"] // HOUR_MS) for value in self.given})

    def close(self) -> None:
        Last.on_draining = staticmethod(lambda: None)
        super().close()
