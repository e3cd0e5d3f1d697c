"""A start that clears single operators: what they kept is gone for good, everything else continues."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.driver.ports import RunBrokenError
from penstock.errors import IncompatibleError, NotFoundError
from penstock.metadata.open import forget_memory_store, open_store
from penstock.metadata.paths import JobPaths
from penstock.plan.reset import Reset
from penstock.plan.start_times import StartTimes
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.sums_job import once, raising
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


class Died(BaseException):
    """The driver's process ends here."""


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


@pytest.fixture(params=BACKENDS)
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Windowed]:
    """A job that has counted six messages; two windows of each key wait."""
    job = Windowed(tmp_path, request.param)
    job.run(job.start(100), 1, 2, 3, 4, 101, 102)
    yield job
    job.close()


def test_a_changed_window_begins_again_and_its_past_never_returns(job: Windowed) -> None:
    with pytest.raises(IncompatibleError, match=r'Or drop what waits in it.*reset_operators=\["w"\]'):
        job.start(50)
    driver = job.start(50, reset_operators=["w"])
    assert (entries(driver, "w.window"), seen(driver)) == ({}, 6)
    assert [record.reset_operators for record in job.records[-2:]] == [(), ("w",)]

    driver = job.start(50)  # after a crash behind the start record
    assert (entries(driver, "w.window"), seen(driver)) == ({}, 6)
    assert [record.reset_operators for record in job.records[-2:]] == [("w",), ()]
    job.run(driver, 103, 104, 149, 150)
    kept = entries(driver, "w.window")
    assert kept

    driver = job.start(50)
    assert (entries(driver, "w.window"), seen(driver)) == (kept, 10)
    driver.fleet.lose(1)
    driver.loop.step()
    assert entries(driver, "w.window") == kept, "neither do they return with a rewind"
    job.run(driver, 250, 250)
    found = [pane for pane in job.panes() if pane[0] >= 100]  # the first run fired the windows before
    assert {(start, end) for start, end, _ in found} == {(100, 150), (150, 200)}
    assert sum(n for *_, n in found) == 4, "nothing of the first run, each message of the others once"


def test_a_removed_window_is_dropped_and_everything_else_kept(job: Windowed) -> None:
    with pytest.raises(IncompatibleError, match="no longer in the application"):
        job.start(None)
    driver = job.start(None, reset_operators=["w"])
    assert seen(driver) == 6
    assert set(job.records[-1].stores) == {"seen"}
    assert "w" not in job.records[-1].watermarks
    job.run(driver, 103)
    assert seen(job.start(None)) == 7
    driver = job.start(100)
    assert (entries(driver, "w.window"), seen(driver)) == ({}, 7), "one that comes back begins empty"


def test_a_crash_before_the_start_record_changes_nothing(job: Windowed) -> None:
    step = {"changelog-files": "open", "blob": "upload", "changelog-stream": "snapshot"}[job.backend]
    driver = job.start(100)
    before = entries(driver, "w.window")
    assert before
    driver = job.driver(50, reset_operators=["w"])

    def die() -> None:
        raise Died

    driver.fleet.at = once(step, die)
    with pytest.raises(BaseException):  # noqa: B017 - a commit thread reports it as an error
        driver.loop.start()
    with pytest.raises(IncompatibleError):
        job.start(50)
    assert entries(job.start(100), "w.window") == before


def test_a_start_that_is_tried_again_still_clears(job: Windowed) -> None:
    driver = job.driver(50, reset_operators=["w"])
    driver.fleet.at = once("snapshot", lambda: driver.fleet.lose(1))
    driver.loop.start()
    assert (entries(driver, "w.window"), seen(driver)) == ({}, 6)
    assert [record.reset_operators for record in job.records[-2:]] == [(), ("w",)]
    driver.runner.at = once("reports", raising(RunBrokenError("broken")))
    job.run(driver, 120)
    assert seen(job.start(50)) == 7


def test_a_watermark_is_not_above_that_of_what_the_operator_reads() -> None:
    app = ps.StreamApplication("chain")
    windows = ps.Windows.tumbling(10)
    app.input("m.in", id="in").window(windows, id="a").window(windows, id="b").send_to(app.output("m.out"), id="out")
    operators = app.graph().operators

    def times(*reset: str, **kept: int) -> dict[str, int]:
        return dict(Reset(reset).times(StartTimes(watermarks=kept), operators).watermarks)

    assert times("b", a=50, b=40) == {"a": 50, "b": 40}, "a may still fire what is above 40"
    assert times("b", a=50, b=60) == {"a": 50, "b": 50}
    assert times("b", b=60) == {}
    assert times("a", "b", **{"in": 30}, a=50, b=60) == {"in": 30, "a": 30, "b": 30}
    assert times("gone", a=50, gone=40) == {"a": 50}


def test_an_unknown_operator_is_refused(tmp_path: Path) -> None:
    job = Windowed(tmp_path, "changelog-files")
    job.start(100, reset_operators=["w"])  # nothing to clear yet
    with pytest.raises(NotFoundError, match=r"no operator `x` in the application or in checkpoint .* These can: `w`"):
        job.start(100, reset_operators=["w", "x"])
    with pytest.raises(NotFoundError, match="operator `seen` has nothing that could be reset"):
        job.start(100, reset_operators=["seen"])
    job.close()
