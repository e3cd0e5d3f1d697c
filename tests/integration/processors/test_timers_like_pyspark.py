"""Timers in event time, in the row form and the pandas form, and initial state: the same processor in PySpark's
transformWithState and in Penstock's task, on the same random batches."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from tests.support.oracles import beside_pyspark
from tests.support.oracles.beside_pyspark import run_in_pyspark, taken_over
from tests.support.oracles.processors import OneTask, spec_of

pytestmark = pytest.mark.spark

N = StructType().add("n", LongType())
S = StructType().add("s", StringType())
GROUP = StructType().add("k", StringType()).add("g", LongType())
INITIAL = StructType([*N, *GROUP])
OUT = StructType([*GROUP]).add("mark", LongType()).add("said", StringType())
ROWS = (
    StructType([*GROUP]).add("ask", StringType()).add("v", LongType()).add("s", LongType()).add("at", TimestampType())
)
ASKS = ("set", "set", "set again", "forget", "forget all", "count", "at the watermark", "long ago", "show")
LATE_MS = 5_000


class Timers(StatefulProcessor):
    """Sets timers as its rows ask, and says which there are."""

    def __init__(self, form: str) -> None:
        self.form = form

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", N)
        self.fired = handle.getListState("fired", N)
        self.by = handle.getMapState("by", S, N)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        for n in [initialState.n] if self.form == "row" else initialState["n"].tolist():
            self.count.update(((self.count.get() or (0,))[0] + n,))
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + n * 1000)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        if self.form == "row":
            found = [(row.v, row.ask, row.s) for row in rows]
        else:
            found = [each for frame in rows for each in zip(frame.v, frame.ask, frame.s, strict=True)]
        for v, ask, s in sorted(found):
            self._do(int(v), ask, int(s) * 1000, timerValues)
        yield self._row(key, f"rows {len(found)}", timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        due = expiredTimerInfo.getExpiryTimeInMs()
        self.fired.appendValue((due,))
        before = sorted(self.handle.listTimers())  # PySpark's order is that of bytes
        if due % 3 == 0:
            self.handle.registerTimer(due - 500)
        if due % 3 == 1:
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs())
            self.handle.deleteTimer(due)
            self.handle.registerTimer(due)
        if due % 3 == 2:
            for each in before[:2]:
                self.handle.deleteTimer(each)
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 2_000)
        yield self._row(key, f"timer {due} {type(due).__name__} {before}", timerValues)

    def _do(self, v: int, ask: str, at_ms: int, times: Any) -> None:
        self.by.updateValue((ask,), ((self.by.getValue((ask,)) or (0,))[0] + 1,))
        mark = times.getCurrentWatermarkInMs()
        if ask.startswith("set"):
            self.handle.registerTimer(at_ms + v)
        if ask == "set again":
            self.handle.registerTimer(at_ms + v)
        if ask.startswith("forget"):
            known = sorted(self.handle.listTimers())
            for each in known if ask == "forget all" else [*known[:1], 17]:
                self.handle.deleteTimer(each)
        if ask == "at the watermark":
            self.handle.registerTimer(mark)
            self.handle.registerTimer(mark + 1)
        if ask == "long ago":
            self.handle.registerTimer(mark - 10_000 - v)
        if ask == "count":
            self.count.update(((self.count.get() or (0,))[0] + 1,))

    def _row(self, key: Any, what: str, times: Any) -> Any:
        entries = sorted((each[0], n[0]) for each, n in self.by.iterator())
        said = repr(
            (
                what,
                times.getCurrentWatermarkInMs(),
                sorted(self.handle.listTimers()),
                self.count.get(),
                [each[0] for each in self.fired.get()],
                entries,
            )
        )
        if self.form == "row":
            return Row(k=key[0], g=key[1], mark=times.getCurrentWatermarkInMs(), said=said)
        return pd.DataFrame({"k": [key[0]], "g": [key[1]], "mark": [times.getCurrentWatermarkInMs()], "said": [said]})

    def close(self) -> None:
        pass


def random_batches(seed: int) -> list[list[dict[str, Any]]]:
    """Rows of random times, of which some are late or have none."""
    chosen, newest, v, batches = random.Random(seed), 0, 0, list[list[dict[str, Any]]]()
    for number in range(5):
        newest += chosen.choice((0, 7, 20))
        rows = []
        for _ in range(chosen.randrange(3, 40)):
            v += 1
            s = newest - chosen.choice((0, 1, 2, 4, 6, 9, 30))
            row = {
                "k": chosen.choice(("a", "b", None)),
                "g": chosen.choice((1, 2)),
                "ask": chosen.choice(ASKS),
                "v": v,
                "s": s,
            }
            rows.append({**row, "at": None if chosen.random() < 0.05 else s})
        rows.append({"k": "z", "g": number, "ask": "show", "v": 0, "s": newest, "at": newest})
        batches.append(rows)
    return batches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "seed"),
    [("row", 1), ("pandas", 2), ("row", 3), ("pandas", 3)],
)
def test_event_time(spark: SparkSession, tmp_path: Path, form: Any, seed: int) -> None:
    for module in (sys.modules[__name__], beside_pyspark):
        cloudpickle.register_pickle_by_value(module)
    batches = random_batches(seed)
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(batches):
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_000 + number, 1_000 + number))
    read = spark.readStream.schema("k STRING, g BIGINT, ask STRING, v BIGINT, s BIGINT, at BIGINT")
    events = read.option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    events = events.withColumn("at", events["at"].cast("timestamp")).withWatermark("at", f"{LATE_MS} milliseconds")
    before = [(3, "a", 1), (4, "a", 1), (0, "only", 1), (12, "only", 2), (9, None, 2)]
    initial = spark.createDataFrame(before, INITIAL)
    location = tmp_path / "checkpoint"
    found = run_in_pyspark(
        events, location, Timers(form), ["k", "g"], OUT, "EventTime", form=form, initial=initial, changelog=seed == 1
    )
    assert sorted(found) == list(range(len(batches)))
    spec = spec_of(Timers(form), ["k", "g"], ROWS, OUT, "EventTime", form=form, event_time="at", initial=INITIAL)
    tasks = [OneTask(spec)]
    late = 0
    for number, rows in enumerate(batches):
        mark = found[number][0].mark
        timed = [{**row, "at": None if row["at"] is None else datetime.fromtimestamp(row["at"], UTC)} for row in rows]
        there = [dict(zip(INITIAL.names, row, strict=True)) for row in before] if number == 0 else []
        expected = sorted((tuple(row) for row in found[number]), key=repr)
        for task in tasks:
            made = task.batch(timed, late=late, watermark=mark, initial=there)
            assert sorted((tuple(row.values()) for row in made), key=repr) == expected
            task.restart()
        late = mark
        if number + 1 < len(batches):
            tasks.append(taken_over(spark, spec, location, number))
