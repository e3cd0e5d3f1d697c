"""A fork, a replay and a repartition of a large state, beside `cp -r` of the same bytes: a rehearsal."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from benchmarks import harness
from benchmarks.harness import bytes_below
from benchmarks.jobs import append, configuration, create_stream, stored
from benchmarks.state.job import time_cp
from penstock import admin
from penstock.admin.state.repartition import plan_repartition, repartition
from penstock.config.load import load_config
from penstock.spark.stored_state import mover
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from penstock.testing.rehearsal.replay import replay_input

VALUE_BYTES = 4000
ENTRIES = 100
"""Entries of a message's key."""
_BATCH_BYTES = 256 << 20
STORE = "values"


def value_of(key: str, number: int) -> bytes:
    return hashlib.shake_128(f"{key} {number}".encode()).digest(VALUE_BYTES)


class Fill(ps.StreamTask):
    """Stores the entries of each key."""

    def init(self, context: ps.TaskContext) -> None:
        self.values = context.store(STORE)

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        for number in range(ENTRIES):
            self.values[envelope.key, number] = value_of(envelope.key, number)


def application() -> ps.StreamApplication:
    """Keys by task into the store."""
    app = ps.StreamApplication("repartition")
    app.store(STORE, key=ps.Tuple(ps.String(), ps.Long()), value=ps.Bytes())
    app.input("local.keys").partition_by(str, key=ps.String()).process(Fill, stores=[STORE])
    return app


def config_of(parameters: dict[str, Any], tasks: int) -> dict[str, Any]:
    """A commit for each batch; the last two checkpoints are kept."""
    batch = _BATCH_BYTES // (ENTRIES * VALUE_BYTES)
    return {
        **configuration({**parameters, "batch_messages": batch}),
        "job.intermediate.stream.partitions": tasks,
        "task.checkpoint.retained": 1,
        f"stores.{STORE}.object.cache.size": 0,
    }


def rehearse(parameters: dict[str, Any]) -> dict[str, Any]:
    keys, before, after = parameters["keys"], parameters["before"], parameters["after"]
    work = Path(parameters["work"])
    create_stream(work / "streams", "keys", 1, [orjson.dumps(f"key-{number}") for number in range(keys)])

    config = config_of(parameters, before)
    application().run(config, until="latest").await_termination()
    loaded = load_config(overrides=config, default_job_name="repartition")
    state = work / "jobs" / "repartition-1" / "state"
    state_bytes = bytes_below(state)
    copied = time_cp(state, work / "copy", synced=True)
    forked = _forked(config, work, keys)
    with plan_repartition(application(), after, overrides=config) as planned:
        done = repartition(planned, mover(loaded, "repartition"))
    return {
        "move_seconds": round(done.seconds, 1),
        "cp_seconds": round(copied, 1),
        "ratio_to_cp": round(copied / done.seconds, 3),
        "state_bytes": state_bytes,
        **forked,
        **_verified(parameters, after),
    }


def _forked(config: dict[str, Any], work: Path, keys: int) -> dict[str, Any]:
    """A fork, which is deleted again; and a replay of one more message, up to its step."""
    before, took = bytes_below(work / "jobs"), list[float]()
    with admin.open_job("repartition", overrides=config) as job:
        began = time.perf_counter()
        admin.fork(job, "what-if")
        forked = time.perf_counter() - began
        written = bytes_below(work / "jobs") - before
        append(LocalSystem("local", str(work / "streams")), "keys", [[(0, None, orjson.dumps("key-0"))]])
        began = time.perf_counter()
        last = ps.SystemStreamPartition("local", "keys", 0)
        replay_input(job, application(), last, keys, lambda _: took.append(time.perf_counter() - began))
    with admin.open_job("what-if", overrides=config) as job:
        admin.delete_job(job)
    return {"fork_seconds": round(forked, 2), "fork_bytes": written, "replay_seconds": round(took[0], 1)}


def _verified(parameters: dict[str, Any], tasks: int) -> dict[str, Any]:
    serde = ps.Tuple(ps.String(), ps.Long())
    found = wrong = 0
    for task, key, value in stored(config_of(parameters, tasks), "repartition", STORE):
        name, number = serde.from_bytes(key)
        found += 1
        wrong += partition_of(name.encode(), tasks) != task
        if found % parameters["sampled"] == 0:
            wrong += value != value_of(name, number)
    return {"verified": {"equal": found == parameters["keys"] * ENTRIES and not wrong, "found": found, "wrong": wrong}}


@harness.benchmark("repartition", __doc__, megabytes=10_000, before=4, after=6, sampled=20, threads=2)
def main(bench: harness.Bench) -> int:
    keys = bench.options.megabytes * 1_000_000 // (ENTRIES * VALUE_BYTES)
    found = bench.run("penstock", "repartition:rehearse", {"keys": keys})
    times = {"move_seconds": ".0f", "cp_seconds": ".0f", "fork_seconds": ".2f", "replay_seconds": ".1f"}
    rest = {"ratio_to_cp": ".2f", "state_bytes": "MB", "peak_bytes": "MB", "verified": ""}
    harness.show("repartition", {"penstock": found}, **times, **rest)
    return bench.finish()
