"""The time that a job stands still when a container or an executor is killed with `kill -9`, with a large state."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import orjson

import penstock as ps
from benchmarks import harness
from benchmarks.jobs import await_job, create_stream, ends_of, places, read_stream
from penstock.driver.job import Job
from penstock.spark import job as job_module
from penstock.spark.containers.directory import ContainerDirectory
from penstock.system.local import LocalSystem

SPARK = "spark"
SIDES = ("standby", "host copy", "blob", "changelog-files", SPARK)
TARGET_MS = 2000.0
"""Between noticing a loss and the next message, with a standby."""
FIGURES = ("noticed", "after_notice", "visible")
INPUT, OUTPUT, STORE = "events", "seen", "state"
TASKS = 4
VALUE_BYTES = 1000
ENTRIES = 100
"""Entries that a message of the fill makes."""
PROBE_S = 0.05
EXECUTORS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "1g",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
}
SETTLE_S = 10.0


def figures(run: harness.SideRun) -> dict[str, Any]:
    """The median and the slowest of each figure, in milliseconds."""
    found: dict[str, Any] = {}
    for figure in FIGURES:
        values = [kill[f"{figure}_ms"] for kill in run.result["rounds"] if f"{figure}_ms" in kill]
        if values:
            found |= {f"{figure}_ms": round(statistics.median(values)), f"{figure}_most_ms": round(max(values))}
    return {**run.result, **found}


def waits(at: float, noticed: float | None, back: float, visible: float) -> dict[str, float]:
    """Milliseconds from a loss until it was noticed and until it could no longer be seen, and from the notice to the
    next message; of Spark, to the end of its batch."""
    found = {"visible_ms": (visible - at) * 1000}
    if noticed is not None:
        found |= {"noticed_ms": (noticed - at) * 1000, "after_notice_ms": (back - noticed) * 1000}
    return found


class Keep(ps.StreamTask):
    """Fills the state; after that, reads an entry for each message and says when and where it did."""

    def init(self, context: ps.TaskContext) -> None:
        self.state = context.store(STORE)
        self.task = context.partition
        self.chance = random.Random(self.task)

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        name = envelope.value["name"]
        if envelope.value["fill"]:
            for number in range(ENTRIES):
                self.state.put(f"{name}-{number}", self.chance.randbytes(VALUE_BYTES))
            return
        found = self.state.get(f"{name}-0")
        seen = {"at": time.time(), "pid": os.getpid(), "task": self.task, "bytes": len(found or b"")}
        collector.emit(key=envelope.key, value=seen)


def application() -> ps.StreamApplication:
    """Messages by name into the state."""
    app = ps.StreamApplication("standby")
    app.store(STORE, key=ps.String(), value=ps.Bytes())
    messages = app.input(f"local.{INPUT}").partition_by(lambda message: message["name"], key=ps.String())
    messages.process(Keep, stores=[STORE]).send_to(app.output(f"local.{OUTPUT}", key=ps.String()))
    return app


def configuration(work: Path, kind: str) -> dict[str, Any]:
    """Two executors, each with a container; a commit a second."""
    backend = kind if kind in ("blob", "changelog-files") else "changelog-files"
    return {
        **places(work, 2),
        "job.intermediate.stream.partitions": TASKS,
        "job.batch.interval.ms": 10,
        "job.batch.max.messages": 1000,
        "job.host-affinity.enabled": kind == "host copy",
        "job.standbytasks.replication.factor": 2 if kind == "standby" else None,
        "job.retry.max": 100,
        "stores.backup.factories": backend,
        "task.commit.ms": 1000,
        **EXECUTORS,
    }


class WatchedDirectory(ContainerDirectory):
    """Notes when the driver notices that a container is lost."""

    newest: ClassVar[ContainerDirectory]
    noticed: ClassVar[list[float]] = []

    def start(self, on_lost: Callable[[], None]) -> None:
        def noted() -> None:
            self.noticed.append(time.time())
            on_lost()

        WatchedDirectory.newest = self
        super().start(noted)


def message(number: int, *, fill: bool) -> bytes:
    """A message that makes entries, or one that reads one of them."""
    return orjson.dumps({"name": f"n{number}", "fill": fill})


def penstock(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill the state, and kill a container again and again."""
    work, kind = Path(parameters["work"]), parameters["kind"]
    setattr(job_module, "ContainerDirectory", WatchedDirectory)  # noqa: B010 - mypy: a class is no variable
    messages = max(TASKS, parameters["megabytes"] * 2**20 // (VALUE_BYTES * ENTRIES))
    system = create_stream(work / "streams", INPUT, TASKS, [message(number, fill=True) for number in range(messages)])
    writer, first = system.writer(None), ps.SystemStreamPartition("local", INPUT, 0)
    probes = [(0, None, message(number, fill=False)) for number in range(min(messages, TASKS * 4))]
    job = application().run(configuration(work, kind))
    rounds = []
    try:
        await_job(job, lambda: job.progress is not None and job.progress.total_input_rows >= messages, "the fill")
        with harness.repeating(lambda: writer.append(first, probes), PROBE_S):
            for _ in range(parameters["repeat"]):
                _await_settled(job)
                if kind == "standby":
                    await_job(job, lambda: len(WatchedDirectory.newest.ready()) == TASKS, "standbys of all tasks")
                rounds.append(_strike(job, system))
    finally:
        job.stop()
    return {"rounds": rounds, "state_bytes": messages * ENTRIES * VALUE_BYTES}


def _strike(job: Job, system: LocalSystem) -> dict[str, float]:
    """Kill a container, and wait until a message of its tasks was processed."""
    starts = ends_of(system, OUTPUT)
    owners: dict[int, int] = {}

    def both_containers() -> bool:
        ends = ends_of(system, OUTPUT)
        owners.update({seen["task"]: seen["pid"] for *_, seen in read_stream(system, OUTPUT, starts, ends)})
        starts.update(ends)
        return len(owners) == TASKS and len(set(owners.values())) > 1

    await_job(job, both_containers, "an output of every task, from two containers")
    container = random.choice(sorted(set(owners.values())))
    lost = {task for task, pid in owners.items() if pid == container}
    at = time.time()
    os.kill(container, signal.SIGKILL)

    def back() -> tuple[float, list[dict[str, Any]]] | None:
        """When outputs of the lost tasks, of another container, were there, and these."""
        ends, moment = ends_of(system, OUTPUT), time.time()
        seen = [value for *_, value in read_stream(system, OUTPUT, starts, ends) if value["at"] > at]
        own = [value for value in seen if value["task"] in lost and value["pid"] != container]
        return (moment, own) if own else None

    visible, found = await_job(job, back, "an output after the loss")
    if not all(value["bytes"] for value in found):
        raise AssertionError("entries of the state are missing after the loss")
    noticed = next((moment for moment in WatchedDirectory.noticed if moment > at), None)
    return waits(at, noticed, min(value["at"] for value in found), visible)


def _await_settled(job: Job) -> None:
    """Wait until everything is committed, and copies have followed."""
    moment = time.time()
    progress = job.progress
    rows = progress.total_input_rows if progress else 0
    await_job(job, lambda: job.progress is not None and job.progress.total_input_rows > rows, "more batches")
    await_job(job, lambda: time.time() - moment > SETTLE_S, "some commits")


@harness.benchmark("standby", __doc__, megabytes=1024, sides=list(SIDES), repeat=5)
def main(bench: harness.Bench) -> int:
    for side in bench.options.sides:
        target = "state.spark:losses" if side == SPARK else "standby:penstock"
        bench.run(side, target, {"kind": side}, figures=figures)
    rows = {side: runs[0] for side, runs in bench.runs.items()}
    columns = {f"{figure}_{kind}": "," for figure in FIGURES for kind in ("ms", "most_ms")}
    harness.show("kill -9", rows, state_bytes="MB", **columns, peak_bytes="MB")
    if "after_notice_most_ms" in rows.get("standby", {}):
        found = rows["standby"]["after_notice_most_ms"]
        bench.target("with a standby, ms after the loss is noticed", found, at_most=TARGET_MS)
    return bench.finish()
