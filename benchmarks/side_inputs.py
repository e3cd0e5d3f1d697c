"""Side inputs and pushed tables: what they cost the job, how fast they are, and the same through Spark."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

import penstock as ps
from benchmarks import harness
from benchmarks.jobs import append, await_batch, await_job, create_stream, ends_of, places, read_stream
from benchmarks.workload import write_file
from penstock.driver.job import Job
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.system.base import OffsetRange, RawRecord
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partitions_of

PUTS = {"puts": 1, "batches of puts": 500}
"""Rows that are put at a time."""
BOOTSTRAPS = ("container", "spark", *PUTS, "container, random", "puts, random", "batches of puts, random")
SIDES = {
    "throughput": ("idle", "container", "spark"),
    "latency": ("container", "spark"),
    "bootstrap": BOOTSTRAPS,
    "swap": ("swap",),
}
"""By part: who fills the table, and the order of its keys if it is not ascending."""
LOOKED_UP = 100_000
"""Rows of the table whose messages and updates are counted."""
EVENTS, RATES, UNREAD, OUTPUT = "events", "rates", "unread", "probes"
PARTITIONS = 4
TICK_S = 0.05
_APPENDED = 10_000


def judge(bench: harness.Bench, part: str, runs: Mapping[str, Sequence[harness.Run]]) -> dict[str, float]:
    """The figures of a part beside its targets."""
    found: dict[str, float] = {}
    if part == "throughput":
        found = harness.against(runs, "messages_per_s", "idle")
        bench.target("throughput, container / idle", found["container"], at_least=0.9)
    elif part == "latency":
        for side, own in runs.items():
            values = [ms for run in own for ms in run["latencies_ms"]]
            found |= {f"{side}, p{share:.0%}": harness.percentile(values, share) for share in (0.5, 0.99)}
            bench.target(f"latency, {side}, p99 ms", harness.percentile(values, 0.99), at_most=2000)
    elif part == "bootstrap":
        for order in ("", ", random"):
            alike = {side: each for side, each in runs.items() if side.endswith(", random") == bool(order)}
            for side, ratio in harness.against(alike, "rows_per_s", f"container{order}").items():
                found[f"container / {side}"] = round(1 / ratio, 2)
            bench.target(f"bootstrap, container / puts{order}", found[f"container / puts{order}"], at_least=5)
    else:
        # The batch that sees the new version first may begin late, or take long.
        gaps = [{"ms": max(run["swap_gap_ms"], run["after_gap_ms"]) - run["usual_gap_ms"]} for run in runs["swap"]]
        found["ms more than usual"] = harness.median(gaps, "ms")
        bench.target("swap, ms more than usual", found["ms more than usual"], at_most=100)
    return found


class Rated(ps.StreamTask):
    """Looks up the rate of each message, and sends what probes found on."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.rates = context.store(RATES)
        self.sum = 0.0

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        rate = self.rates.get(envelope.key)
        event = envelope.value
        if rate is not None:
            self.sum += rate["rate"] * event["amount"]
        if event["probe"]:
            found = {"batch": self.context.batch_time_ms, "now": time.time(), "at": rate and rate["at"]}
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


class World:
    def __init__(self, parameters: dict[str, Any]) -> None:
        self.work, self.rows, self.order = Path(parameters["work"]), parameters["rows"], parameters["order"]
        for stream in (EVENTS, RATES, UNREAD):
            self.system = create_stream(self.work / "streams", stream, PARTITIONS)
        self.own = keys_by_partition(self.rows)
        self.config = {
            **places(self.work, parameters["threads"]),
            "job.batch.interval.ms": 10,
            "job.intermediate.stream.partitions": PARTITIONS,
            "task.commit.ms": 10_000,
        }

    def fill(self) -> None:
        """A row of the table for each key, the keys of a partition in order or, if that is `random`, in none."""
        value, chance = update(time.time()), np.random.default_rng(11)
        for keys in self.own if self.order == "random" else ():
            chance.shuffle(keys)
        append(self.system, RATES, ([(0, key.encode(), value) for key in keys] for keys in self.own))

    def messages(self, count: int) -> None:
        chance = np.random.default_rng(3)
        picked = ([keys[n] for n in chance.integers(0, len(keys), count // PARTITIONS).tolist()] for keys in self.own)
        append(self.system, EVENTS, ([(0, None, message(key)) for key in keys] for keys in picked))

    @contextmanager
    def producing(self, table: str, *, updates_per_s: int = 0, messages_per_s: int = 0) -> Iterator[None]:
        given = (str(self.work / "streams"), table, min(self.rows, LOOKED_UP), updates_per_s, messages_per_s)
        producer = multiprocessing.get_context("spawn").Process(target=produce, args=given)
        producer.start()
        try:
            yield
            if not producer.is_alive():
                raise RuntimeError("the producer ended by itself")
        finally:
            producer.kill()
            producer.join()


def keys_by_partition(keys: int) -> list[list[str]]:
    """The keys of the table, by the partition of its stream."""
    names = [f"key-{number:08d}" for number in range(keys)]
    where = partitions_of(pa.array(names), PARTITIONS)
    return [[names[n] for n in np.flatnonzero(where == partition).tolist()] for partition in range(PARTITIONS)]


def update(at: float) -> bytes:
    """A row of the table, with something to carry."""
    return orjson.dumps({"at": at, "rate": 1.25, "padding": "x" * 60})


def message(key: str, *, probe: bool = False) -> bytes:
    """One that asks for a row of the table."""
    return orjson.dumps({"key": key, "amount": 1.5, "probe": probe})


def produce(streams: str, table: str, keys: int, updates_per_s: int, messages_per_s: int) -> None:
    """Append updates of a table, and messages, at a steady pace without an end."""
    writer = LocalSystem("local", streams).writer(None)
    chance = np.random.default_rng(7)
    own = keys_by_partition(keys)

    def some(partition: int, per_second: int) -> list[str]:
        """The first key of the partition, by which latencies are measured, and others."""
        share = max(1, round(per_second * TICK_S / PARTITIONS))
        picked = chance.integers(0, len(own[partition]), share)
        return [own[partition][n] for n in [0, *picked[1:].tolist()]]

    next_tick = time.time()
    while True:
        value = update(time.time())
        for partition in range(PARTITIONS):
            if updates_per_s:
                rows: list[RawRecord] = [(0, key.encode(), value) for key in some(partition, updates_per_s)]
                writer.append(ps.SystemStreamPartition("local", table, partition), rows)
            if messages_per_s:
                first = own[partition][0]
                names = some(partition, messages_per_s)
                messages: list[RawRecord] = [(0, None, message(name, probe=name == first)) for name in names]
                writer.append(ps.SystemStreamPartition("local", EVENTS, partition), messages)
        next_tick = max(next_tick + TICK_S, time.time() - 1)
        time.sleep(max(0.0, next_tick - time.time()))


def throughput(parameters: dict[str, Any]) -> dict[str, Any]:
    """Messages per second between a quarter and the whole of the messages, while the table changes."""
    world, messages, how = World(parameters), parameters["messages"], parameters["how"]
    world.fill()
    world.messages(messages)
    with world.producing(UNREAD if how == "idle" else RATES, updates_per_s=parameters["updates"]):
        # No batch is all that is measured.
        job = application(how).run({**world.config, "job.batch.max.messages": max(1, messages // 8)})
        began, first = read_until(job, EVENTS, messages // 4)
        ended, last = read_until(job, EVENTS, messages)
        job.stop()
    return {"messages_per_s": (last - first) / (ended - began)}


def latency(parameters: dict[str, Any]) -> dict[str, Any]:
    """From an update of a row to the first message that finds it, while messages come at a moderate pace."""
    world = World(parameters)
    world.fill()
    job = application(parameters["how"]).run(world.config)
    paces = {"updates_per_s": parameters["updates"], "messages_per_s": parameters["messages_per_s"]}
    with world.producing(RATES, **paces):
        await_job(job, lambda: job.progress is not None, "a batch")
        began = time.time() + parameters["warm_up"]
        ended = began + parameters["seconds"]
        await_job(job, lambda: time.time() > ended + 3, "the end of the measurement")
    job.stop()
    updates, sightings = defaultdict[bytes, list[float]](list), defaultdict[bytes, list[tuple[float, float]]](list)
    for _, key, value in read_stream(world.system, RATES):
        if began <= value["at"] < ended:
            updates[key].append(value["at"])
    for _, key, value in read_stream(world.system, OUTPUT):
        if value["at"] is not None:
            sightings[key].append((value["now"], value["at"]))
    probed = (keys[0].encode() for keys in world.own)
    return {"latencies_ms": sorted(ms for key in probed for ms in latencies(updates[key], sightings[key]))}


def latencies(updates: list[float], sightings: list[tuple[float, float]]) -> list[float]:
    """Milliseconds from the time of each update to the first sighting of it or of a later one. A sighting is the time
    at which somebody looked, and that of the update that was seen."""
    made = np.sort(updates)
    looked, seen = np.array(sorted(sightings)).reshape(-1, 2).T
    first = np.searchsorted(np.maximum.accumulate(seen), made)
    if len(made) and first[-1] == len(looked):
        raise ValueError(f"the update of {made[-1]} was never seen")
    found: list[float] = ((looked[first] - made) * 1000).tolist()
    return found


def bootstrap(parameters: dict[str, Any]) -> dict[str, Any]:
    """A table of so many rows until it is there: in the container before the first batch, or by batches of the job."""
    world, rows, how = World(parameters), parameters["rows"], parameters["how"]
    world.fill()
    job = application(how).run(world.config)
    if how == "spark":
        # The first batches are small, and the JVM compiles.
        first, before = read_until(job, RATES, rows // 10)
        last, after = read_until(job, RATES, rows)
        seconds = (last - first) * rows / (after - before)
    else:
        seconds = seconds_in(job, "bootstrapping")
    job.stop()
    return {"rows_per_s": rows / seconds}


def puts(parameters: dict[str, Any]) -> dict[str, Any]:
    """The same rows read from the stream and put into RocksDB, one or more at a time, by a process for each thread."""
    world, batch = World(parameters), PUTS[parameters["how"]]
    world.fill()
    with ProcessPoolExecutor(parameters["threads"], multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_put, str(world.work), partition, batch) for partition in range(PARTITIONS)]
        rows = sum(job.result()[0] for job in jobs)
        # The processes start in this time, but do not put.
        seconds = max(job.result()[2] for job in jobs) - min(job.result()[1] for job in jobs)
    if rows != parameters["rows"]:
        raise AssertionError(f"{rows} rows were put")
    return {"rows_per_s": rows / seconds}


def _put(work: str, partition: int, batch: int) -> tuple[int, float, float]:
    """Put the rows of a partition into an engine. Returns how many, when it began and when it ended."""
    system = LocalSystem("local", f"{work}/streams")
    engine = RocksDbEngine(Path(work, f"engine-{partition}"), block_cache_bytes=8 << 20, write_buffer_bytes=32 << 20)
    began, rows = time.time(), 0
    wanted = OffsetRange(ps.SystemStreamPartition("local", RATES, partition), 0, ends_of(system, RATES)[partition])
    for chunk in system.reader().read(wanted, _APPENDED):
        rows += len(chunk)
        for start in range(0, len(chunk), batch):
            engine.apply({key or b"": value for _, _, key, value, *_ in chunk[start : start + batch]})
    engine.close()
    return rows, began, time.time()


def swap(parameters: dict[str, Any]) -> dict[str, Any]:
    """Push a second version of a large table while messages come; the time between batches before, during and at it."""
    world = World(parameters)
    pushed = world.work / "pushed"
    _push(pushed, 1, world)
    job = application("pushed", pushed).run({**world.config, "tables.poll.ms": 500})
    with world.producing(UNREAD, messages_per_s=parameters["messages_per_s"]):
        await_job(job, lambda: job.progress is not None, "a batch")
        quiet = time.time() + parameters["warm_up"]
        await_job(job, lambda: time.time() > quiet + parameters["seconds"], "quiet batches")
        _push(pushed, 2, world)
        at = time.time()
        ends = ends_of(world.system, OUTPUT)
        await_job(job, lambda: any(v["at"] == 2 for *_, v in read_stream(world.system, OUTPUT, ends)), "version 2")
        shown = time.time()
        await_job(job, lambda: time.time() > shown + 5, "batches after it")
    job.stop()
    batches: dict[int, tuple[float, float]] = {}
    for _, _, value in read_stream(world.system, OUTPUT):
        first = batches.get(value["batch"], (value["now"], value["at"]))
        batches[value["batch"]] = min(first, (value["now"], value["at"]))
    return gaps(sorted(batches.values()), quiet, at)


def gaps(firsts: list[tuple[float, float]], quiet: float, pushed: float) -> dict[str, Any]:
    """Milliseconds between the first messages of batches. Of each, `firsts` has the time and the version that it saw.
    The job was warm at `quiet`, and the second version complete at `pushed`."""
    between = [(later[0], (later[0] - sooner[0]) * 1000, later[1] != sooner[1]) for sooner, later in pairwise(firsts)]
    usual = [gap for at, gap, _ in between if quiet <= at < pushed]
    (swapped,) = (n for n, (_, _, is_swap) in enumerate(between) if is_swap)
    return {
        "usual_gap_ms": statistics.median(usual),
        "swap_gap_ms": between[swapped][1],
        "after_gap_ms": between[swapped + 1][1],
    }


def _push(folder: Path, version: int, world: World, files: int = 8) -> None:
    """Write a version of the table: Parquet files in a subfolder, and `_SUCCESS`."""
    target = folder / f"version-{version}"
    keys = pa.array([key for keys in world.own for key in keys])
    table = pa.table({"key": keys, "at": np.full(len(keys), float(version)), "rate": np.full(len(keys), 1.25)})
    size = -(-len(keys) // files)
    for part in range(files):
        write_file(target, part, table.slice(part * size, size))
    (target / "_SUCCESS").touch()


def read_until(job: Job, stream: str, messages: int) -> tuple[float, int]:
    """Wait until the job has read so many messages of a stream; when, and how many."""

    def read(batch: Any) -> int:
        return sum(sum(own.end_offset.values()) for own in batch.sources if own.description.endswith(stream))

    found = read(await_batch(job, lambda batch: read(batch) >= messages))
    return time.monotonic(), found


def seconds_in(job: Job, phase: str) -> float:
    """Wait until the job has been in the phase, and has left it; how long it was in it."""
    await_job(job, lambda: job.phase == phase, f"phase {phase}", pause_s=0.002)
    began = time.monotonic()
    await_job(job, lambda: job.phase != phase, f"the end of phase {phase}", pause_s=0.002)
    return time.monotonic() - began


@harness.benchmark(
    "side_inputs", __doc__, parts=list(SIDES), rows=5_000_000, updates=20_000, messages=3_000_000, messages_per_s=2_000,
    seconds=30, warm_up=10, repeat=3, threads=2,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options = bench.options
    figures = {}
    for part in options.parts:
        rows = options.rows if part in ("bootstrap", "swap") else min(options.rows, LOOKED_UP)
        for side in bench.turns(SIDES[part], options.repeat):
            how, _, order = side.partition(", ")
            parameters = {"rows": rows, "how": how, "order": order}
            bench.run(f"{part}: {side}", f"side_inputs:{'puts' if how in PUTS else part}", parameters)
        figures[part] = judge(bench, part, {side: bench.runs[f"{part}: {side}"] for side in SIDES[part]})
    shown = ("messages_per_s", "rows_per_s", "usual_gap_ms", "swap_gap_ms")
    sides = bench.medians(*shown)
    harness.show("medians of the rounds", sides, **dict.fromkeys(shown, ",.0f"), peak_bytes="MB")
    return bench.finish(sides, figures=figures)
