"""The same processor in PySpark's transformWithState and in Penstock's task, on the same random batches: equal output
and equal state, batch by batch."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DecimalType, LongType, StringType, StructType

import penstock.spark as pss
from penstock.spark.takeover import Takeover
from tests.support.oracles import beside_pyspark
from tests.support.oracles.beside_pyspark import run_in_pyspark, taken_over
from tests.support.oracles.processors import OneTask, spec_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = StructType().add("k", StringType()).add("g", LongType()).add("ask", StringType()).add("v", LongType())
OUT = StructType().add("k", StringType()).add("now", LongType()).add("said", StringType())
VALUE = StructType().add("n", LongType()).add("s", StringType())
M = StructType().add("m", LongType())
ASKS = (
    "update",
    "null",
    "clear",
    "put",
    "append",
    "entry",
    "remove",
    "timer",
    "timer",
    "forget",
    "show",
    *("brief",) * 8,
)
FAR_MS = 10**9
TTLS_MS = (1, 1_500, 4_000, 3_600_000)
"""The first has always expired in the next batch, the last never; the others as long as batches take."""


class Asked(StatefulProcessor):
    """Does what its rows ask for, and says what its key has."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", VALUE)
        self.list = handle.getListState("list", VALUE)
        self.map = handle.getMapState("map", M, VALUE)
        self.brief = [
            (
                handle.getValueState(f"value{ttl_ms}", VALUE, ttl_ms),
                handle.getListState(f"list{ttl_ms}", VALUE, ttl_ms),
                handle.getMapState(f"map{ttl_ms}", M, VALUE, ttl_ms),
            )
            for ttl_ms in TTLS_MS
        ]
        self.gone = (
            handle.getValueState("gone", VALUE),
            handle.getListState("gone list", VALUE),
            handle.getMapState("gone map", M, VALUE),
        )
        for name in ("gone", "gone list", "gone map"):
            handle.deleteIfExists(name)

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
            "brief": lambda: self._change(v),
        }
        calls[ask]()

    def _change(self, v: int) -> None:
        """Write to what has a time to live, which begins again with a value, a whole list, an element or an entry."""
        value, elements, entries = self.brief[v // 8 % len(self.brief)]
        changes: Any = (
            lambda: value.update((v, "v")),
            lambda: elements.appendValue((v, "e")),
            lambda: elements.appendList([(v, "e"), (None, None)]),
            lambda: entries.updateValue((v % 3,), (v, None)),
            lambda: elements.put([(v, "p")] if v % 3 else [*elements.get(), (v, "p")]),
            lambda: entries.removeKey((v % 3,)),
            lambda: (value, elements, entries)[v % 3].clear(),
            lambda: value.update((v, "w")),
        )
        changes[v % 8]()

    def _has(self, now: int) -> Any:
        one = self.map.getValue((1,))
        # Spark lists them by the bytes of little-endian numbers: 255 before 256 in most batches, and behind it in some.
        timers = sorted(time - now for time in self.handle.listTimers() if time - now < FAR_MS // 2)
        entries = sorted(self.map.iterator())
        there = self.value.exists(), self.list.exists(), self.map.exists(), self.map.containsKey((2,))
        own = self.value.get(), list(self.list.get()), entries, one, there, timers
        return *own, list(map(self._alive, self.brief)), list(self._without_state())

    def _without_state(self) -> Iterator[Any]:
        value, elements, entries = self.gone
        for iterated in (elements.get, entries.iterator, entries.keys, entries.values):
            yield list(iterated())
        calls: Any = (
            *(lambda: value.update((1, "v")), lambda: elements.put([(1, "p")]), lambda: elements.appendValue((1, "a"))),
            *(lambda: entries.updateValue((1,), (1, "e")), lambda: entries.getValue((1,)), value.get),
            *(call for each in self.gone for call in (each.exists, each.clear)),
        )
        for call in calls:
            try:
                yield call()
            except PySparkRuntimeError:
                yield "an error"

    def _alive(self, kinds: Any) -> Any:
        value, elements, entries = kinds
        there = value.exists(), elements.exists(), entries.exists(), entries.containsKey((1,)), entries.getValue((1,))
        found = sorted(entries.iterator()), sorted(entries.keys()), sorted(entries.values(), key=repr)
        return value.get(), list(elements.get()), *found, there

    def close(self) -> None:
        pass


def random_batches(seed: int) -> list[list[dict[str, Any]]]:
    chosen = random.Random(seed)
    return [
        [
            {"k": chosen.choice("abcd"), "g": chosen.randrange(2), "ask": chosen.choice(ASKS), "v": v}
            for v in range(chosen.randrange(10, 120))
        ]
        for _ in range(4)
    ]


@pytest.mark.parametrize("seed", [17, 18, 19])
def test_output_and_state_are_those_of_pyspark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The results are the same where the state of each batch is taken over."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    batches = random_batches(seed)
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(batches):
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_000 + number, 1_000 + number))
    events = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    location = tmp_path / "checkpoint"
    found = run_in_pyspark(events, location, Asked(), ["k", "g"], OUT, "ProcessingTime", changelog=seed % 2 == 0)
    assert sorted(found) == list(range(len(batches)))
    spec = spec_of(Asked(), ["k", "g"], ROWS, OUT, "ProcessingTime")
    tasks = [OneTask(spec)]
    for number, rows in enumerate(batches):
        now = found[number][0].now
        expected = sorted(tuple(row) for row in found[number])
        for task in tasks:
            assert sorted(tuple(row.values()) for row in task.batch(rows, now)) == expected
            task.restart()
        if number + 1 < len(batches):
            tasks.append(taken_over(spark, spec, location, number))


FRAMES = StructType().add("k", StringType()).add("v", LongType())
MADE = StructType().add("k", StringType()).add("kind", StringType()).add("n", LongType()).add("d", DecimalType(10, 2))


class MakesFrames(StatefulProcessor):
    """Says which type a column has, and returns numbers that need a cast."""

    def __init__(self, n: Any, d: Any) -> None:
        self.n, self.d = n, d

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        kinds = [str(frame["v"].dtype) for frame in rows]
        yield pd.DataFrame({"k": [key[0]], "kind": kinds, "n": [self.n], "d": [self.d]})

    def close(self) -> None:
        pass


@pytest.mark.parametrize("casts", [False, True])
def test_frames_are_converted_as_the_session_says(spark: SparkSession, tmp_path: Path, casts: bool) -> None:
    """Integers of a key are floats if a row beside them has none, of whichever key. Casts that lose digits and integers
    for decimals: either both engines take them, or neither."""
    for module in (sys.modules[__name__], beside_pyspark):
        cloudpickle.register_pickle_by_value(module)
    rows: list[dict[str, Any]] = [{"k": "a", "v": 1}, {"k": "a", "v": 2}, {"k": "b", "v": None}]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = spark.readStream.schema(FRAMES).json(str(tmp_path / "in"))
    keys = (
        "spark.sql.execution.pandas.convertToArrowArraySafely",
        "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    )
    outcomes = []
    for key in keys:
        spark.conf.set(key, str(casts).lower())
    try:
        for number, (n, d) in enumerate(((7, Decimal("1.5")), (7.5, Decimal("1.5")), (7, 3))):
            processor = MakesFrames(n, d)
            given: Any = {"key": "K", "output": MADE, "form": "pandas", "root": str(tmp_path / "root")}
            takeover = pss.transform_with_state(events, processor=processor, **given)._plan.takeover
            assert isinstance(takeover, Takeover)
            assert takeover.processor.key.names == ["k"]
            task = OneTask(takeover.processor)
            ours = _outcome(lambda task=task: map(dict.values, task.batch(rows)))  # type: ignore[misc]
            run = partial(run_in_pyspark, events, tmp_path / f"{number}", processor, ["K"], MADE, "None", form="pandas")
            theirs = _outcome(lambda run=run: run()[0])  # type: ignore[misc]
            assert ours == theirs
            outcomes.append(ours)
    finally:
        for key in keys:
            spark.conf.unset(key)
    assert [isinstance(each, list) for each in outcomes] == [True, not casts, casts]
    assert {row[1] for row in outcomes[0]} == {"float64"}


def _outcome(run: Callable[[], Iterable[Any]]) -> list[Any] | str:
    try:
        return sorted(map(tuple, run()))
    except Exception:
        return "an error"
