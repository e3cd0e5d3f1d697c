"""The keyed count from Kafka to Kafka: what runs in a side's own process, through Penstock, Spark and other engines."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from benchmarks import jobs
from benchmarks.engines import counted, start_scripts
from benchmarks.kafka.load import ENGINES, EVERY
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.outbox.wing import OUTBOX

STORE = "counts"
EVENTS = ps.Columns(pa.schema({"key": pa.string(), "amount": pa.float64()}))
COUNTS = ps.Columns(pa.schema({"count": pa.int64()}))
_LOOK_SECONDS = 0.25
Sample = tuple[float, int]
"""Epoch seconds, and how many messages were counted by then."""


class Count(ps.StreamTask):
    """The count of each key, as anybody would write it."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store(STORE)

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        number = self.counts.get(envelope.key, 0) + 1
        self.counts.put(envelope.key, number)
        if (number + ord(envelope.key[-1])) % EVERY == 0:
            collector.emit(key=envelope.key, value={"count": number})


class CountColumns(ps.BatchProcessor):
    """The count of each key, by column. Of the counts of a batch that are to be sent on, the last one is."""

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.counts = context.store(STORE)

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        keys = batch.keys.dictionary_encode()
        own = keys.dictionary
        before = self.counts.get_many(own)["count"].fill_null(0).to_numpy()
        after = before + np.bincount(keys.indices.to_numpy(), minlength=len(own))
        self.counts.put_many(own, pa.record_batch({"count": after}))
        digits = pc.utf8_slice_codeunits(own, -1).cast(pa.int64()).to_numpy()
        sent = after - (after + ord("0") + digits) % EVERY
        chosen = np.flatnonzero(sent > before)
        collector.emit(own.take(pa.array(chosen)), pa.record_batch({"count": sent[chosen]}))


def application(given: dict[str, Any], task: Callable[[], ps.StreamTask] = Count) -> ps.StreamApplication:
    """From a topic through the task, or by column, to another topic."""
    by_column = given["engine"] == "columns"
    app = ps.StreamApplication("kafka-count")
    events = app.input(f"kafka.{given['topic']}", key=ps.String(), value=EVENTS if by_column else ps.Json())
    if by_column:
        app.store(STORE, value=COUNTS)
        counts = events.process_batch(CountColumns, stores=[STORE], schema=COUNTS.schema)
    else:
        app.store(STORE, key=ps.String(), value=ps.Json())
        counts = events.process(task, stores=[STORE])
    counts.send_to(app.output(f"kafka.{given['output']}", key=ps.String(), value=ps.Json()))
    return app


def configuration(given: dict[str, Any]) -> dict[str, Any]:
    """All folders inside `work`. Batches are as large as Penstock makes them."""
    found: dict[str, Any] = {
        **given.get("config", {}),
        **jobs.places(Path(given["work"]), given["threads"]),
        "job.lease.ms": 1000,
        "systems.kafka.samza.factory": "kafka",
        "systems.kafka.consumer.bootstrap.servers": given["brokers"],
        "systems.kafka.producer.bootstrap.servers": given["brokers"],
        "task.commit.ms": round(given["commit_s"] * 1000),
    }
    if given.get("guarantee", "at-least-once") != "at-least-once":
        found[f"streams.kafka.{given['output']}.output.guarantee"] = given["guarantee"]
    return found


def penstock(given: dict[str, Any]) -> dict[str, Any]:
    """Count by message, or by column, until the time is over or all messages were counted."""
    job = application(given).run(configuration(given))

    def so_far() -> int:
        jobs.check_active(job, "all was counted")
        return job.progress.total_input_rows if job.progress is not None else 0

    return {"samples": _until(given, so_far, job.stop)}


def echo(given: dict[str, Any]) -> dict[str, Any]:
    """Send every message on until SIGTERM. Says what the commits have put into `job.root` for this."""
    job = application(given, partial(jobs.Count, STORE)).run(configuration(given))
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
    while job.is_active and not stopped.wait(_LOOK_SECONDS):
        pass
    job.stop()
    job.await_termination(60)
    return commits(Path(given["work"]) / "jobs")


def commits(root: Path) -> dict[str, Any]:
    """The commits that the log of the job still has: their records, and the objects of the outbox that these name."""
    paths = JobPaths("kafka-count", "1")
    view = CheckpointLog(FileObjectStore(root), paths).read("report")
    records = {slot: each for slot, each in view.records.items() if isinstance(each, CheckpointRecord)}
    sizes = [(root / paths.checkpoint(slot)).stat().st_size for slot in records]
    own = [objects for each in records.values() for objects in each.section(OUTBOX).objects]
    return {
        "commits": len(records),
        "record_bytes": round(statistics.median(sizes)),
        "outbox_bytes": sum(each.size_bytes for each in own),
        "outbox_messages": sum(part.messages for each in own for part in each.parts.values()),
    }


def engine(given: dict[str, Any]) -> dict[str, Any]:
    """Another engine, in as many processes as it takes."""
    from benchmarks.queries import settings  # not above: Penstock's side does without Spark's SQL

    work, own = Path(given["work"]), ENGINES[given["engine"]]
    start = len(list(work.glob("counted-0-*")))
    slots = given["threads"] * (2 if given["engine"] == "spark-real-time" else 1)
    of_spark = {**settings(work, slots, given["partitions"]), "spark.jars": ",".join(own.jars())}
    each = {**given, "start": start, "settings": of_spark}
    processes = start_scripts(own, each, 1 if own.threads else given["partitions"])

    def so_far() -> int:
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"a process of {given['engine']} ended with status {process.returncode}")
        return counted(work, start)

    def stop() -> None:
        for process in processes:
            process.kill()
            process.wait()

    if given["echo"]:
        while True:  # until it is killed
            so_far()
            time.sleep(_LOOK_SECONDS)
    return {"samples": _until(given, so_far, stop)}


def _until(given: dict[str, Any], so_far: Callable[[], int], stop: Callable[[], None]) -> list[Sample]:
    """Look how far it is until the warm-up and the time after it are over, or everything was counted; then stop it.

    A side that counts batch by batch continues until a batch has ended after the warm-up, for that time again at most.
    """
    samples: list[Sample] = []
    began, warm = 0.0, 0
    start_by = time.monotonic() + given["start_s"]
    least_s = given["warm_up_s"] + given["seconds"]
    while True:
        number, now = so_far(), time.monotonic()
        samples.append((time.time(), number))
        if number:
            began = began or now
            spent = now - began
            if spent <= given["warm_up_s"]:
                warm = number
            if number >= given["events"] or spent > 2 * least_s or (spent > least_s and number > warm):
                break
        elif now > start_by:
            raise RuntimeError(f"no message was counted in {given['start_s']} s")
        time.sleep(_LOOK_SECONDS)
    stop()
    return samples
