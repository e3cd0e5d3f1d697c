"""A job that counts messages, once in all and once for each window, on drivers of this process."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.job.paths import JobPaths
from penstock.objects.open import forget_memory_store, open_store
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.timed_job import steps

TASKS = 2
BACKENDS = ("changelog-files", "blob", "changelog-stream")


class Seen(ps.StreamTask):
    """Counts each key's messages, and passes them on."""

    def init(self, context: Any) -> None:
        self.seen = context.store("seen")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.seen.put(envelope.key, (self.seen.get(envelope.key) or 0) + 1)
        collector.emit(key=envelope.key, value=envelope.value)


class Windowed:
    """What outlives the drivers of a job that counts messages, once in all and once for each window."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.folder, self.backend = folder, backend
        self.root = f"memory://{uuid.uuid4().hex}"
        self.objects = open_store(self.root)
        self.systems = {"m": MemorySystem("m"), "local": MemorySystem("local")}
        for stream in ("in", "out"):
            self.systems["m"].admin().create_stream(stream, TASKS)
        self.clock = SettableClock()
        self.put_so_far = 0
        self.last: InProcessDriver | None = None

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
        driver = self.driver(size, **given)
        driver.loop.start()
        return driver

    def driver(self, size: int | None, **given: Any) -> InProcessDriver:
        self.die()
        graph = self.app(size).graph()
        config = load_config(
            overrides={
                "job.name": "windowed",
                "job.root": self.root,
                "job.logged.store.base.dir": str(self.folder),
                "job.batch.target.ms": 0,
                "job.batch.interval.ms": 1000,
                "job.host-affinity.enabled": True,
                "stores.backup.factories": self.backend,
                "task.commit.ms": 10**9,
                **(
                    {}
                    if self.backend == "blob"
                    else {f"stores.{store.name}.factory": "memory" for store in graph.stores}
                ),
            },
            stores=[store.name for store in graph.stores],
            environ={},
        )
        self.last = InProcessDriver(graph, config, self.objects, self.systems, clock=self.clock, **given)
        return self.last

    def die(self) -> None:
        if self.last is not None:
            self.last.close()
            self.last = None

    def put(self, *times: int) -> None:
        writer = self.systems["m"].writer(None)
        for time in times:
            ssp = SystemStreamPartition("m", "in", self.put_so_far % TASKS)
            writer.append(ssp, [(0, None, json.dumps(time).encode())])
            self.put_so_far += 1

    def run(self, driver: InProcessDriver, *times: int) -> None:
        """Process these messages, and commit."""
        self.put(*times)
        steps(driver)
        driver.loop.commit()

    def panes(self) -> list[list[int]]:
        """Everything in the output."""
        found = []
        for partition, ends in self.systems["m"].admin().offsets("out").items():
            ssp = SystemStreamPartition("m", "out", partition)
            for chunk in self.systems["m"].reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100):
                found += [json.loads(value or b"") for _, _, _, value in chunk]
        return sorted(found)

    @property
    def records(self) -> tuple[CheckpointRecord, ...]:
        return CheckpointLog(self.objects, JobPaths("windowed", "1")).read().checkpoints

    def close(self) -> None:
        self.die()
        forget_memory_store(self.root)


def entries(driver: InProcessDriver, store: str) -> dict[bytes, bytes]:
    """What a store holds, in all tasks."""
    tasks = (driver.fleet.container_of(task).tasks[task] for task in range(TASKS))
    return {key: value for task in tasks for key, value in task.engine(store).scan(None, None)}


def seen(driver: InProcessDriver) -> int:
    return sum(ps.Integer().from_bytes(value) for value in entries(driver, "seen").values())
