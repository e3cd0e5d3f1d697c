"""A job of many small batches and what its processes hold after every few of them: runs in the side's own process."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import orjson
import psutil
from pyspark import SparkContext

import penstock as ps
from benchmarks.harness import process_kind, session_processes
from penstock.driver.handle.job import Job
from penstock.system.local import LocalSystem

STREAM = "events"
PARTITIONS = 2
KEYS = 200
GROUPS = 20
_STEP_TIMEOUT_S = 600.0
_MOST_COLLECTIONS = 10
_FILES_OF_A_BATCH = 20
_NOT_COUNTED = (
    "block-manager-ask-thread-pool-",
    "block-manager-storage-async-thread-pool-",
    "Worker Monitor for ",
)
"""Threads of Spark's whose number says how fast the last batches were. The two pools take another thread for each task
until they have 100, and keep an idle one for 60 s. Each Python task has a monitor, which ends up to two seconds after
it; a task that does not end also keeps a thread that is counted."""


class Count(ps.StreamTask):
    """Counts the messages of each key, and passes them on."""

    store: str

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store(self.store)

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        count = (self.counts.get(envelope.key) or 0) + 1
        self.counts.put(envelope.key, count)
        collector.emit(key=envelope.key, value={**envelope.value, self.store: count})


class CountKeys(Count):
    store = "keys"


class CountGroups(Count):
    store = "groups"


def application() -> ps.StreamApplication:
    """Two stages with a store each behind an exchange each, and an output."""
    app = ps.StreamApplication("soak")
    for store in ("keys", "groups"):
        app.store(store, key=ps.String(), value=ps.Json())
    (
        app.input(f"local.{STREAM}", value=ps.Json())
        .partition_by(lambda event: event["key"], key=ps.String())
        .process(CountKeys, stores=["keys"])
        .partition_by(lambda event: event["group"], key=ps.String())
        .process(CountGroups, stores=["groups"])
        .send_to(app.output("local.counts", key=ps.String(), value=ps.Json()))
    )
    return app


def configuration(work: Path, batch_messages: int, latency_ms: int, commit_ms: int) -> dict[str, Any]:
    """All folders inside `work`. With a latency, batches go to the containers directly."""
    return {
        "job.root": str(work / "jobs"),
        "job.logged.store.base.dir": str(work / "state"),
        "job.batch.max.messages": batch_messages,
        "job.batch.target.ms": 0,
        "job.batch.interval.ms": 20,
        "systems.local.path": str(work / "streams"),
        "task.commit.ms": commit_ms,
        **({"job.latency.target.ms": latency_ms} if latency_ms else {}),
        "task.commit.max.delay.ms": 0,
        "task.checkpoint.retained": "10",  # not one of each hour as well: the job root would grow when the hour strikes
        "spark.master": f"local[{PARTITIONS}]",
        "spark.driver.memory": "512m",
        "spark.local.dir": str(work / "spark"),
        # Spark describes its last 1000 jobs and stages in memory. That is a bound, but one that few runs here reach.
        "spark.ui.retainedJobs": 20,
        "spark.ui.retainedStages": 20,
        "spark.ui.retainedTasks": 100,
    }


def soak(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run `steps` times `step_batches` batches of `batch_messages` messages, and take a sample after each step.

    A step's messages are appended at once and read before the sample is taken, so that nothing is under way then.
    """
    work = Path(parameters["work"])
    messages: int = parameters["batch_messages"]
    temporary = work / "tmp"
    temporary.mkdir(parents=True)
    os.environ["TMPDIR"] = str(temporary)
    system = LocalSystem("local", str(work / "streams"))
    system.admin().create_stream(STREAM, PARTITIONS)
    padding = "x" * parameters["message_bytes"]
    values = [
        orjson.dumps({"key": f"k{n % KEYS}", "group": f"g{n % GROUPS}", "padding": padding}) for n in range(messages)
    ]
    job = application().run(configuration(work, messages, parameters["latency_ms"], parameters["commit_ms"]))
    samples = []
    writer = system.writer(None)
    started = time.monotonic()
    try:
        for step in range(1, parameters["steps"] + 1):
            for partition in range(PARTITIONS):
                own = values[partition::PARTITIONS] * parameters["step_batches"]
                writer.append(ps.SystemStreamPartition("local", STREAM, partition), [(0, None, value) for value in own])
            _await_rows(job, step * parameters["step_batches"] * messages)
            last = job.progress
            assert last is not None
            seconds = round(time.monotonic() - started, 1)
            samples.append({"batches": last.batch_id, "way": last.way, "seconds": seconds, "figures": sample(work)})
        job.stop()
    finally:
        writer.close()
    return {"samples": samples}


def _await_rows(job: Job, rows: int) -> None:
    deadline = time.monotonic() + _STEP_TIMEOUT_S
    board = job._board
    with board.changed:
        while board.last is None or board.last.total_input_rows < rows:
            if not job.is_active:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{rows} messages were not read within {_STEP_TIMEOUT_S:.0f} s")
            board.changed.wait(0.5)
    if not job.is_active:
        job.await_termination(0)
        raise RuntimeError("the job ended by itself")


def sample(work: Path) -> dict[str, dict[str, float]]:
    """Kind of process or folder -> figure -> value, after the garbage of driver and JVM has been collected."""
    figures: dict[str, dict[str, float]] = {}
    gc.collect()
    jvm: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
    # What a collection finds dead, Spark's cleaner lets go of for the next one, and deletes its files.
    for collections in range(1, _MOST_COLLECTIONS + 1):
        jvm.java.lang.System.gc()
        time.sleep(0.2)
        if collections >= 2 and _count(work / "spark") <= _FILES_OF_A_BATCH:
            break
    session = os.getsid(0)
    for process in session_processes(session):
        try:
            kind = process_kind(process, session)
            if kind is None:
                continue
            with process.oneshot():
                found = {
                    "memory_bytes": _memory_bytes(process.pid),
                    "threads": process.num_threads(),
                    "open_files": process.num_fds(),
                }
        except (psutil.Error, OSError):
            continue
        own = figures.setdefault(kind, dict.fromkeys(found, 0))
        for name, value in found.items():
            own[name] += value
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    figures["jvm"]["threads"] = _jvm_threads(jvm)
    # What the JVM has taken from the system depends on when it last collected.
    figures["jvm"]["memory_bytes"] = memory.getHeapMemoryUsage().getUsed() + memory.getNonHeapMemoryUsage().getUsed()
    figures["files"] = {
        "temporary": _count(work / "tmp"),
        "spark": _count(work / "spark"),
        "job_root": _count(work / "jobs"),
        "local_state": _count(work / "state"),
        "log_bytes": sum(path.stat().st_size for path in _files(work) if path.suffix in (".log", ".txt")),
    }
    return figures


def _memory_bytes(pid: int) -> int:
    """The memory that the process has written, with its share of the pages that it has from its parent.

    Pages of files are left out: those of a library become the process's own when another program on the machine that
    uses the library ends.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")


def _jvm_threads(jvm: Any) -> int:
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet()
    return sum(not thread.getName().startswith(_NOT_COUNTED) for thread in threads)


def _files(folder: Path) -> list[Path]:
    found = []
    for path, _, names in os.walk(folder):
        found += [Path(path, name) for name in names]
    return found


def _count(folder: Path) -> int:
    return len(_files(folder))
