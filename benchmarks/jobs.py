"""Jobs of Penstock: what the sides of several benchmarks share, and the keyed fold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from benchmarks.harness import DEADLINE_S, DRIVER_MEMORY, T, wait_for
from benchmarks.workload import STREAM, Workload, compare
from penstock.config.load import load_config
from penstock.driver.job import Job
from penstock.driver.show.progress import JobProgress
from penstock.state.reading.reader import read_store
from penstock.system.base import OffsetRange, System
from penstock.system.local import LocalSystem

NAME, STORE = "keyed-fold", "totals"
_APPENDED = 50_000


class Fold(ps.StreamTask):
    """Running count and sum per key, as anybody would write it."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store(STORE)

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        total = self.totals.get(envelope.key) or {"count": 0, "sum": 0.0}
        total["count"] += 1
        total["sum"] += envelope.value["amount"]
        self.totals.put(envelope.key, total)


class Count(ps.StreamTask):
    """Counts the messages of each key, and passes every message on."""

    def __init__(self, store: str) -> None:
        self.store = store

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store(self.store)

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.counts.put(envelope.key, (self.counts.get(envelope.key) or 0) + 1)
        collector.emit(key=envelope.key, value=envelope.value)


def application(
    value: ps.Serde[Any] | None = None,
    key: Callable[[Any], str] = itemgetter("key"),
    task: Callable[[], ps.StreamTask] = Fold,
) -> ps.StreamApplication:
    """Events, of JSON by default, by key into the fold; nothing is sent on."""
    app = ps.StreamApplication(NAME)
    app.store(STORE, key=ps.String(), value=ps.Json())
    events = app.input(f"local.{STREAM}", value=value or ps.Json())
    events.partition_by(key, key=ps.String()).process(task, stores=[STORE])
    return app


def counts(
    name: str, keys: Sequence[Callable[[Any], str]], outputs: Sequence[str], system: str = "local"
) -> ps.StreamApplication:
    """Events through an exchange by each of the keys in turn, with a count behind each, and into the outputs."""
    app = ps.StreamApplication(name)
    events = app.input(f"{system}.{STREAM}", value=ps.Json())
    for number, key in enumerate(keys):
        store = f"counts-{number}"
        app.store(store, key=ps.String(), value=ps.Json())
        by_key = events.partition_by(key, key=ps.String(), value=ps.Json())
        events = by_key.process(partial(Count, store), stores=[store])
    if not outputs:
        events.filter(lambda value: False)  # nothing takes the messages of the last exchange, and a job says so
    for output in outputs:
        events.send_to(app.output(f"{system}.{output}", key=ps.String(), value=ps.Json()))
    return app


def places(work: Path, threads: int) -> dict[str, Any]:
    """All folders inside `work`, and what all sides share."""
    return {
        "job.root": str(work / "jobs"),
        "job.logged.store.base.dir": str(work / "state"),
        "systems.local.path": str(work / "streams"),
        "spark.master": f"local[{threads}]",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.local.dir": str(work / "spark"),
    }


def files_system(folder: str, partitions: int) -> dict[str, Any]:
    """A system `files` whose streams are folders of files."""
    factory = {"systems.files.samza.factory": "files", "systems.files.folder": folder}
    return {**factory, "systems.files.partitions": partitions}


def configuration(parameters: dict[str, Any]) -> dict[str, Any]:
    """A commit after every batch of `batch_messages`, none skipped because the one before is not complete."""
    found = places(Path(parameters["work"]), parameters["threads"])
    return {
        **found,
        "systems.local.path": parameters.get("streams", found["systems.local.path"]),
        "job.batch.max.messages": parameters["batch_messages"],
        "job.batch.target.ms": 0,
        "task.commit.ms": 1,
        "task.commit.max.delay.ms": 0,
        **parameters.get("config", {}),
    }


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over the published stream; one entry per batch."""
    return run(application(), configuration(parameters))


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the state from the last checkpoint, as a restore does, and compare every key."""
    rows = [(key, orjson.loads(value)) for _, key, value in stored(configuration(parameters), NAME, STORE)]
    counts, sums = ([total[name] for _, total in rows] for name in ("count", "sum"))
    return compare(Workload(**parameters["workload"]), [key for key, _ in rows], counts, sums)


def stored(config: Mapping[str, Any], job: str, store: str) -> Iterator[tuple[int, bytes, bytes]]:
    """(task, key, value) of a store at the last checkpoint of a job."""
    return read_store(load_config(overrides=config, default_job_name=job), store)


def create_stream(
    folder: Path, name: str, partitions: int, values: Sequence[bytes] = (), headers: Sequence[tuple[str, bytes]] = ()
) -> LocalSystem:
    """A new local stream, whose partitions get the values in turn."""
    system = LocalSystem("local", str(folder))
    with closing(system.admin()) as admin:
        admin.create_stream(name, partitions)
    more = [tuple(headers)] if headers else []
    append(system, name, ([(0, None, value, *more) for value in values[n::partitions]] for n in range(partitions)))
    return system


def append(system: LocalSystem, stream: str, records: Iterable[Sequence[Any]]) -> None:
    """Append the records of each partition in its order."""
    with closing(system.writer(None)) as writer:
        for partition, own in enumerate(records):
            for first in range(0, len(own), _APPENDED):
                writer.append(ps.SystemStreamPartition("local", stream, partition), own[first : first + _APPENDED])


def ends_of(system: System, stream: str) -> dict[int, int]:
    """The upcoming offset of each partition; none as long as the stream does not exist."""
    with closing(system.admin()) as admin:
        try:
            return {partition: ends.upcoming for partition, ends in admin.offsets(stream).items()}
        except ps.NotFoundError:
            return {}


def read_stream(
    system: System, stream: str, starts: Mapping[int, int] | None = None, ends: Mapping[int, int] | None = None
) -> Iterator[tuple[int, bytes, Any]]:
    """(partition, key, decoded value) of the messages of a stream: of all, or of those between two ends."""
    with closing(system.reader()) as reader:
        for partition, end in (ends_of(system, stream) if ends is None else ends).items():
            ssp, start = ps.SystemStreamPartition(system.name, stream, partition), (starts or {}).get(partition, 0)
            for chunk in reader.read(OffsetRange(ssp, start, end), 10_000) if end > start else ():
                yield from ((partition, key or b"", orjson.loads(value or b"null")) for _, _, key, value, *_ in chunk)


def run(app: ps.StreamApplication, config: Mapping[str, Any]) -> dict[str, Any]:
    """Run a job over all that is there; one entry per batch that read messages."""
    return {"batches": [batch for batch in follow(app.run(config, until="latest")) if batch["rows"]]}


def follow(job: Job) -> list[dict[str, Any]]:
    """Every batch of a job until it has ended, and the time since the one before."""
    found, before = [], time.monotonic()
    for batch in batches_of(job):
        now = time.monotonic()
        found.append({**entry(batch), "interval_ms": round((now - before) * 1000)})
        before = now
    return found


def entry(batch: JobProgress) -> dict[str, Any]:
    """Keep of a batch that has just ended: its rows, Penstock's own durations, and the last complete commit."""
    return {
        "batch": batch.batch_id,
        "rows": batch.num_input_rows,
        "duration_ms": dict(batch.duration_ms),
        "ended": time.time(),
        "commit": {"checkpoint": batch.last_checkpoint, **batch.commit_ms},
    }


def batches_of(job: Job, deadline_s: float = math.inf) -> Iterator[JobProgress]:
    """Each batch as it ends, until the job has ended. An error that ended the job is raised."""
    board, newest, deadline = job._board, -1, time.monotonic() + deadline_s
    while True:
        with board.changed:
            is_active, last = job.is_active, board.last
            is_new = last is not None and last.batch_id != newest
            if is_active and not is_new:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"waited {deadline_s:.0f} s in vain for a batch")
                board.changed.wait(0.5)
                continue
        if last is None or not is_new:
            job.await_termination(60)
            return
        newest = last.batch_id
        yield last


def await_batch(job: Job, condition: Callable[[JobProgress], bool], deadline_s: float = DEADLINE_S) -> JobProgress:
    """The first batch, from the last one on, of which the condition holds."""
    for batch in batches_of(job, deadline_s):
        if condition(batch):
            return batch
    raise RuntimeError("the job ended by itself")


def await_job(job: Job, condition: Callable[[], T | None], what: str, pause_s: float = 0.01) -> T:
    """Wait for a condition while a job runs, and return its value."""
    return wait_for(condition, what, partial(check_active, job, what), pause_s)


def check_active(job: Job, what: str) -> None:
    """Raise what ended the job, or that it ended by itself, unless it runs."""
    if not job.is_active:
        job.await_termination(0)
        raise RuntimeError(f"the job ended before {what}")
