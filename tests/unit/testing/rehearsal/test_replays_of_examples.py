"""A replay of each of the example jobs sends what the job has sent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from examples.jobs import (
    anomaly_scores,
    change_capture,
    deduplication,
    enrichment,
    fraud_rule,
    order_payments,
    sessions,
    top_n,
)
from penstock import admin
from penstock.api.ssp import SystemStreamPartition
from penstock.config import load_config
from penstock.graph.topology import Topology
from penstock.objects.open import open_job_root
from penstock.runtime.messages.packet import Packet
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from penstock.tables.driver import Tables
from penstock.testing.in_process import InProcessDriver
from penstock.testing.rehearsal.passes import Survey, run_whole
from penstock.testing.rehearsal.replay import between
from penstock.testing.rehearsal.trace import rows_of
from penstock.testing.runner.sides import TablesInProcess, catch_up
from tests.support.tools.cli import own_home
from tests.unit.examples.test_batches_of_jobs import card_events, changes, clicks, sales, settled

PARTITIONS = 2
Sent = Iterator[tuple[str, Any]]


def deliveries(rng: random.Random) -> Sent:
    for _ in range(60):
        yield "local.events", {"id": f"e{rng.randrange(25)}", "kind": "paid"}


def readings(rng: random.Random) -> Sent:
    for number in range(60):
        yield "local.readings", {"sensor": rng.choice("ab"), "value": rng.random() * 100, "at": number}


def web_orders(rng: random.Random) -> Sent:
    for number in range(60):
        yield "local.web-orders", enrichment.Order(f"o{number}", rng.choice("abc"), 5)


JOBS: dict[str, tuple[Any, Callable[[random.Random], Sent]]] = {
    "anomaly_scores": (anomaly_scores, readings),
    "change_capture": (change_capture, changes),
    "deduplication": (deduplication, deliveries),
    "enrichment": (enrichment, web_orders),
    "fraud_rule": (fraud_rule, card_events),
    "order_payments": (order_payments, settled),
    "sessions": (sessions, clicks),
    "top_n": (top_n, sales),
}


class Sends(Survey):
    """Keeps all that the run sends."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self.sent = Counter[tuple[str, int, bytes | None, bytes | None]]()

    def arrived(self, batch: int, packets: Sequence[Packet]) -> None:
        for row in rows_of(self.topology, packets):
            if row.channel.output is not None:
                self.sent[str(row.channel.output), row.partition, row.key, row.value] += 1


class World:
    def __init__(self, home: Path, app: Any) -> None:
        self.app, self.streams = app, LocalSystem("local", str(home / "streams"))
        self.keys = {"job.name": app.name, "job.batch.max.messages": 9, "task.checkpoint.retained": 9}
        self.specs = {str(op.stream): op.value_serde for op in app.graph().inputs}
        for stream in {*self.specs, *map(str, app.graph().side_streams())}:
            self.streams.admin().create_stream(stream.partition(".")[2], PARTITIONS)

    def publish(self, stream: str, partition: int, key: bytes | None, value: bytes) -> None:
        with closing(self.streams.writer(None)) as writer:
            name = stream.partition(".")[2]
            writer.append(SystemStreamPartition("local", name, partition), [(1_000_000, key, value)])

    def run(self, tables: Any) -> None:
        config = load_config(overrides=self.keys)
        with closing(open_job_root(config.job)) as objects:
            driver = InProcessDriver(
                self.app.graph(), config, objects, {}, containers=1, until_latest=True, close=False
            )
            with closing(driver):
                for name, rows in tables.items():
                    job = driver.job
                    TablesInProcess(objects, job.paths, job.topology.graph, job.settings.tasks).push(name, rows)
                driver.loop.start()
                catch_up(driver, driver.job.topology.graph)
                driver.loop.parts.of(Tables).settle()
                while not driver.loop.run_to_the_end():
                    pass

    def sent(self) -> Counter[tuple[str, int, bytes | None, bytes | None]]:
        found = Counter[tuple[str, int, bytes | None, bytes | None]]()
        with closing(self.streams.admin()) as looks, closing(self.streams.reader()) as reader:
            for spec in self.app.graph().outputs:
                name = spec.stream.stream
                for number, ends in looks.offsets(name).items():
                    offsets = OffsetRange(SystemStreamPartition("local", name, number), 0, ends.upcoming)
                    for chunk in reader.read(offsets, 1000):
                        found.update((str(spec.stream), number, key, value) for _, _, key, value, *_ in chunk)
        return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
@pytest.mark.parametrize("name", JOBS)
def test_a_replay_of_an_example_sends_what_the_job_sent(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, messages = JOBS[name]
    world = World(own_home(tmp_path, monkeypatch), module.app)
    rng = random.Random(f"{name} {seed}")
    for customer in "ab":
        for partition in range(PARTITIONS if name == "enrichment" else 0):
            value = orjson.dumps({"name": customer * 3, "country": "NO"})
            if partition_of(customer.encode(), PARTITIONS) == partition:
                world.publish("local.customers", partition, customer.encode(), value)
    tables = (
        {"model": [{"sensor": each, "mean": 10.0, "deviation": 3.0} for each in "ab"]}
        if name == "anomaly_scores"
        else {}
    )
    given = list(messages(rng))
    for part in range(3):
        for stream, value in given[part::3]:
            plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            world.publish(stream, rng.randrange(PARTITIONS), None, orjson.dumps(plain))
        world.run(tables if part == 0 else {})
    with admin.open_job(module.app.name, overrides=world.keys) as job:
        retained = job.log.read().restorable
        survey, _ = run_whole(between(job, module.app, retained[0], retained[-1]), "whole", Sends)
    assert isinstance(survey, Sends)
    assert world.sent().total() > 2
    assert survey.sent == world.sent()
