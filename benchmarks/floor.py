"""The parts of a small batch.

`rest` is a batch without `spark_alone`, `appends` and `end`: reading, the operators, the calls to the containers
(Flight) and the driver's own work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from benchmarks import harness
from benchmarks.jobs import configuration, counts, create_stream, places, run
from benchmarks.workload import STREAM
from penstock.config.load import load_config
from penstock.spark.lineage import PacketRdd
from penstock.spark.session.session import create_context, idle_limit
from penstock.system.base import WriterIdentity
from penstock.system.local import LocalSystem

PARTITIONS = 8
OUTPUTS = ("first", "second")
MESSAGES = 480
WARM_UP = 10
"""Batches that do not count."""
TARGETS = {"1 exchanges, no output": 250.0, "2 exchanges, two outputs": 120.0}
"""The longest time for a batch, in milliseconds."""
SHOWN = {"batch": "triggerExecution", "spark_job": "addBatch", "end": "end", "wait": "commitWait", "wal": "walCommit"}
"""The figures of a batch, and Penstock's names for them. The last two are the commit's."""


def key_of(exchange: int, event: dict[str, Any]) -> str:
    """Another key before each exchange, so that messages change their task every time."""
    return f"{exchange}-{event['n'] * (exchange + 7) % 101}"


def batches(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the job; one entry per batch."""
    work, messages = Path(parameters["work"]), parameters["messages"]
    values = [orjson.dumps({"n": n}) for n in range(messages * parameters["batches"])]
    create_stream(work / "streams", STREAM, PARTITIONS, values)
    keys = [partial(key_of, number) for number in range(parameters["exchanges"])]
    app = counts("floor", keys, OUTPUTS if parameters["outputs"] else ())
    more = {"task.commit.ms": parameters.get("commit_ms", 0), **parameters.get("config", {})}
    return run(app, configuration({**parameters, "batch_messages": messages, "config": more}))


def spark_alone(parameters: dict[str, Any]) -> dict[str, Any]:
    """The same Spark jobs, whose tasks pass on what comes to them: nothing. Milliseconds of each."""
    work, lanes = Path(parameters["work"]), parameters["threads"]
    settings = load_config(overrides=places(work, lanes), default_job_name="floor")
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
    """The appends of the last stage in a batch, to every partition of both outputs at once. Milliseconds of each."""
    system = LocalSystem("local", str(Path(parameters["work"]) / "streams"))
    admin = system.admin()
    for name in OUTPUTS:
        admin.create_stream(name, PARTITIONS)
    records = [(0, b"key", b'{"n": 1234}')] * (parameters["messages"] // PARTITIONS)
    every = [ps.SystemStreamPartition("local", *each) for each in product(OUTPUTS, range(PARTITIONS))]
    found = []
    with closing(system.writer(WriterIdentity("floor", 1))) as writer:
        for _ in range(parameters["batches"]):
            began = time.perf_counter()
            with writer.begin() as transaction:
                for ssp in every:
                    transaction.append(ssp, records)
            found.append((time.perf_counter() - began) * 1000)
    return {"ms": found}


def milliseconds(batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    durations = [batch["duration_ms"] for batch in batches[WARM_UP:]]
    return {name: statistics.median(duration.get(own, 0) for duration in durations) for name, own in SHOWN.items()}


def _pass_on(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


@harness.benchmark("floor", __doc__, messages=MESSAGES, batches=100, exchanges=[1, 2, 3], commit_ms=0, threads=2)
def main(bench: harness.Bench) -> int:
    options = bench.options
    common = {"batches": options.batches + WARM_UP}
    jobs: dict[str, dict[str, float]] = {}
    spark_alone: dict[int, float] = {}
    appends = statistics.median(bench.run("appends", "floor:appends", common)["ms"][WARM_UP:])
    for exchanges, outputs in product(options.exchanges, (False, True)):
        shuffles = exchanges + outputs
        if shuffles not in spark_alone:
            alone = {**common, "shuffles": shuffles}
            took = bench.run(f"Spark alone, {shuffles} shuffles", "floor:spark_alone", alone)["ms"]
            spark_alone[shuffles] = statistics.median(took[WARM_UP:])
        name = f"{exchanges} exchanges, {'two outputs' if outputs else 'no output'}"
        found = bench.run(name, "floor:batches", {**common, "exchanges": exchanges, "outputs": outputs})
        job = {**milliseconds(found["batches"]), "spark_alone": spark_alone[shuffles], "appends": appends * outputs}
        rest = job["batch"] - job["spark_alone"] - job["appends"] - job["end"]
        jobs[name] = {**job, "commit": job["wait"] + job["wal"], "rest": rest}
    figures = ("batch", "commit", "spark_alone", "appends", "end", "rest")
    harness.show("a batch, median ms", jobs, **dict.fromkeys(figures, ".0f"))
    for name, most in TARGETS.items():
        if name in jobs:
            bench.target(f"{name}, ms", jobs[name]["batch"], at_most=most)
    return bench.finish(jobs)
