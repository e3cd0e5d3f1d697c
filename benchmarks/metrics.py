"""The cost of metrics in the keyed fold: the CPU time of every update and export, per message.

What is exported at an interval counts for the time that a batch takes.
"""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks import harness
from benchmarks.jobs import STORE, application
from benchmarks.workload import STREAM, Workload
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import PortionRead
from penstock.container.shared import ChangedRows, EpochMetrics, engine_metrics
from penstock.driver.show.exports import SHOW_SECONDS
from penstock.driver.show.metrics import JobMetrics, Replay
from penstock.graph.topology import plan_topology
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import Snapshot
from penstock.objects.forwarding import MeteredObjectStore
from penstock.objects.open import open_store
from penstock.runtime.messages.packet import origin_code
from penstock.runtime.meters import StoreMeter
from penstock.runtime.reports import Report
from penstock.runtime.stage.firings import AT_ONCE
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.wire.protocol import BEAT_SECONDS, BEATS_PER_METRICS, Beat, dump, load

TARGET_SHARE = 0.02
"""The largest share of the fold's CPU that metrics may take."""
TASKS = 2
_BACKEND_TIMERS = 3
_OBJECTS = 4
"""About how many objects a task's commit reads and writes."""


class Part(NamedTuple):
    """One place that counts."""

    name: str
    run: Callable[[], object]
    per_batch: float
    """Runs in a batch."""


class _Reads:
    """A store's own counts, as it keeps them."""

    gets = engine_gets = process_ns = 0

    def counted(self) -> None:
        self.gets += 1
        self.engine_gets += 1

    def plain(self) -> None:
        """The cost of the loop itself."""

    def piece(self) -> None:
        began = time.perf_counter_ns()
        self.process_ns += time.perf_counter_ns() - began


def parts(work: Path, messages: int, seconds: float) -> Iterator[Part]:
    """Every place, for batches of so many messages that take so many seconds."""
    reads = _Reads()
    yield Part("gets of the store, at most", reads.counted, messages)
    yield Part("(less the call itself)", reads.plain, -messages)
    yield Part("pieces of an attempt", reads.piece, 2 * messages / AT_ONCE)
    instance = MetricsRegistry("Partition 0", "user.")
    yield Part("ends of attempts", lambda: instance.take().rows(), 2 * TASKS)
    tasks = EpochMetrics()
    meters = [StoreMeter(tasks.of_task(task), STORE) for task in range(TASKS)]
    yield Part("ends of a store's batch", lambda: meters[0].wrote(1, 0, 1), TASKS)
    registry = tasks.of_task(0)
    timers = [registry.new_timer("backend.changelog-files", f"{n}-ns") for n in range(_BACKEND_TIMERS)]
    yield Part("a backend's timers", lambda: _time(timers[0]), TASKS * _BACKEND_TIMERS)
    with closing(open_store("memory://benchmark-metrics")) as objects:
        metered = MeteredObjectStore(objects, registry, "backend.changelog-files")
        objects.put_if_absent("some", b"")
        yield Part("objects of a backend", lambda: metered.get("some"), TASKS * _OBJECTS)
        yield Part("(less the store itself)", lambda: objects.get("some"), -TASKS * _OBJECTS)
    job = JobMetrics()
    yield Part("ends of batches, in the driver", _driver(job, messages), 1)
    engine = RocksDbEngine(work / "store", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    with closing(engine):
        beats = seconds / (BEAT_SECONDS * BEATS_PER_METRICS) * TASKS
        yield Part("beats of containers", _beats(tasks, registry, engine), beats)
    job.containers = tasks.snapshot
    with closing(open_store(str(work / "root"))) as root:
        board = MetricsBoard(root, JobPaths("keyed-fold", "1"))
        yield Part(
            "the object in the job's folder",
            lambda: board.put(ShownRun("run", time.time_ns() // 1_000_000, job.snapshot())),
            seconds / SHOW_SECONDS,
        )


def _time(timer: Any) -> None:
    with timer.time():
        pass


def _driver(job: JobMetrics, messages: int) -> Callable[[], None]:
    """The work of the run loop for metrics after a batch."""
    topology, replay, each = plan_topology(application().graph()), Replay(), messages // TASKS
    ssps = [SystemStreamPartition("local", STREAM, task) for task in range(TASKS)]
    reports = [
        Report(0, task, "token", {}, each, inputs={origin_code(0, task): PortionRead(each, each, 50 * each)})
        for task in range(TASKS)
    ] + [Report(1, task, "token", {}, each) for task in range(TASKS)]
    read = {TaskSsp(task, ssp): PortionRead(each, each, 50 * each) for task, ssp in enumerate(ssps)}
    positions = dict.fromkeys(read, each)
    parts_ms = {"addBatch": 600, "end": 20, "commitWait": 0, "walCommit": 1}

    def ended() -> None:
        job.ended(reports, topology)
        job.took(parts_ms, 620, "")
        job.lag({f"local.{STREAM}": 0})
        job.replayed(replay.ended(read, dict.fromkeys(ssps, each), positions, positions, 0.0, 1.0))

    return ended


def _beats(tasks: EpochMetrics, registry: MetricsRegistry, engine: RocksDbEngine) -> Callable[[], None]:
    """A container's metrics on their way to the driver: everything of a task has changed."""
    changed, known = ChangedRows(), Snapshot()
    gets = registry.new_counter(f"store.{STORE}", "gets")

    def beat() -> None:
        nonlocal known
        gets.inc()
        rows = changed.of(tasks.snapshot().merged(engine_metrics(0, STORE, engine)))
        found = load(Beat, dump(Beat("0-0", "token", 1, 0, 0, "", 0, {}, metrics=rows)))
        known = Snapshot({**known, **Snapshot.of_rows(found.metrics)})

    return beat


def measure(work: Path, messages: int, seconds: float, times: int, repeat: int) -> dict[str, dict[str, float]]:
    """Each part: its own CPU time, how often it is run, and what that is for a message."""
    found = {}
    for part in parts(work, messages, seconds):
        rounds = max(1, times if part.per_batch >= 1 or part.per_batch < 0 else times // 10)
        ns = min(timeit.repeat(part.run, timer=time.thread_time, repeat=repeat, number=rounds)) / rounds * 1e9
        found[part.name] = {"ns": ns, "per_batch": part.per_batch, "ns_per_message": ns * part.per_batch / messages}
    return found


def of_the_fold(path: Path) -> tuple[float, float]:
    """CPU nanoseconds of a message, and seconds of a batch, in the result of `keyed_fold`."""
    side: Mapping[str, Any] = orjson.loads(path.read_bytes())["sides"]["penstock"]
    batches = [batch for one in side["rounds"] for batch in one["batches"][2:]]
    seconds = statistics.median(batch["duration_ms"]["triggerExecution"] for batch in batches) / 1000
    return side["cpu_us_per_row"] * 1000, seconds


@harness.benchmark("metrics", __doc__, repeat=7, times=2000, fold=str(harness.RESULTS / "keyed_fold.json"))
def main(bench: harness.Bench) -> int:
    options = bench.options
    fold_ns, seconds = of_the_fold(Path(options.fold))
    found = measure(bench.work, Workload().batch_events, seconds, options.times, options.repeat)
    total = sum(row["ns_per_message"] for row in found.values())
    harness.show("metrics", found, ns=",.0f", per_batch=",.1f", ns_per_message=".2f")
    bench.target("metrics, share of the CPU of a message", total / fold_ns, at_most=TARGET_SHARE)
    return bench.finish(parts=found, total_ns_per_message=total, fold_ns_per_message=fold_ns)
