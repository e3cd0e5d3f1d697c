"""The keyed fold through Penstock, and the floor of a batch: what runs in the side's own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from benchmarks.harness import DRIVER_MEMORY
from benchmarks.keyed_fold.workload import STREAM, Totals, Workload, compare
from penstock.config.load import load_config
from penstock.driver.handle.job import Job
from penstock.state.reading.reader import read_store
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem

STORE = "totals"
DEADLINE_S = 1800.0


class Fold(ps.StreamTask):
    """Running count and sum per key, as anybody would write it."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store(STORE)

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        total = self.totals.get(envelope.key) or {"count": 0, "sum": 0.0}
        total["count"] += 1
        total["sum"] += envelope.value["amount"]
        self.totals.put(envelope.key, total)


def application() -> ps.StreamApplication:
    """Events by key into the fold; nothing is sent on."""
    app = ps.StreamApplication("keyed-fold")
    app.store(STORE, key=ps.String(), value=ps.Json())
    events = app.input(f"local.{STREAM}", value=ps.Json())
    events.partition_by(lambda event: event["key"], key=ps.String()).process(Fold, stores=[STORE])
    return app


def configuration(streams: Path, work: Path, batch_messages: int, threads: int) -> dict[str, Any]:
    """A commit after every batch, none skipped because the one before is not complete; all folders inside `work`."""
    return {
        "job.root": str(work / "jobs"),
        "job.logged.store.base.dir": str(work / "state"),
        "job.batch.max.messages": batch_messages,
        "job.batch.target.ms": 0,
        "systems.local.path": str(streams),
        "task.commit.ms": 1,
        "task.commit.max.delay.ms": 0,
        "spark.master": f"local[{threads}]",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.local.dir": str(work / "spark"),
    }


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over the published stream; one entry per batch."""
    config = configuration(
        Path(parameters["streams"]), Path(parameters["work"]), parameters["batch_messages"], parameters["threads"]
    )
    job = application().run({**config, **parameters.get("config", {})}, until="latest")
    return {"batches": follow(job)}


def floor(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run tiny batches through the same application, a shuffle included."""
    work, partitions = Path(parameters["work"]), 2
    messages, batches = parameters["messages"], parameters["batches"]
    streams = work / "streams"
    system = LocalSystem("local", str(streams))
    system.admin().create_stream(STREAM, partitions)
    writer = system.writer(None)
    values = [orjson.dumps({"key": f"key-{n % 1000:06d}", "amount": n / 4}) for n in range(messages * batches)]
    for partition in range(partitions):
        ssp = ps.SystemStreamPartition("local", STREAM, partition)
        writer.append(ssp, [(0, None, value) for value in values[partition::partitions]])
    writer.close()
    config = configuration(streams, work, messages, parameters["threads"])
    job = application().run(config, until="latest")
    return {"batches": follow(job)}


def follow(job: Job) -> list[dict[str, Any]]:
    """Every batch of a job until it has ended: rows, Penstock's own durations, and the time since the one before."""
    found: dict[int, dict[str, Any]] = {}
    board = job._board
    before = time.monotonic()
    with board.changed:
        while True:
            active = job.is_active
            last = board.last
            if last is not None and last.batch_id not in found:
                now = time.monotonic()
                found[last.batch_id] = {
                    "batch": last.batch_id,
                    "rows": last.num_input_rows,
                    "duration_ms": dict(last.duration_ms),
                    "interval_ms": round((now - before) * 1000),
                    "ended": time.time(),
                    "container_bytes": last.container_bytes,
                }
                before = now
            if not active:
                break
            board.changed.wait(0.5)
    job.await_termination(60)
    return [found[batch] for batch in sorted(found)]


def await_job(job: Job, condition: Callable[[], object], what: str, pause_s: float = 0.01) -> None:
    """Wait for a condition while a job runs."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if not job.is_active:
            job.await_termination(0)
            raise RuntimeError(f"the job ended before {what}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s in vain for {what}")
        time.sleep(pause_s)


def read_stream(system: LocalSystem, stream: str) -> Iterator[tuple[int, bytes, Any]]:
    """(partition, key, decoded value) of every message of a stream."""
    admin, reader = system.admin(), system.reader()
    for partition, ends in admin.offsets(stream).items():
        ssp = ps.SystemStreamPartition("local", stream, partition)
        for chunk in reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), 10_000):
            yield from ((partition, key or b"", orjson.loads(value or b"null")) for _, _, key, value, *_ in chunk)
    reader.close()
    admin.close()


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the state from the last checkpoint, as a restore does, and compare every key."""
    workload = Workload(**parameters["workload"])
    given = configuration(Path(parameters["streams"]), Path(parameters["work"]), 1, 1)
    config = load_config(overrides=given, default_job_name=application().name)
    totals: Totals = {}
    for _, key, value in read_store(config, STORE):
        total = orjson.loads(value)
        totals[key.decode()] = (total["count"], total["sum"])
    return compare(totals, workload.totals())
