"""The soak: one job runs many small batches, and nothing that its processes hold may grow."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
import psutil
from pyspark import SparkContext

from benchmarks import harness, jobs
from benchmarks.harness import files_below
from benchmarks.jobs import append, await_batch, counts, create_stream
from benchmarks.workload import STREAM

ALLOWED: Mapping[str, float] = {
    "memory_bytes": 16 << 20,
    "threads": 20,
    "open_files": 20,
    "temporary": 10,
    "spark": 200,
    "job_root": 60,
    "local_state": 30,
}
"""The largest growth of each figure. A batch leaves a dozen of files of Spark's, which go when the JVM has collected
its garbage; files of the job root come and go with snapshots and retained checkpoints."""

ALLOWED_PER_BATCH: Mapping[str, float] = {"log_bytes": 100}
"""For figures that may grow, slowly."""
PARTITIONS = 2
KEYS = 200
GROUPS = 20
_STEP_TIMEOUT_S = 600.0
_MOST_COLLECTIONS = 10
_FILES_OF_A_BATCH = 20
_NOT_COUNTED = ("block-manager-ask-thread-pool-", "block-manager-storage-async-thread-pool-", "Worker Monitor for ")
"""Threads of Spark's whose number says how fast the last batches were. The two pools take another thread for each task
until they have 100, and keep an idle one for 60 s. Each Python task has a monitor, which ends up to two seconds after
it; a task that does not end also keeps a thread that is counted."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a figure of a kind of process or folder while `batches` batches ran."""

    kind: str
    figure: str
    early: float
    late: float
    batches: float

    @property
    def allowed(self) -> float:
        return ALLOWED.get(self.figure, ALLOWED_PER_BATCH.get(self.figure, 0.0) * self.batches)

    @property
    def too_much(self) -> bool:
        return self.late - self.early > self.allowed

    def __str__(self) -> str:
        return (
            f"{self.figure} of {self.kind}: {_figure(self.figure, self.early)} -> {_figure(self.figure, self.late)} in "
            f"{self.batches:.0f} batches"
        )


def growth(samples: Sequence[Mapping[str, Any]]) -> list[Growth]:
    """The growth of all figures, from the earlier half of the samples to the later one. The first sample is warm-up."""
    counted = samples[1:]
    half = len(counted) // 2
    if half < 1:
        raise ValueError(f"{len(samples)} samples do not show growth, at least 3 do")
    early, late = counted[:half], counted[-half:]
    first, last = (statistics.median(sample["batches"] for sample in each) for each in (early, late))
    return [
        Growth(kind, figure, _median(early, kind, figure), _median(late, kind, figure), last - first)
        for kind, figures in samples[-1]["figures"].items()
        for figure in figures
    ]


def _median(samples: Sequence[Mapping[str, Any]], kind: str, figure: str) -> float:
    return float(statistics.median(sample["figures"].get(kind, {}).get(figure, 0) for sample in samples))


def _figure(name: str, value: float) -> str:
    return f"{value / 2**20:,.0f} MB" if name == "memory_bytes" else f"{value:,.0f}"


def configuration(parameters: dict[str, Any]) -> dict[str, Any]:
    """With a latency, batches go to the containers directly."""
    return {
        **jobs.configuration({**parameters, "threads": PARTITIONS}),
        "job.batch.interval.ms": 20,
        "job.latency.target.ms": parameters.get("latency_ms") or None,
        "task.commit.ms": parameters.get("commit_ms", 1),
        "task.checkpoint.retained": "10",  # not one of each hour as well: the job root would grow when the hour strikes
        "spark.driver.memory": "512m",
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
    system = create_stream(work / "streams", STREAM, PARTITIONS)
    padding = "x" * parameters["message_bytes"]
    events = ({"key": f"k{n % KEYS}", "group": f"g{n % GROUPS}", "padding": padding} for n in range(messages))
    records = [(0, None, orjson.dumps(event)) for event in events]
    of_a_step = [records[partition::PARTITIONS] * parameters["step_batches"] for partition in range(PARTITIONS)]
    job = counts("soak", (itemgetter("key"), itemgetter("group")), ["counts"]).run(configuration(parameters))
    samples, started = [], time.monotonic()
    for step in range(1, parameters["steps"] + 1):
        append(system, STREAM, of_a_step)
        rows = step * parameters["step_batches"] * messages
        last = await_batch(job, lambda batch: batch.total_input_rows >= rows, _STEP_TIMEOUT_S)  # noqa: B023
        seconds = round(time.monotonic() - started, 1)
        samples.append({"batches": last.batch_id, "way": last.way, "seconds": seconds, "figures": sample(work)})
    job.stop()
    return {"samples": samples}


def sample(work: Path) -> dict[str, dict[str, float]]:
    """Kind of process or folder -> figure -> value, after the garbage of driver and JVM has been collected."""
    figures = dict[str, Any]()
    gc.collect()
    jvm: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
    # What a collection finds dead, Spark's cleaner lets go of for the next one, and deletes its files.
    for collections in range(1, _MOST_COLLECTIONS + 1):
        jvm.java.lang.System.gc()
        time.sleep(0.2)
        if collections >= 2 and len(files_below(work / "spark")) <= _FILES_OF_A_BATCH:
            break
    for kind, process in harness.processes_by_kind(os.getsid(0)):
        with suppress(psutil.Error, OSError):  # it has ended
            memory = _memory_bytes(process.pid)
            own = {"memory_bytes": memory, "threads": process.num_threads(), "open_files": process.num_fds()}
            figures.setdefault(kind, Counter()).update(own)
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet()
    figures["jvm"]["threads"] = sum(not thread.getName().startswith(_NOT_COUNTED) for thread in threads)
    # What the JVM has taken from the system depends on when it last collected.
    used = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    figures["jvm"]["memory_bytes"] = used.getHeapMemoryUsage().getUsed() + used.getNonHeapMemoryUsage().getUsed()
    folders = {"temporary": "tmp", "spark": "spark", "job_root": "jobs", "local_state": "state"}
    logs = [path for path in files_below(work) if path.suffix in (".log", ".txt")]
    return {
        **figures,
        "files": {
            **{name: len(files_below(work / folder)) for name, folder in folders.items()},
            "log_bytes": sum(path.stat().st_size for path in logs),
        },
    }


def _memory_bytes(pid: int) -> int:
    """The memory that the process has written, with its share of the pages that it has from its parent.

    Pages of files are left out: those of a library become the process's own when another program on the machine that
    uses the library ends.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")


@harness.benchmark(
    "soak", __doc__, steps=40, step_batches=100, batch_messages=200, message_bytes=4000, latency_ms=0, commit_ms=1
)
def main(bench: harness.Bench) -> int:
    found = growth(bench.run("soak", "soak:soak", {}, timeout_s=86_400)["samples"])
    for each in found:
        harness.console.print(f"{each}{' GREW' if each.too_much else ''}")
    grown = [{**asdict(each), "allowed": each.allowed, "too_much": each.too_much} for each in found]
    return bench.finish(growth=grown) or int(any(each.too_much for each in found))
