"""A job that counts messages, once in all and once for each window, on drivers of this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import steps_and_commit
from tests.support.world.world import World

TASKS = 2
BACKENDS = ("changelog-files", "blob", "changelog-stream")


class Seen(ps.StreamTask):
    """Counts each key's messages, and passes them on."""

    def init(self, context: Any) -> None:
        self.seen = context.store("seen")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.seen.put(envelope.key, (self.seen.get(envelope.key) or 0) + 1)
        collector.emit(key=envelope.key, value=envelope.value)


class Windowed(World):
    """The job with windows or without, one driver at a time."""

    clock: SettableClock

    def __init__(self, folder: Path, backend: str) -> None:
        super().__init__(folder, "windowed", ("in", "out"), TASKS, clock=SettableClock())
        self.backend = backend
        self.put_so_far = 0

    def app(self, size: int | None) -> ps.StreamApplication:
        """With windows of this size; None: without."""
        app = ps.StreamApplication("windowed")
        app.store("seen", value=ps.Integer())
        source = app.input("m.in", timestamp=lambda time: int(time))
        stream = source.partition_by(lambda time: f"k{time % 3}", id="by-key").process(Seen, stores=["seen"], id="seen")
        if size is not None:
            counts = stream.window(ps.Windows.tumbling(size, aggregates={"n": ps.Count()}), id="w")
            stream = counts.map(lambda pane: [pane.window.start_ms, pane.window.end_ms, pane.message["n"]], id="shown")
        stream.send_to(app.output("m.out"), id="out")
        return app

    def start(self, size: int | None, **given: Any) -> InProcessDriver:
        """A driver with its first epoch open; the one before dies."""
        return self.started(size, **given)

    def driver(self, size: int | None, **given: Any) -> InProcessDriver:
        self.die()
        keys: dict[str, object] = {
            "job.batch.interval.ms": 1000,
            "job.host-affinity.enabled": True,
            "stores.backup.factories": self.backend,
            "task.commit.ms": 10**9,
        }
        return self.make(self.app(size).graph(), keys, memory=self.backend != "blob", **given)

    def die(self) -> None:
        for driver in list(self.drivers):
            self.kill(driver)

    def put(self, *times: int) -> None:
        for time in times:
            self.append("in", self.put_so_far % TASKS, (0, None, json.dumps(time).encode()))
            self.put_so_far += 1

    def run(self, driver: InProcessDriver, *times: int) -> None:
        """Process these messages, and commit."""
        self.put(*times)
        steps_and_commit(driver)

    def panes(self) -> list[list[int]]:
        return sorted(json.loads(value or b"") for _, _, value, *_ in self.records("out"))


def entries(driver: InProcessDriver, store: str) -> dict[bytes, bytes]:
    tasks = (driver.fleet.container_of(task).tasks[task] for task in range(TASKS))
    return {key: value for task in tasks for key, value in task.engine(store).scan(None, None)}


def seen(driver: InProcessDriver) -> int:
    return sum(ps.Integer().from_bytes(value) for value in entries(driver, "seen").values())
