"""A topic with many partitions: the cost of batches, commits and processes; and that no batch opens anything."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
import psutil

from benchmarks import harness
from benchmarks.figures import commits_of
from benchmarks.jobs import await_batch, await_job, counts, entry, stored
from benchmarks.kafka.load import create, flush, new_producer, produce
from benchmarks.kafka.sides import commits, configuration
from benchmarks.workload import STREAM
from penstock.driver.job import Job
from penstock.driver.show.progress import JobProgress
from penstock.testing.kafka_broker import KafkaBroker

JOB, TOPIC, OUTPUT = "kafka-count", STREAM, "counts"
KEYS = 20_000
FIRST_SAMPLE = 5
"""The batch after the backlog at which the first sample is taken."""
SAMPLES, GROWING = 5, ("threads", "open_files")
MOST_CHANGED, MOST_GROWTH = 4, 50
"""So many connections may come or go: a reader opens one client more when it first has to ask for offsets. So many more
threads or files a kind of process may have at the end, beside a file for each store, which comes with its first flush.
"""
_NOT_COUNTED = ("block-manager-", "Worker Monitor")
"""Threads of Spark's whose number follows the speed of the batches, as in the soak."""
_PAUSE_S = 0.01
Batch = dict[str, Any]


def key_of(number: int) -> str:
    """The key of the n-th message, which is in partition n modulo their number."""
    return f"key-{number * 7919 % KEYS}"


def send(given: Mapping[str, Any], numbers: Iterable[int]) -> None:
    """Produce these messages, and wait until the broker has them."""
    producer = new_producer(given["brokers"], **{"linger.ms": 5})
    for number in numbers:
        value = orjson.dumps({"key": key_of(number), "n": number})
        produce(producer, TOPIC, value, None, number % given["partitions"])
        producer.poll(0)
    flush(producer)


def few(given: Mapping[str, Any], work: Path, ended: threading.Event) -> Iterator[int]:
    """The messages after the backlog, each at its time, until the job has had enough."""
    while not (work / "backlog-read").exists() and not ended.wait(_PAUSE_S):
        pass
    began, sent = time.monotonic(), given["backlog"]
    while not (work / "enough").exists() and not ended.wait(_PAUSE_S):
        due = given["backlog"] + int((time.monotonic() - began) * given["rate"])
        yield from range(sent, due)
        sent = due
    if not ended.is_set():
        (work / "sent").write_text(str(sent))


def job(given: dict[str, Any]) -> dict[str, Any]:
    """Count all messages. Returns the batches after the end of the backlog, and samples of the processes."""
    work, backlog = Path(given["work"]), given["backlog"]
    port = int(given["brokers"].rpartition(":")[2])
    app = counts(JOB, [itemgetter("key")], [OUTPUT] if given["output_topic"] else [], "kafka")
    job = app.run(configuration(given))
    read = _follow(job, backlog, [])
    (work / "backlog-read").touch()
    batches, samples, started = list[Batch](), list[dict[str, Any]](), time.monotonic()
    for part in range(SAMPLES):
        share = part / (SAMPLES - 1)
        least = FIRST_SAMPLE + share * (given["batches"] - FIRST_SAMPLE)
        while len(batches) < least or time.monotonic() - started < share * given["seconds"]:
            read = _follow(job, read + 1, batches)
        samples.append(sample(port, batches[-1]["batch"]))
    (work / "enough").touch()
    await_job(job, lambda: (work / "sent").exists() and (work / "sent").read_text(), "all was sent")
    _follow(job, int((work / "sent").read_text()), [])
    job.stop()
    return {**commits(work / "jobs"), "partitions": given["partitions"], "batches": batches, "samples": samples}


def _follow(job: Job, rows: int, found: list[Batch]) -> int:
    """Keep each batch that ends until so many messages were read. Returns how many were read."""

    def has_read(last: JobProgress) -> bool:
        if not found or found[-1]["batch"] != last.batch_id:
            found.append(entry(last))
        return last.total_input_rows >= rows

    return await_batch(job, has_read).total_input_rows


def sample(port: int, batch: int) -> dict[str, Any]:
    """Kind of process -> its figures; and every connection to the broker, as process and local port."""
    session, kinds, connections = os.getsid(0), dict[str, Counter[str]](), list[tuple[int, int]]()
    for kind, process in harness.processes_by_kind(session):
        with suppress(psutil.Error, OSError):  # it has ended
            kind = "direct worker" if "penstock.direct" in process.cmdline() else kind
            own = [each.laddr.port for each in process.net_connections("tcp") if each.raddr and each.raddr.port == port]
            names = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/comm")]
            kinds.setdefault(kind, Counter()).update(
                processes=1, pss_bytes=int(process.memory_full_info().pss), open_files=process.num_fds(),
                threads=sum(not name.startswith(_NOT_COUNTED) for name in names), clients=names.count("rdk:main\n"),
                connections=len(own), cpu_ms=round(sum(process.cpu_times()[:2]) * 1000),
            )  # fmt: skip
            connections += [(process.pid, each) for each in own]
    return {"batch": batch, "kinds": kinds, "connections": sorted(connections)}


def figures(run: harness.SideRun) -> dict[str, Any]:
    """The figures of a run, from its batches and samples."""
    samples, batches = run.result["samples"], [each for each in run.result["batches"] if each["rows"]]
    took, saved = [each["duration_ms"]["triggerExecution"] for each in batches], commits_of(batches)
    first, last = samples[0]["kinds"], samples[-1]["kinds"]
    before, *later = [{tuple(each) for each in own["connections"]} for own in samples]
    passed = max(1, samples[-1]["batch"] - samples[0]["batch"])
    return {
        **run.result,
        "batch_ms": statistics.median(took),
        "batch_p99_ms": harness.percentile(took, 0.99),
        "cpu_ms": sum(own["cpu_ms"] - first.get(kind, own)["cpu_ms"] for kind, own in last.items()) / passed,
        "snapshot_ms": harness.median(saved, "snapshot") if saved else None,
        "commit_ms": harness.median(saved, "total") if saved else None,
        "pss_bytes": sum(each["pss_bytes"] for each in last.values()),
        "connections": len(samples[-1]["connections"]),
        "clients": sum(each["clients"] for each in last.values()),
        "changed": len({each for own in later for each in own ^ before}),
        "grown": {f"{what} of {kind}": last[kind][what] - first[kind][what] for kind, what in product(first, GROWING)},
    }


def verify(given: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """Compare the counts of the last checkpoint with a plain computation."""
    rows = stored(configuration({**given, "work": str(work)}), JOB, "counts-0")
    found = {key.decode(): orjson.loads(value) for _, key, value in rows}
    wanted = Counter(map(key_of, range(sent := int((work / "sent").read_text()))))
    return {"equal": found == wanted, "keys": len(found), "messages": sent}


def measure(bench: harness.Bench, partitions: int, way: str, output: str) -> None:
    """One run, with a separate broker."""
    options, work = bench.options, bench.work / "side"
    with KafkaBroker(heap_mb=1024, java_options=()) as broker:
        create(brokers := broker.bootstrap_servers, [TOPIC, OUTPUT] if output == "output" else [TOPIC], partitions)
        given = {
            **bench.parameters,
            "partitions": partitions, "brokers": brokers, "output_topic": output == "output", "output": OUTPUT,
            "config": {"job.latency.target.ms": options.target_ms} if way == "direct" else {},
        }  # fmt: skip
        send(given, range(options.backlog))
        ended = threading.Event()
        (sender := threading.Thread(target=lambda: send(given, few(given, work, ended)))).start()
        side = f"{partitions:,} partitions, {way}{', output' if output == 'output' else ''}"
        try:
            bench.run(side, "kafka_width:job", given, figures=figures, verify=partial(verify, given))
        finally:
            ended.set()
            sender.join()


@harness.benchmark(
    "kafka_width", __doc__, partitions=[2, 200, 1000], ways=["spark", "direct"], outputs=["none", "output"],
    backlog=500_000, rate=1000, seconds=30.0, batches=15, commit_s=3.0, threads=2, target_ms=50,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options = bench.options
    for sizes in product(options.partitions, options.ways, options.outputs):
        measure(bench, *sizes)
    sides = {side: runs[-1] for side, runs in bench.runs.items()}
    times = dict.fromkeys(("batch_ms", "batch_p99_ms", "cpu_ms", "snapshot_ms", "commit_ms"), ",.0f")
    harness.show("few messages a second: times", sides, **times, record_bytes=",d")
    harness.show("processes", sides, pss_bytes="MB", clients="d", connections="d", changed="d")
    changed = max(run["changed"] for run in sides.values())
    bench.target("connections that came or went", changed, at_most=MOST_CHANGED)
    grown = max(max(run["grown"].values()) - run["partitions"] for run in sides.values())
    bench.target("threads or files that a kind of process has more", grown, at_most=MOST_GROWTH)
    return bench.finish() or int(not all(bench.targets.values()))
