"""A job on Spark that continues with more and with fewer tasks, while windows and timers are open."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.admin.state.repartition import plan_repartition, repartition
from penstock.errors import IncompatibleError
from penstock.repartition.move import MadePart, Move
from penstock.spark.stored_state import move_on_spark
from tests.support.jobs.spark_home import SparkHome

pytestmark = pytest.mark.spark
SIZE_MS = 10_000


class Count(ps.StreamTask):
    """Counts the messages of each key, and says the last count much later."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.counts: ps.KeyValueStore[str, int] = context.store("counts")

    def process(self, envelope: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        self.counts[envelope.key] = count = self.counts.get(envelope.key, 0) + 1
        collector.emit(key=envelope.key, value=["count", envelope.key, count])
        self.context.schedule(envelope.key, 10**12)

    def on_timer(self, timer: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        collector.emit(key=timer.key, value=["last", timer.key, self.counts[timer.key]])


def counting_app(store_key: ps.Serde[Any] | None = None) -> ps.StreamApplication:
    app = ps.StreamApplication("counting")
    app.store("counts", key=store_key, value=ps.Long())
    events = app.input("local.events", timestamp=lambda event: event["t"]).partition_by(lambda event: event["k"])
    out = app.output("local.out")
    events.process(Count, stores=["counts"], timers=ps.String(), id="count").send_to(out, id="counted")
    sums = events.window(ps.Windows.tumbling(SIZE_MS, aggregates={"sum": ps.Sum(lambda event: event["n"])}), id="sums")
    sums.map(lambda pane: ["sum", pane.key, pane.window.start_ms, pane.message["sum"]]).send_to(out, id="summed")
    return app


class Events(SparkHome):
    """The messages, and what comes of them."""

    given: list[dict[str, Any]]
    chance: random.Random

    def put(self, count: int) -> None:
        for number in range(len(self.given), len(self.given) + count):
            event = {"k": f"key-{self.chance.randrange(50)}", "n": number, "t": 1_000_000 + 20 * number}
            self.append("events", number % 2, (None, json.dumps(event).encode()))
            self.given.append(event)

    def expected(self) -> Counter[str]:
        counts, sums, right = Counter[str](), Counter[tuple[str, int]](), Counter[str]()
        for event in self.given:
            counts[event["k"]] += 1
            sums[event["k"], event["t"] - event["t"] % SIZE_MS] += event["n"]
            right[json.dumps(["count", event["k"], counts[event["k"]]])] += 1
        right.update(json.dumps(["last", key, count]) for key, count in counts.items())
        right.update(json.dumps(["sum", key, start, total]) for (key, start), total in sums.items())
        return right

    def sent(self) -> Counter[str]:
        return Counter(json.dumps(value) for _, value, _ in self.read("out"))


def test_a_job_has_more_tasks_and_then_fewer(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    guarantee = {"streams.local.out.output.guarantee": "exactly-once", "job.batch.max.messages": 150}
    events = Events(tmp_path, spark, {"events": 2, "out": 3}, guarantee)
    events.given, events.chance, config = [], random.Random(3), events.config

    def run(tasks: int, *, close: bool = False) -> None:
        events.put(400)
        config["job.intermediate.stream.partitions"] = tasks
        events.run(counting_app(), close=close)

    def on_spark(move: Move) -> list[MadePart]:
        return move_on_spark(spark, move)

    run(2)
    with plan_repartition(counting_app(), 5, overrides=config) as planned:
        assert planned.facts().problems == ()
        done = repartition(planned, on_spark)
        assert {each.store: sum(each.entries) for each in done.stores}["counts"] == len({e["k"] for e in events.given})
    run(5)
    wrong = {"counts": lambda key, value: f"not {key}"}
    said = r"store `counts`: the entry with the key `key-\d+` is in task \d"
    refused = plan_repartition(counting_app(), 3, overrides=config, rules=wrong)
    with refused as planned, pytest.raises(IncompatibleError, match=said):
        repartition(planned, on_spark)
    with plan_repartition(counting_app(), 3, overrides=config) as planned:
        repartition(planned, on_spark)
    run(3, close=True)
    assert events.sent() == events.expected()
