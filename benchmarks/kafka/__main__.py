"""A keyed count from Kafka to Kafka, through Penstock, Spark and other Python engines, and what exactly-once costs."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

from benchmarks import harness
from benchmarks.engines import installed
from benchmarks.figures import judge
from benchmarks.harness import side_process
from benchmarks.kafka.load import ENGINES, EVERY, Flow, check_counts, committed, create, new_reader, publish
from benchmarks.workload import Workload, key_name
from penstock.testing.kafka_broker import KafkaBroker

PARTITIONS = 2
TOPIC = "events"
SIDES = ("penstock", "columns", *ENGINES)
NOT_IN = {"throughput": {"spark-real-time"}, "restart": {"spark-real-time", "columns"}, "latency": {"columns"}}
"""By part, the sides that it does not have."""
SENDS_THE_LAST = {"spark", "columns"}
"""The sides that send on one count of a key in a batch at most."""
AT_EACH_BATCH = {"spark", "spark-real-time"}
"""The sides whose echo becomes durable with each batch."""
GUARANTEES = ("at-least-once", "exactly-once")
PARTS = ("throughput", "restart", "latency")
_LONG_RESTART_MS = 25_000
"""A side that takes longer is restarted once: it waits for a fixed timeout of its consumer group."""
_FEW = Workload(events=100 * EVERY, batches=10, keys=10)
"""Messages of which each side sends some on."""
_LOOK_SECONDS = 0.02
_FIRST_S, _STOP_S = 180.0, 90.0
SHOWN = {
    "throughput": {"rows_per_second": ",.0f", "cpu_us_per_row": ".1f", "peak_bytes": "MB"},
    "restart": {"restart_ms": ",.0f"},
    "latency": {
        **dict.fromkeys(("rate", "p50_ms", "p99_ms", "record_bytes"), ",.0f"),
        "cores": ".2f",
        "outbox_bytes_per_message": ".1f",
    },
}
"""By part, the figures of its table."""
TARGETS = (
    ("penstock", "spark", 1.2),
    ("penstock", "quix", 2.0),
    ("penstock", "bytewax", 2.0),
    ("penstock", "faust", 2.0),
    ("columns", "spark", 2.0),
)
"""A side, another one, and the ratio of their rows per second, at least."""


class World:
    """One broker with the events, for a part."""

    def __init__(self, bench: harness.Bench, part: str, brokers: str) -> None:
        self.bench = bench
        self.part = part
        self.options = options = bench.options
        self.brokers = brokers
        self.workload = Workload(events=options.events, batches=10, keys=options.keys)
        self._totals: dict[str, int] = {}
        self._outputs = 0

    def fill(self) -> None:
        create(self.brokers, [TOPIC], PARTITIONS)
        began = time.monotonic()
        publish(self.brokers, TOPIC, PARTITIONS, self.workload)
        self._totals = {key_name(n): count for n, count in enumerate(self.workload.totals()[0].tolist()) if count}
        harness.console.print(f"{self.workload.events:,} events written in {time.monotonic() - began:.0f} s")

    def run(self, sides: Sequence[str]) -> None:
        """All runs of the part."""
        {"throughput": self._throughput, "restart": self._restart, "latency": self._latency}[self.part](sides)

    def _throughput(self, sides: Sequence[str]) -> None:
        """Run each side, then check what it sent."""
        for commit_s, side in self.bench.turns(product(self.options.commit_s, sides), self.options.repeat):
            seconds = max(self.options.seconds, round(commit_s))  # so that each has a commit in it
            given = {**self._given(side, commit_s), "seconds": seconds}
            sent, every_one = (self.brokers, given["output"], self._totals), side not in SENDS_THE_LAST
            self.bench.run(
                f"{side}, {commit_s:g} s", given["target"], given, figures=partial(rates, self.options.warm_up_s),
                verify=lambda _: check_counts(*sent, every_one=every_one),  # noqa: B023
            )  # fmt: skip

    def _restart(self, sides: Sequence[str]) -> None:
        for side in self.bench.turns(sides, self.options.repeat):
            if not any(one["restart_ms"] > _LONG_RESTART_MS for one in self.bench.runs.get(side, ())):
                self._keep(side, self.restart, side)

    def _latency(self, sides: Sequence[str]) -> None:
        intervals = self.options.latency_commit_s
        for commit_s, rate in [*product(intervals, self.options.rates)] * self.options.latency_repeat:
            for guarantee, way in product(GUARANTEES, self.options.ways) if "penstock" in sides else ():
                name = f"{guarantee}, {rate:,}, {commit_s:g} s, {way}"
                self._keep(name, self.latency, "penstock", rate, commit_s, guarantee, way)
            for side in (side for side in sides if side != "penstock"):
                if side not in AT_EACH_BATCH:
                    self._keep(f"{side}, {rate:,}, {commit_s:g} s", self.latency, side, rate, commit_s)
                elif commit_s == intervals[0]:
                    self._keep(f"{side}, {rate:,}", self.latency, side, rate, commit_s)

    def _keep(self, name: str, measure: Callable[..., dict[str, Any]], *given: Any) -> None:
        with harness.console.status(f"{self.part}: {name}"):
            self.bench.runs.setdefault(name, []).append(measure(*given))

    def restart(self, side: str) -> dict[str, Any]:
        """Kill a side in the middle of its work, and start it again."""
        given = {**self._given(side, 1.0), "seconds": 3600}
        target, work = given["target"], Path(given["work"])
        with closing(new_reader(self.brokers)) as reader:
            messages = partial(committed, reader, given["output"], PARTITIONS)
            with side_process(f"benchmarks.{target}", given, work) as process:
                self._await(lambda: messages() > 0, process)
                time.sleep(self.options.before_kill_s)
            killed = time.monotonic()
            with side_process(f"benchmarks.{target}", given, work) as process:
                time.sleep(0.2)  # what the broker had taken before; no side starts within this time
                before = messages()
                publish(self.brokers, TOPIC, PARTITIONS, _FEW)  # the first one may have counted all others
                self._await(lambda: messages() > before, process)
                return {"restart_ms": round((time.monotonic() - killed) * 1000), "messages_before": before}

    def latency(
        self, side: str, rate: int, commit_s: float, guarantee: str = "at-least-once", way: str = "spark"
    ) -> dict[str, Any]:
        """Produce at a rate, and read what comes out; of Penstock, also what it has written for this.

        `way`: `spark` for Spark jobs only, `direct`. The other engines send at least once.
        """
        given = {**self._given(side, commit_s), "echo": True, "seconds": 3600, "guarantee": guarantee}
        given["config"] = {"job.latency.target.ms": self.options.target_ms} if way == "direct" else {}
        given["topic"] = topic = given["output"].replace("out", "in")
        create(self.brokers, [topic], PARTITIONS)
        target, work = "kafka.sides:echo" if side == "penstock" else given["target"], Path(given["work"])
        with (
            side_process(f"benchmarks.{target}", given, work) as process,
            closing(Flow(self.brokers, topic, given["output"], PARTITIONS)) as flow,
        ):
            flow.begin()
            self._await(flow.has_begun, process)
            seconds = max(self.options.latency_s, commit_s)
            found = flow.run(rate, self.options.latency_warm_up_s, seconds, 2 * commit_s + 20, process.pid)
            if side == "penstock":
                process.send_signal(signal.SIGTERM)
                process.wait(_STOP_S)
                written = orjson.loads((work / harness.RESULT).read_bytes())
                messages = written["outbox_messages"]
                of_one = round(written["outbox_bytes"] / messages, 1) if messages else None
                found |= {**written, "outbox_bytes_per_message": of_one}
            return found

    def _given(self, side: str, commit_s: float) -> dict[str, Any]:
        self._outputs += 1
        output = f"out-{self._outputs}"
        create(self.brokers, [output], PARTITIONS)
        return {
            **self.bench.parameters,
            "target": f"kafka.sides:{'engine' if side in ENGINES else 'penstock'}",
            "work": str(self.bench.work / self.part / f"{side}-{output}"),
            "brokers": self.brokers,
            "topic": TOPIC,
            "output": output,
            "group": output,
            "partitions": PARTITIONS,
            "threads": PARTITIONS,
            "commit_s": commit_s,
            "engine": side,
            "start_s": 120,
            "echo": False,
        }

    def _await(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        def check() -> None:
            if process.poll() is not None:
                log = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.bench.work.rglob("log.txt"))
                raise RuntimeError(f"a side ended. The end of the logs:\n{log}")

        harness.wait_for(condition, "a message of a side", check, _LOOK_SECONDS, _FIRST_S)


def rates(warm_up_s: float, run: harness.SideRun) -> dict[str, Any]:
    """Rows per second and processor time of a row, from the end of the warm-up to the last look at which rows had come.

    Between two looks at which rows came, so that a side that counts batch by batch is measured over whole batches.
    """
    samples = run.result["samples"]
    rises = [now for before, now in pairwise([(0.0, 0), *samples]) if now[1] > before[1]]
    warm = rises[0][0] + warm_up_s
    start, first = max((each for each in rises if each[0] <= warm), key=itemgetter(0))
    stop, last = rises[-1]
    rows, spent = last - first, run.usage.cpu_between(start, stop)
    return {
        "rows": rows,
        "measured_s": round(stop - start, 2),
        "rows_per_second": round(rows / (stop - start)) if stop > start else 0,
        "cpu_us_per_row": round(sum(spent.values()) / rows * 1e6, 2) if rows else None,
    }


@harness.benchmark(
    "kafka", __doc__, parts=list(PARTS), sides=list(SIDES), events=5_000_000, keys=100_000, seconds=7, warm_up_s=4,
    commit_s=[1.0, 10.0], spark_rate=120_000, before_kill_s=3, rates=[1000, 20_000], latency_s=10.0,
    latency_warm_up_s=3.0, latency_commit_s=[1.0, 10.0], latency_repeat=1, repeat=3, ways=["spark", "direct"],
    target_ms=50,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options, path, status = bench.options, bench.options.json, 0
    for part in (part for part in PARTS if part in options.parts):
        sides = installed([side for side in options.sides if side not in NOT_IN[part]], ENGINES)
        bench.runs, bench.targets, options.json = {}, {}, path.with_suffix(f".{part}.json")
        with KafkaBroker(heap_mb=1024, java_options=()) as broker:
            world = World(bench, part, broker.bootstrap_servers)
            if part != "latency" and sides:
                world.fill()
            world.run(sides)
            medians = bench.medians(*SHOWN[part])
            harness.show(part, medians, **SHOWN[part], verified="")
            for commit_s in options.commit_s if part == "throughput" else ():
                ending = f", {commit_s:g} s"
                judge(bench, medians, ((f"{a}{ending}", f"{b}{ending}", least) for a, b, least in TARGETS))
            status |= bench.finish(part=part)
    return status
