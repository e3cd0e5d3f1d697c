"""Small batches: what runs in the side's own process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from benchmarks.harness import DRIVER_MEMORY
from benchmarks.keyed_fold.penstock import follow
from penstock.config.load import load_config
from penstock.spark.batches.lineage import PacketRdd
from penstock.spark.session.session import create_context, idle_limit
from penstock.system.base import WriterIdentity
from penstock.system.local import LocalSystem

INPUT = "events"
PARTITIONS = 8
OUTPUTS = ("first", "second")
MESSAGES = 480
WARM_UP = 10
"""Batches that do not count."""


class Count(ps.StreamTask):
    """Counts the messages of each key, and passes every message on."""

    def __init__(self, store: str) -> None:
        self.store = store

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store(self.store)

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        self.counts.put(envelope.key, (self.counts.get(envelope.key) or 0) + 1)
        collector.emit(key=envelope.key, value=envelope.value)


@dataclass(frozen=True, slots=True)
class KeyOf:
    """Another key before each exchange, so that messages change their task every time."""

    exchange: int

    def __call__(self, event: dict[str, Any]) -> str:
        return f"{self.exchange}-{event['n'] * (self.exchange + 7) % 101}"


def application(exchanges: int, outputs: bool) -> ps.StreamApplication:
    """So many exchanges, a store behind each, and every message into two outputs or into none."""
    app = ps.StreamApplication("floor")
    events = app.input(f"local.{INPUT}", value=ps.Json())
    for number in range(exchanges):
        app.store(f"counts-{number}", key=ps.String(), value=ps.Json())
        events = events.partition_by(KeyOf(number), key=ps.String(), value=ps.Json())
        events = events.process(partial(Count, f"counts-{number}"), stores=[f"counts-{number}"])
    if not outputs:
        events.filter(lambda value: False)  # nothing takes the messages of the last exchange, and a job says so
    else:
        for name in OUTPUTS:
            events.send_to(app.output(f"local.{name}", key=ps.String(), value=ps.Json()))
    return app


def batches(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the job; one entry per batch."""
    work, messages = Path(parameters["work"]), parameters["messages"]
    system = LocalSystem("local", str(work / "streams"))
    system.admin().create_stream(INPUT, PARTITIONS)
    writer = system.writer(None)
    for partition in range(PARTITIONS):
        values = [orjson.dumps({"n": n}) for n in range(messages * parameters["batches"])[partition::PARTITIONS]]
        ssp = ps.SystemStreamPartition("local", INPUT, partition)
        writer.append(ssp, [(0, None, value) for value in values])
    writer.close()
    app = application(parameters["exchanges"], parameters["outputs"])
    config = {
        "job.root": str(work / "jobs"),
        "job.logged.store.base.dir": str(work / "state"),
        "job.batch.max.messages": messages,
        "job.batch.target.ms": 0,
        "systems.local.path": str(work / "streams"),
        "task.commit.ms": 0,
        **_spark(work, parameters["threads"]),
        **parameters.get("config", {}),
    }
    return {"batches": follow(app.run(config, until="latest"))}


def spark_alone(parameters: dict[str, Any]) -> dict[str, Any]:
    """The same Spark jobs, whose tasks pass on what comes to them: nothing. Milliseconds of each."""
    work, lanes = Path(parameters["work"]), parameters["threads"]
    settings = load_config(overrides={"job.name": "floor", **_spark(work, lanes)})
    context = create_context("floor", {**idle_limit(settings.container), **settings.spark})
    found = []
    for _ in range(parameters["batches"]):
        began = time.perf_counter()
        packets = PacketRdd.empty(context, lanes).map_partitions(_pass_on)
        for _ in range(parameters["shuffles"]):
            packets = packets.exchange(range(lanes), lanes).map_partitions(_pass_on)
        packets.collect()
        found.append((time.perf_counter() - began) * 1000)
    context.stop()
    return {"ms": found}


def appends(parameters: dict[str, Any]) -> dict[str, Any]:
    """The appends of the last stage in a batch, to every partition of both outputs. Milliseconds of each round,
    one append after the other, and all at once."""
    system = LocalSystem("local", str(Path(parameters["work"]) / "streams"))
    admin = system.admin()
    for name in OUTPUTS:
        admin.create_stream(name, PARTITIONS)
    records = [(0, b"key", b'{"n": 1234}')] * (parameters["messages"] // PARTITIONS)
    every = {ps.SystemStreamPartition("local", name, n): records for name in OUTPUTS for n in range(PARTITIONS)}
    found: dict[str, list[float]] = {"in_turn": [], "at_once": []}
    with closing(system.writer(WriterIdentity("floor", 1))) as writer:
        for _ in range(parameters["batches"]):
            began = time.perf_counter()
            for ssp in every:
                writer.append(ssp, records)
            between = time.perf_counter()
            with writer.begin() as transaction:
                for ssp, own in every.items():
                    transaction.append(ssp, own)
            found["in_turn"].append((between - began) * 1000)
            found["at_once"].append((time.perf_counter() - between) * 1000)
    return found


def milliseconds(batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The medians of the batches after the warm-up."""
    durations = [batch["duration_ms"] for batch in batches[WARM_UP:]]
    shown = {"batch": "triggerExecution", "spark_job": "addBatch", "end": "end"}
    return {name: statistics.median(duration[own] for duration in durations) for name, own in shown.items()}


def _spark(work: Path, threads: int) -> dict[str, str]:
    return {
        "spark.master": f"local[{threads}]",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.local.dir": str(work / "spark"),
    }


def _pass_on(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches
