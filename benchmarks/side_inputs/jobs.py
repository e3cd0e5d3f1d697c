"""Jobs with a table that is filled from the outside: what runs in the side's own process.

`how` the table is filled: `container` (side inputs, read in the container), `spark` (an input of the job that writes
the table), `idle` (side inputs; the updates go to a stream that nobody reads, so that making them costs as much).
"""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from benchmarks.harness import DRIVER_MEMORY
from benchmarks.keyed_fold.penstock import DEADLINE_S, await_job, read_stream
from benchmarks.side_inputs.updates import by_partition, key_names, update
from penstock.driver.handle.job import Job
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.system.base import OffsetRange, RawRecord
from penstock.system.local import LocalSystem

EVENTS, RATES, UNREAD, OUTPUT = "events", "rates", "unread", "probes"
PARTITIONS = 4
_APPENDED = 10_000


class Rated(ps.StreamTask):
    """Looks up the rate of each message, and sends what probes found on."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.rates = context.store(RATES)
        self.sum = 0.0

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        rate = self.rates.get(envelope.key)
        event = envelope.value
        if rate is not None:
            self.sum += rate["rate"] * event["amount"]
        if event["probe"]:
            found = {
                "task": self.context.partition,
                "batch": self.context.batch_time_ms,
                "now": time.time(),
                "at": rate and rate["at"],
            }
            collector.emit(key=envelope.key, value=found)


def application(how: str, pushed: Path | None = None) -> ps.StreamApplication:
    """Events by key, each with the rate of its key."""
    app = ps.StreamApplication("side-inputs")
    if pushed is not None:
        app.table(RATES, value=ps.Json(), pushed=ps.PushedTable(str(pushed), key="key", value=("at", "rate")))
    elif how == "spark":
        rates = app.table(RATES, value=ps.Json())
        app.input(f"local.{RATES}", key=ps.String()).send_to(rates)
    else:
        app.table(RATES, value=ps.Json(), side_inputs=[f"local.{RATES}"])
    events = app.input(f"local.{EVENTS}").partition_by(lambda event: event["key"], key=ps.String())
    events.process(Rated, stores=[RATES]).send_to(app.output(f"local.{OUTPUT}", key=ps.String()))
    return app


def configuration(work: Path, threads: int) -> dict[str, Any]:
    """All folders inside `work`."""
    return {
        "job.root": str(work / "jobs"),
        "job.logged.store.base.dir": str(work / "state"),
        "job.batch.interval.ms": 10,
        "job.intermediate.stream.partitions": PARTITIONS,
        "systems.local.path": str(work / "streams"),
        "task.commit.ms": 10_000,
        "spark.master": f"local[{threads}]",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.local.dir": str(work / "spark"),
    }


class World:
    """The streams of a side."""

    def __init__(self, work: Path, rows: int) -> None:
        self.work = work
        self.system = LocalSystem("local", str(work / "streams"))
        for stream in (EVENTS, RATES, UNREAD):
            self.system.admin().create_stream(stream, PARTITIONS)
        self.own = by_partition(key_names(rows), PARTITIONS)

    def fill(self, order: str = "ascending") -> None:
        """A row of the table for each key, the keys of a partition in order or, if that is `random`, in none."""
        value, chance = update(time.time()), np.random.default_rng(11)
        for keys in self.own if order == "random" else ():
            chance.shuffle(keys)
        self._append(RATES, ([(0, key.encode(), value) for key in keys] for keys in self.own))

    def messages(self, count: int) -> None:
        """So many messages of random keys."""
        chance = np.random.default_rng(3)
        self._append(
            EVENTS,
            (
                [
                    (0, None, orjson.dumps({"key": keys[n], "amount": 1.5, "probe": False}))
                    for n in chance.integers(0, len(keys), count // PARTITIONS).tolist()
                ]
                for keys in self.own
            ),
        )

    def _append(self, stream: str, records: Iterator[list[RawRecord]]) -> None:
        writer = self.system.writer(None)
        for partition, own in enumerate(records):
            ssp = ps.SystemStreamPartition("local", stream, partition)
            for start in range(0, len(own), _APPENDED):
                writer.append(ssp, own[start : start + _APPENDED])
        writer.close()

    @contextmanager
    def producing(self, table: str, rows: int, *, updates_per_s: int = 0, messages_per_s: int = 0) -> Iterator[None]:
        """A producer in a separate process."""
        given = {
            "streams": str(self.work / "streams"),
            "table": table,
            "keys": rows,
            "partitions": PARTITIONS,
            "updates_per_s": updates_per_s,
            "messages_per_s": messages_per_s,
        }
        file = self.work / "producer.json"
        file.write_bytes(orjson.dumps(given))
        producer = subprocess.Popen([sys.executable, "-m", "benchmarks.side_inputs.updates", str(file)])
        try:
            yield
            if producer.poll() is not None:
                raise RuntimeError("the producer ended by itself")
        finally:
            producer.kill()
            producer.wait()


def throughput(parameters: dict[str, Any]) -> dict[str, Any]:
    """Messages per second between a quarter and the whole of the messages, while the table changes."""
    world, rows, messages = _world(parameters), parameters["rows"], parameters["messages"]
    how, pace = parameters["how"], parameters["updates_per_s"]
    world.fill()
    world.messages(messages)
    with world.producing(UNREAD if how == "idle" else RATES, rows, updates_per_s=pace):
        config = configuration(world.work, parameters["threads"])
        config["job.batch.max.messages"] = max(1, messages // 8)  # no batch is all that is measured
        job = application(how).run(config)
        read = Progress(job)
        began, first = read.until(EVENTS, messages // 4)
        ended, last = read.until(EVENTS, messages)
        lag = _updates_behind(job) if how == "spark" else None
        job.stop()
    return {"messages_per_s": (last - first) / (ended - began), "took_s": ended - began, "updates_behind": lag}


def latency(parameters: dict[str, Any]) -> dict[str, Any]:
    """From an update of a row to the first message that finds it, while messages come at a moderate pace."""
    world, rows, how = _world(parameters), parameters["rows"], parameters["how"]
    world.fill()
    job = application(how).run(configuration(world.work, parameters["threads"]))
    paces = {"updates_per_s": parameters["updates_per_s"], "messages_per_s": parameters["messages_per_s"]}
    with world.producing(RATES, rows, **paces):
        await_job(job, lambda: job.progress is not None, "a batch")
        began = time.time() + parameters["warm_up_s"]
        ended = began + parameters["seconds"]
        await_job(job, lambda: time.time() > ended + 3, "the end of the measurement")
        progress = job.progress
    job.stop()
    firsts = {keys[0].encode(): partition for partition, keys in enumerate(world.own)}
    updates: dict[int, list[float]] = {partition: [] for partition in range(PARTITIONS)}
    for partition, key, value in read_stream(world.system, RATES):
        if key in firsts and began <= value["at"] < ended:
            updates[partition].append(value["at"])
    sightings: dict[int, list[tuple[float, float]]] = {partition: [] for partition in range(PARTITIONS)}
    for _, key, value in read_stream(world.system, OUTPUT):
        if key in firsts and value["at"] is not None:
            sightings[firsts[key]].append((value["now"], value["at"]))
    found = [ms for partition in updates for ms in latencies(updates[partition], sightings[partition])]
    batch_ms = progress.duration_ms["triggerExecution"] if progress else 0
    return {"latencies_ms": sorted(found), "last_batch_ms": batch_ms}


def latencies(updates: list[float], sightings: list[tuple[float, float]]) -> list[float]:
    """Milliseconds from each update to the first sighting of it or of a later one.

    Args:
        updates: when each was made.
        sightings: when somebody looked, and when the update had been made that was seen.

    Raises:
        ValueError: an update was never seen.
    """
    found, place = [], 0
    sightings = sorted(sightings)
    for made in sorted(updates):
        while place < len(sightings) and sightings[place][1] < made:
            place += 1
        if place == len(sightings):
            raise ValueError(f"the update of {made} was never seen")
        found.append((sightings[place][0] - made) * 1000)
    return found


def bootstrap(parameters: dict[str, Any]) -> dict[str, Any]:
    """A table of so many rows until it is there: in the container before the first batch, or by batches of the job."""
    world, rows, how = _world(parameters), parameters["rows"], parameters["how"]
    world.fill(parameters["order"])
    began = time.time()
    job = application(how).run(configuration(world.work, parameters["threads"]))
    if how == "spark":
        read = Progress(job)
        # The first batches are small, and the JVM compiles.
        first, before = read.until(RATES, rows // 10)
        last, after = read.until(RATES, rows)
        seconds = (last - first) * rows / (after - before)
    else:
        phases = Phases(job)
        seconds = phases.seconds("bootstrapping")
    ready = time.time() - began
    job.stop()
    return {"took_s": seconds, "rows_per_s": rows / seconds, "from_start_s": ready}


def puts(parameters: dict[str, Any]) -> dict[str, Any]:
    """The same rows read from the stream and put into RocksDB, `batch` at a time, by a process for each thread."""
    world = _world(parameters)
    world.fill(parameters["order"])
    began = time.monotonic()
    with ProcessPoolExecutor(parameters["threads"], multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_put, str(world.work), partition, parameters["batch"]) for partition in range(PARTITIONS)]
        rows = sum(job.result()[0] for job in jobs)
        # The processes start in this time, but do not put.
        seconds = max(job.result()[2] for job in jobs) - min(job.result()[1] for job in jobs)
    if rows != parameters["rows"]:
        raise AssertionError(f"{rows} rows were put")
    return {"took_s": seconds, "rows_per_s": rows / seconds, "from_start_s": time.monotonic() - began}


def _put(work: str, partition: int, batch: int) -> tuple[int, float, float]:
    """Put the rows of a partition into an engine. Returns how many, when it began and when it ended."""
    system = LocalSystem("local", f"{work}/streams")
    engine = RocksDbEngine(Path(work, f"engine-{partition}"), block_cache_bytes=8 << 20, write_buffer_bytes=32 << 20)
    (ends,) = (ends for number, ends in system.admin().offsets(RATES).items() if number == partition)
    began, rows = time.time(), 0
    wanted = OffsetRange(ps.SystemStreamPartition("local", RATES, partition), ends.oldest, ends.upcoming)
    for chunk in system.reader().read(wanted, _APPENDED):
        rows += len(chunk)
        for start in range(0, len(chunk), batch):
            engine.apply({key or b"": value for _, _, key, value, *_ in chunk[start : start + batch]})
    engine.close()
    return rows, began, time.time()


def swap(parameters: dict[str, Any]) -> dict[str, Any]:
    """Push a second version of a large table while messages come; the time between batches before, during and at it."""
    world, rows = _world(parameters), parameters["rows"]
    pushed = world.work / "pushed"
    _push(pushed, 1, world)
    config = {**configuration(world.work, parameters["threads"]), "tables.poll.ms": 500}
    job = application("pushed", pushed).run(config)
    with world.producing(UNREAD, min(rows, 100_000), messages_per_s=parameters["messages_per_s"]):
        await_job(job, lambda: job.progress is not None, "a batch")
        quiet = time.time() + parameters["warm_up_s"]
        await_job(job, lambda: time.time() > quiet + parameters["seconds"], "quiet batches")
        _push(pushed, 2, world)
        at = time.time()
        await_job(job, lambda: any(value["at"] == 2.0 for value in _newest(world)), "the second version")
        shown = time.time()
        await_job(job, lambda: time.time() > shown + 5, "batches after it")
    job.stop()
    batches: dict[int, tuple[float, float]] = {}
    for _, _, value in read_stream(world.system, OUTPUT):
        first = batches.get(value["batch"], (value["now"], value["at"]))
        batches[value["batch"]] = min(first, (value["now"], value["at"]))
    return {**gaps(sorted(batches.values()), quiet, at), "load_seconds": shown - at}


def gaps(firsts: list[tuple[float, float]], quiet: float, pushed: float) -> dict[str, Any]:
    """Milliseconds between the first messages of batches.

    Args:
        firsts: of each batch, when its first probe was processed, and the version that it saw.
        quiet: since when the job is warm.
        pushed: when the second version was complete.
    """
    between = [(later[0], (later[0] - sooner[0]) * 1000, later[1] != sooner[1]) for sooner, later in pairwise(firsts)]
    usual = [gap for at, gap, _ in between if quiet <= at < pushed]
    (swapped,) = (n for n, (_, _, is_swap) in enumerate(between) if is_swap)
    beside = [gap for at, gap, _ in between[:swapped] if at >= pushed]
    return {
        "usual_gap_ms": statistics.median(usual),
        "usual_most_ms": max(usual),
        "beside_gap_ms": statistics.median(beside) if beside else None,
        "beside_most_ms": max(beside, default=None),
        "swap_gap_ms": between[swapped][1],
        "after_gap_ms": between[swapped + 1][1],
    }


def _push(folder: Path, version: int, world: World, files: int = 8) -> None:
    """Write a version of the table: Parquet files in a subfolder, and `_SUCCESS`."""
    target = folder / f"version-{version}"
    target.mkdir(parents=True)
    keys = pa.array([key for keys in world.own for key in keys])
    table = pa.table({"key": keys, "at": np.full(len(keys), float(version)), "rate": np.full(len(keys), 1.25)})
    size = -(-len(keys) // files)
    for part in range(files):
        pq.write_table(table.slice(part * size, size), target / f"part-{part}.parquet")
    (target / "_SUCCESS").touch()


def _newest(world: World) -> Iterator[dict[str, Any]]:
    """The last output of each partition."""
    admin, reader = world.system.admin(), world.system.reader()
    try:
        for partition, ends in admin.offsets(OUTPUT).items():
            ssp = ps.SystemStreamPartition("local", OUTPUT, partition)
            for chunk in reader.read(OffsetRange(ssp, max(ends.oldest, ends.upcoming - 1), ends.upcoming), 10):
                yield from (orjson.loads(message[3] or b"null") for message in chunk)
    finally:
        reader.close()
        admin.close()


class Progress:
    """The number of messages of a stream that a job has read."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def until(self, stream: str, messages: int) -> tuple[float, int]:
        """Wait until it has read so many; when, and how many."""
        board, deadline = self._job._board, time.monotonic() + DEADLINE_S
        with board.changed:
            while True:
                last = board.last
                for source in last.sources if last is not None else ():
                    found = sum(source.end_offset.values())
                    if source.description.endswith(stream) and found >= messages:
                        return time.monotonic(), found
                if not self._job.is_active:
                    self._job.await_termination(0)
                    raise RuntimeError("the job ended by itself")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{messages} messages of {stream} were not read within {DEADLINE_S:.0f} s")
                board.changed.wait(0.5)


class Phases:
    """The time that a job spends in a phase."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def seconds(self, phase: str) -> float:
        """Wait until it has been in the phase, and has left it."""
        await_job(self._job, lambda: self._job.phase == phase, f"phase {phase}", pause_s=0.002)
        began = time.monotonic()
        await_job(self._job, lambda: self._job.phase != phase, f"the end of phase {phase}", pause_s=0.002)
        return time.monotonic() - began


def _updates_behind(job: Job) -> int:
    """The number of updates that the job has not read."""
    progress = job.progress
    sources = progress.sources if progress else ()
    return sum(source.lag for source in sources if source.description.endswith(RATES))


def _world(parameters: dict[str, Any]) -> World:
    return World(Path(parameters["work"]), parameters["rows"])
