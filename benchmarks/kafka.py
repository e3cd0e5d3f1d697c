"""A keyed count from Kafka to Kafka, through Penstock, Spark and other Python engines, and the latency of an output.

The same events of one topic (JSON, two partitions, keys of Kafka) are counted by key, and each tenth count of a key is
sent to another topic. Every side is durable at an interval (`--commit-s`): Penstock's checkpoints, batches of Spark's
own aggregation (its Kafka source and sink, RocksDB, changelog checkpointing), the commits of Quix Streams and Faust
(RocksDB, changelog topics), Bytewax's snapshots. The other engines run a process for each partition. They are installed
by themselves; what cannot be installed is left out, in one line.

A side runs for `--seconds` from its first message on, or until it has counted everything. Rows per second are those
after the first `--warm-up-s`. Then, in a separate run, all its processes are killed with `kill -9` and started again at
once: `restart` is the time until its next message can be read. What was sent is compared with a plain computation.
Last, the latency of an output in Penstock, from `produce` to a reader of committed messages, for both guarantees.

    python -m benchmarks.kafka [--parts throughput restart latency] [--sides ...] [--events N] [--repeat N]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from benchmarks.common import (
    ROOT,
    SideRun,
    begin,
    command_line,
    console,
    finish,
    megabytes,
    positive_options,
    print_table,
    run_facts,
    run_side,
    session_processes,
)
from benchmarks.kafka_load import ENGINES, check_counts, create, install, publish, written
from benchmarks.workload import Workload
from penstock.testing.kafka_broker import KafkaBroker

PARTITIONS = 2
TOPIC = "events"
SIDES = ("penstock", *ENGINES)
TARGETS = {**dict.fromkeys(ENGINES, 2.0), "spark": 1.2}
"""What Penstock's rows per second divided by the side's should at least be."""
GUARANTEES = ("at-least-once", "exactly-once")
PARTS = ("throughput", "restart", "latency")
_LOOK_SECONDS = 0.02


class Bench:
    """One broker with the events, and the options."""

    def __init__(self, options: argparse.Namespace, brokers: str, work: Path) -> None:
        self.options = options
        self.brokers = brokers
        self.work = work
        self.workload = Workload(events=options.events, batches=10, keys=options.keys)
        self._outputs = 0

    def fill(self) -> None:
        """Write the events."""
        create(self.brokers, [TOPIC], PARTITIONS)
        began = time.monotonic()
        publish(self.brokers, TOPIC, PARTITIONS, self.workload)
        console.print(f"{self.workload.events:,} events written in {time.monotonic() - began:.0f} s")

    def throughput(self, side: str, commit_s: float) -> dict[str, Any]:
        """Run a side once, then check what it sent."""
        given = self._given(side, commit_s)
        run = run_side(f"benchmarks.side_kafka:{function(side)}", given, Path(given["work"]))
        verified = check_counts(self.brokers, given["output"], self.workload, every_one=side != "spark")
        return {**rates(run, self.options.warm_up_s), "verified": verified, **run_facts(run)}

    def restart(self, side: str) -> dict[str, Any]:
        """Kill a side in the middle of its work, and start it again."""
        given = {**self._given(side, 1.0), "seconds": 3600}
        output = given["output"]
        first = self._start(side, given)
        try:
            self._await(lambda: written(self.brokers, output) > 0, first)
            time.sleep(self.options.before_kill_s)
        finally:
            end(first)
        killed = time.monotonic()
        time.sleep(0.2)  # what the broker had taken before
        before = written(self.brokers, output)
        second = self._start(side, given)
        try:
            self._await(lambda: written(self.brokers, output) > before, second)
            return {"restart_ms": round((time.monotonic() - killed) * 1000)}
        finally:
            end(second)

    def latency(self, guarantee: str, rate: int) -> dict[str, Any]:
        """Produce at a rate, and read what comes out; milliseconds between the two."""
        topic = f"in-{guarantee}-{rate}"
        given = {**self._given("penstock", self.options.latency_commit_s), "topic": topic, "guarantee": guarantee}
        create(self.brokers, [topic], PARTITIONS)
        process = self._start("echo", given)
        try:
            return self._flow(topic, given["output"], rate, process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                console.print(f"the job with {guarantee} did not end")
            end(process)

    def _flow(self, topic: str, output: str, rate: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        seconds, warm_up = self.options.latency_s, self.options.latency_s / 3
        waits: list[tuple[float, float]] = []
        reader = Consumer(
            {"bootstrap.servers": self.brokers, "group.id": "latency", "isolation.level": "read_committed"}
        )
        reader.assign([TopicPartition(output, p, OFFSET_END) for p in range(PARTITIONS)])
        reader.consume(1, 0.5)
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 0})
        producer.produce(topic, orjson.dumps({"at": time.time()}), b"key-0")
        producer.flush(10)
        self._await(lambda: bool([m for m in reader.consume(10, 0.1) if m.error() is None]), process)
        stop = threading.Event()
        sent = threading.Thread(target=_produce, args=(producer, topic, rate, stop))
        began = time.time()
        sent.start()
        try:
            while time.time() < began + seconds:
                for message in reader.consume(5000, 0.05):
                    if message.error() is None:
                        produced = orjson.loads(message.value() or b"{}")["at"]
                        waits.append((produced, time.time() - produced))
        finally:
            stop.set()
            sent.join()
            reader.close()
        # What was produced in the last seconds may not have come yet.
        counted = sorted(wait * 1000 for at, wait in waits if began + warm_up <= at <= began + seconds * 0.8)
        expected = rate * (seconds * 0.8 - warm_up)
        return {
            "messages": len(counted),
            "rate": round(len(counted) / expected * rate),
            "p50_ms": round(counted[len(counted) // 2]) if counted else None,
            "p99_ms": round(counted[len(counted) * 99 // 100]) if counted else None,
        }

    def _given(self, side: str, commit_s: float) -> dict[str, Any]:
        self._outputs += 1
        output, work = f"out-{self._outputs}", self.work / f"{side}-{self._outputs}"
        work.mkdir(parents=True)
        create(self.brokers, [output], PARTITIONS)
        return {
            "work": str(work),
            "brokers": self.brokers,
            "topic": TOPIC,
            "output": output,
            "group": output,
            "partitions": PARTITIONS,
            "threads": PARTITIONS,
            "commit_s": commit_s,
            "engine": side,
            "events": self.workload.events,
            "seconds": self.options.seconds,
            "start_s": 120,
            "spark_rate": self.options.spark_rate,
        }

    def _start(self, side: str, given: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """A side that runs until it is ended."""
        work = Path(given["work"])
        (work / "parameters.json").write_bytes(orjson.dumps(given))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
        command = ["-m", "benchmarks.side", f"benchmarks.side_kafka:{function(side)}"]
        with (work / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *command, str(work / "parameters.json"), str(work / "result.json")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=work, start_new_session=True,
            )  # fmt: skip

    def _await(self, condition: Any, process: subprocess.Popen[bytes], timeout_s: float = 180) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a side ended, or wrote nothing in {timeout_s:.0f} s; its log is in {self.work}")
            time.sleep(_LOOK_SECONDS)


def _produce(producer: Producer, topic: str, rate: int, stop: threading.Event) -> None:
    """So many messages a second, a hundredth of them at once."""
    began, sent = time.monotonic(), 0
    while not stop.wait(0.005):
        due = int((time.monotonic() - began) * rate)
        for number in range(sent, due):
            producer.produce(topic, orjson.dumps({"at": time.time()}), f"key-{number % 10_000}")
        sent = due
        producer.poll(0)
    producer.flush(10)


def function(side: str) -> str:
    """What runs a side in `benchmarks.side_kafka`."""
    return "engine" if side in ENGINES else side


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a side with all its processes."""
    for each in session_processes(process.pid):
        each.send_signal(signal.SIGKILL)
    process.wait()


def rates(run: SideRun, warm_up_s: float) -> dict[str, Any]:
    """Rows per second and processor time of a row, between the end of the warm-up and the last sample."""
    samples = run.result["samples"]
    began = next(at for at, number in samples if number)
    counted = [(at, number) for at, number in samples if at >= began + warm_up_s] or samples
    (start, first), (stop, last) = counted[0], counted[-1]
    rows, spent = last - first, run.usage.cpu_between(start, stop)
    return {
        "rows": rows,
        "rows_per_second": round(rows / (stop - start)) if stop > start else 0,
        "cpu_us_per_row": round(sum(spent.values()) / rows * 1e6, 2) if rows else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for; 1 if what a side sent is wrong."""
    options = _options(arguments)
    facts = begin()
    sides = []
    for side in options.sides:
        left_out = install(ENGINES[side]) if side in ENGINES else None
        if left_out is None:
            sides.append(side)
        else:
            console.print(f"{side} is left out: {left_out}")
    found: dict[str, Any] = {"throughput": {}, "restart": {}, "latency": {}}
    runs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as work, KafkaBroker() as broker:
        bench = Bench(options, broker.bootstrap_servers, Path(work))
        if set(options.parts) - {"latency"}:
            bench.fill()
        for commit_s in options.commit_s if "throughput" in options.parts else ():
            for _ in range(options.repeat):
                for side in sides:
                    one = bench.throughput(side, commit_s)
                    runs.setdefault(f"{side}, {commit_s:g} s", []).append(one)
                    console.print(f"{side}, durable every {commit_s:g} s: {one['rows_per_second']:,} rows/s")
        for side in sides if "restart" in options.parts else ():
            found["restart"][side] = [bench.restart(side) for _ in range(options.repeat)]
        for guarantee in GUARANTEES if "latency" in options.parts else ():
            for rate in options.rates:
                found["latency"][f"{guarantee}, {rate}"] = bench.latency(guarantee, rate)
    found["throughput"] = runs
    report(options, sides, found)
    finish(options.json, "kafka", facts, runs, options=_plain(options), workload=asdict(bench.workload), **found)
    return int(not all(one["verified"]["equal"] for own in runs.values() for one in own))


def report(options: argparse.Namespace, sides: Sequence[str], found: Mapping[str, Any]) -> None:
    """The tables."""
    for commit_s in options.commit_s if found["throughput"] else ():
        own = {side: found["throughput"][f"{side}, {commit_s:g} s"] for side in sides}
        speed = {side: statistics.median(one["rows_per_second"] for one in each) for side, each in own.items()}
        print_table(
            f"keyed count, durable every {commit_s:g} s",
            ("side", "rows/s", "penstock is", "at least", "CPU µs/row", "peak PSS", "counts"),
            [
                (
                    side,
                    f"{speed[side]:,.0f}",
                    "" if side == "penstock" or "penstock" not in speed else f"{speed['penstock'] / speed[side]:.2f} x",
                    "" if side == "penstock" else f"{TARGETS[side]:.1f} x",
                    f"{statistics.median(one['cpu_us_per_row'] or 0 for one in each):.1f}",
                    megabytes(max(one["peak"]["total_bytes"] for one in each)),
                    "verified" if all(one["verified"]["equal"] for one in each) else "WRONG",
                )
                for side, each in own.items()
            ],
        )
    if found["restart"]:
        print_table(
            "from kill -9 of all processes to the next output",
            ("side", "ms"),
            [(side, ", ".join(f"{one['restart_ms']:,}" for one in each)) for side, each in found["restart"].items()],
        )
    if found["latency"]:
        print_table(
            f"latency of an output in Penstock, task.commit.ms = {options.latency_commit_s * 1000:.0f}",
            ("guarantee and messages a second", "came", "p50 ms", "p99 ms"),
            [(name, f"{e['rate']:,}", str(e["p50_ms"]), str(e["p99_ms"])) for name, e in found["latency"].items()],
        )


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name != "json"}


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line("kafka", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--events", type=int, default=6_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=30, help="how long a side counts at most")
    parser.add_argument("--warm-up-s", type=int, default=8, help="how much of that does not count")
    parser.add_argument("--commit-s", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument(
        "--spark-rate", type=int, default=180_000, help="rows a second that Spark's batches are made for"
    )
    parser.add_argument("--before-kill-s", type=int, default=8)
    parser.add_argument("--rates", type=int, nargs="+", default=[1000, 20_000])
    parser.add_argument("--latency-s", type=int, default=20)
    parser.add_argument("--latency-commit-s", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=1)
    return positive_options(parser, given, "events", "keys", "seconds", "repeat", "rates")


if __name__ == "__main__":
    sys.exit(main())
