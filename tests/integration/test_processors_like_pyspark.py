"""The same processor in PySpark's transformWithState and in Penstock's task, on the same random batches: equal output
and equal state, batch by batch."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType

from tests.support.processors import OneTask, spec_of

pytestmark = pytest.mark.spark

ROWS = StructType().add("k", StringType()).add("g", LongType()).add("ask", StringType()).add("v", LongType())
OUT = StructType().add("k", StringType()).add("now", LongType()).add("said", StringType())
VALUE = StructType().add("n", LongType()).add("s", StringType())
ASKS = ("update", "null", "clear", "put", "append", "entry", "remove", "timer", "timer", "forget", "show")
FAR_MS = 10**9


class Asked(StatefulProcessor):
    """Does what its rows ask for, and says what its key has."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", VALUE)
        self.list = handle.getListState("list", VALUE)
        self.map = handle.getMapState("map", StructType().add("m", LongType()), VALUE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in sorted(rows, key=lambda each: each.v):  # Spark's shuffle keeps no order
            self._do(row.ask, row.v, now)
        yield Row(k=key[0], now=now, said=repr((key, type(key).__name__, self._has(now))))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        now, due = timerValues.getCurrentProcessingTimeInMs(), expiredTimerInfo.getExpiryTimeInMs()
        before = self._has(now)
        self.handle.deleteTimer(now - 1)
        self.handle.registerTimer(now + FAR_MS)
        self.handle.registerTimer(due)
        said = repr((tuple(key), type(key).__name__, due - now, before, self._has(now)))
        yield Row(said=said, k=key[0], now=now)

    def _do(self, ask: str, v: int, now: int) -> None:
        calls: dict[str, Any] = {
            "update": lambda: self.value.update((v, str(v))),
            "null": lambda: self.value.update((None, None)),
            "clear": lambda: (self.value, self.list, self.map)[v % 3].clear(),
            "put": lambda: self.list.put([(v, None), (None, "p")]),
            "append": lambda: self.list.appendList([(v, "a")]),
            "entry": lambda: self.map.updateValue((v % 3,), (v, None)),
            "remove": lambda: self.map.removeKey((v % 3,)),
            "timer": lambda: self.handle.registerTimer(now - v % 3 if v % 2 else now + FAR_MS + v % 5),
            "forget": lambda: self.handle.deleteTimer(now - v % 3),
            "show": lambda: None,
        }
        calls[ask]()

    def _has(self, now: int) -> Any:
        one = self.map.getValue((1,))
        timers = [time - now for time in self.handle.listTimers() if time - now < FAR_MS // 2]
        entries = sorted(self.map.iterator())
        there = self.value.exists(), self.list.exists(), self.map.exists(), self.map.containsKey((2,))
        return self.value.get(), list(self.list.get()), entries, one, there, timers

    def close(self) -> None:
        pass


def random_batches(seed: int) -> list[list[dict[str, Any]]]:
    chosen = random.Random(seed)
    return [
        [
            {"k": chosen.choice("abcd"), "g": chosen.randrange(2), "ask": chosen.choice(ASKS), "v": v}
            for v in range(chosen.randrange(5, 60))
        ]
        for _ in range(4)
    ]


@pytest.mark.parametrize("seed", [17, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (18, 19))])
def test_output_and_state_are_those_of_pyspark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    batches = random_batches(seed)
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(batches):
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_000 + number, 1_000 + number))
    found: dict[int, list[Row]] = {}
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    events = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    processed = events.groupBy("k", "g").transformWithState(
        statefulProcessor=Asked(), outputStructType=OUT, outputMode="append", timeMode="ProcessingTime"
    )
    query = (
        processed.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda df, number: found.update({number: df.collect()}))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    task = OneTask(spec_of(Asked(), ["k", "g"], ROWS, OUT, "ProcessingTime"))
    assert sorted(found) == list(range(len(batches)))
    for number, rows in enumerate(batches):
        now = found[number][0].now
        expected = sorted(tuple(row) for row in found[number])
        assert sorted(tuple(row.values()) for row in task.batch(rows, now)) == expected
        task.restart()
