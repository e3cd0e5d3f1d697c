"""A job with windows of a day, an early pane, a drain and a poison message, on a broker with its default settings."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.config.load import load_config
from penstock.drain.driver import Drain
from penstock.drain.requests import write_drain_notification
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.system.base import OffsetRange, System
from penstock.system.kafka.system import KafkaSystem
from penstock.system.memory import MemorySystem
from penstock.testing import TestRunner
from penstock.testing.in_process import InProcessDriver
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import new_name, new_topic
from tests.support.streams.kafka_streams import kafka_system
from tests.support.world.timed_job import steps
from tests.support.world.world import ends

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TASKS = 2
KEYS = 3
STREAMS = ("in", "between", "out", "dead")
Came = tuple[int, str, Any]
"""Time, key and value of a message."""

pytestmark = pytest.mark.kafka


def checked(value: dict[str, Any]) -> dict[str, Any]:
    if value["n"] < 0:
        raise ValueError("poison")
    return value


def application(names: dict[str, str]) -> ps.StreamApplication:
    app = ps.StreamApplication("days")
    day = ps.Windows.tumbling(DAY_MS, aggregates={"n": ps.Count()}, early=ps.Triggers.repeat(ps.Triggers.count(2)))
    panes = (
        app.input(names["in"], timestamp=lambda value: value["t"])
        .map(checked)
        .partition_by(lambda value: value["k"], through=names["between"], id="by-key")
        .window(day, id="day")
    )
    panes.map(lambda pane: [pane.firing, pane.window.start_ms, pane.message["n"]]).send_to(app.output(names["out"]))
    return app


def given() -> list[dict[str, Any]]:
    """Events of today and of days to come, and two that fail: one of now, and one of tomorrow."""
    now = int(time.time() * 1000)
    times = [now + n * 5 * HOUR_MS for n in range(12)]
    events = [{"k": f"k{n % KEYS}", "t": t, "n": n} for n, t in enumerate(times)]
    return [*events, {"k": "bad", "t": now, "n": -1}, {"k": "bad", "t": now + DAY_MS, "n": -2}]


def expected(events: list[dict[str, Any]]) -> tuple[set[Came], list[Came]]:
    """The oracle: the panes of the drain; and the early ones, each a count that is even."""
    totals = Counter((each["k"], each["t"] // DAY_MS * DAY_MS) for each in events if each["n"] >= 0)
    last = {(start + DAY_MS - 1, key, ("drain", start, count)) for (key, start), count in totals.items()}
    early = [
        (start + DAY_MS - 1, key, ("early", start, n))
        for (key, start), count in totals.items()
        for n in range(2, count + 1, 2)
    ]
    return last, early


class DayWorld:
    """The topics and the job root."""

    def __init__(self, folder: Path, broker: KafkaBroker, guarantee: str) -> None:
        self.names = {name: f"kafka.{new_topic(broker, TASKS, name=name)}" for name in ("in", "out", "dead")}
        self.names["between"] = f"kafka.{new_name('between')}"
        self.folder = folder
        self.job = new_name("days")
        self.objects = FileObjectStore(folder / "jobs")
        self.kafka: KafkaSystem = kafka_system(broker)
        self.config = {
            "job.name": self.job,
            "job.root": (folder / "jobs").as_uri(),
            "job.logged.store.base.dir": str(folder),
            "job.batch.interval.ms": 1,
            "job.batch.target.ms": 0,
            "task.commit.ms": 10**9,
            "task.dead.letter.stream": self.names["dead"],
            "stores.day.window.factory": "memory",
            "job.watermark.max.ahead.ms": 1,
            **{f"streams.{self.names[name]}.output.guarantee": guarantee for name in ("out", "dead")},
            **broker.system_config("kafka"),
        }

    def drive(self, events: list[dict[str, Any]]) -> None:
        """A driver reads everything, commits, and is killed behind its last commit; the next one drains."""
        with closing(self.kafka.writer(None)) as writer:
            for n, event in enumerate(events):
                ssp = SystemStreamPartition("kafka", self.names["in"].partition(".")[2], n % TASKS)
                writer.append(ssp, [(event["t"], None, json.dumps(event).encode())])
        with closing(self.driver()) as driver:
            driver.loop.start()
            wait_until(lambda: bool(steps(driver) >= 0) and not self._left(driver), "everything is read")
            driver.loop.commit()
            write_drain_notification(self.objects, JobPaths(self.job, "1"))
        with closing(self.driver()) as driver:
            driver.loop.start()
            driver.loop.parts.of(Drain).ask()
            ends(driver)
        assert CheckpointLog(self.objects, JobPaths(self.job, "1")).read().checkpoints[-1].ended == "drained"

    def driver(self) -> InProcessDriver:
        graph = application(self.names).graph()
        config = load_config(overrides=self.config, stores=[spec.name for spec in graph.stores], environ={})
        systems: dict[str, System] = {"kafka": self.kafka, "local": MemorySystem("local")}
        return InProcessDriver(graph, config, self.objects, systems)

    def _left(self, driver: InProcessDriver) -> bool:
        found = driver.job.streams.ends()
        return any(found[at.ssp].upcoming > offset for at, offset in driver.loop.boundary.positions.items())

    def came(self, name: str) -> list[Came]:
        found: list[Came] = []
        stream = self.names[name].partition(".")[2]
        with closing(self.kafka.admin()) as admin, closing(self.kafka.reader()) as reader:
            wait_until(lambda: not admin.open_transactions(stream), "all transactions to end")
            for partition, bounds in admin.offsets(stream).items():
                ssp = SystemStreamPartition("kafka", stream, partition)
                for chunk in reader.read(OffsetRange(ssp, bounds.oldest, bounds.upcoming), 100):
                    found += [(m[1], (m[2] or b"").decode(), json.loads(m[3] or b"null")) for m in chunk]
        return found


@pytest.fixture(params=[pytest.param("at-least-once", marks=pytest.mark.slow), "exactly-once"])
def world(tmp_path: Path, kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> DayWorld:
    return DayWorld(tmp_path, kafka_broker, request.param)


@pytest.mark.slow
def test_days_with_early_panes_a_drain_and_a_poison_message(world: DayWorld) -> None:
    events = given()
    world.drive(events)
    panes = [(t, key, tuple(value)) for t, key, value in world.came("out")]
    last, early = expected(events)
    assert Counter(panes) == Counter(last) + Counter(early)
    poison = sorted((each["t"], each["n"]) for each in events if each["n"] < 0)
    assert sorted((t, json.loads(letter["value"])["n"]) for t, _, letter in world.came("dead")) == poison

    without = {name: f"local.{name}" for name in STREAMS}
    runner = TestRunner(application(without), dead_letter="local.dead")
    runner.input("local.in", events).run().drain()
    found = {(m.timestamp, m.key, *m.value[1:]) for m in runner.output("local.out") if m.value[0] != "early"}
    assert found == {(t, key, *pane[1:]) for t, key, pane in last}, "a test without a broker finds the same"
    assert sorted(m.timestamp for m in runner.output("local.dead")) == [t for t, _ in poison]
