"""A processor's input and output, in the row form and in the pandas form; late rows, event time, initial state."""

from __future__ import annotations

import datetime
import os
import pickle
import re
import subprocess
import sys
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

import penstock.spark as pss
from penstock.api.time.firing import END_OF_TIME
from penstock.errors import ConfigError, UserCodeError
from penstock.graph.specs.code import KeyFailed
from penstock.spark.processor.rows import FrameOutput
from penstock.testing import TestRunner
from tests.support.oracles.processors import OneTask, application, read_rows, spec_of
from tests.support.tools.places import ROOT

ROWS = StructType().add("key", StringType()).add("n", LongType()).add("at", TimestampType())
OUT = StructType().add("key", StringType()).add("what", StringType())
N = StructType().add("n", LongType())


def at(second: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(second, datetime.UTC)


class Says(StatefulProcessor):
    """Says what it is called with."""

    calls: list[str] = []

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fresh = not hasattr(self, "seen")
        self.seen = handle.getValueState("seen", N)
        Says.calls.append("init")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        assert self.fresh, "each batch has a new processor"
        for row in rows:
            assert isinstance(row, Row)
            assert type(key) is tuple
            times = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
            assert tuple(row) == (row.key, row["n"], row.at)
            assert row.asDict() == {"key": row[0], "n": row[1], "at": row[2]}
            assert "n" in row
            assert "m" not in row
            assert row == pickle.loads(pickle.dumps(row))
            yield Row(key=key[0], what=repr((row.n, row.at and row.at.timestamp(), times)))
        if key[0] == "timer":
            for time_ms in (3_000, 5_000, 5_001):
                self.handle.registerTimer(time_ms)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N802, N803
        due = expiredTimerInfo.getExpiryTimeInMs()
        before = list(self.handle.listTimers())
        self.handle.registerTimer(due - 1_000)
        self.handle.registerTimer(due)
        self.handle.deleteTimer(5_000)
        yield Row(key=key[0], what=repr((due, before, list(self.handle.listTimers()))))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        self.seen.update(((self.seen.get() or (0,))[0] * 10 + initialState.m,))
        Says.calls.append(f"initial {key[0]}")

    def close(self) -> None:
        Says.calls.append("close")


def test_rows_are_those_of_pyspark() -> None:
    task = OneTask(spec_of(Says(), ["key"], ROWS, OUT))
    row = {"key": "a", "n": 5, "at": at(7)}
    (found,) = task.batch([row], 9_000)
    assert found == {"key": "a", "what": "(5, 7.0, (-1, -1))"}


def test_keys_come_in_the_order_of_their_first_rows_each_once() -> None:
    task = OneTask(spec_of(Says(), ["key"], ROWS, OUT))
    found = task.batch([{"key": key, "n": n, "at": None} for n, key in enumerate("babcab")])
    assert [row["key"] for row in found] == ["b", "b", "b", "a", "a", "c"]
    assert [row["what"][:3] for row in found[3:5]] == ["(1,", "(4,"], "in the order in which they came"


def test_a_null_is_a_key() -> None:
    task = OneTask(spec_of(Says(), ["key", "n"], ROWS, OUT))
    found = task.batch([{"key": None, "n": None, "at": None}, {"key": "", "n": None, "at": None}])
    assert [row["key"] for row in found] == [None, ""]


def test_late_rows_are_dropped_before_the_processor() -> None:
    """Rows up to the watermark are late; it is 0 at first. A row without a time is never late."""
    task = OneTask(spec_of(Says(), ["key"], ROWS, OUT, "EventTime", event_time="at"))
    times = [at(9), at(10), at(11), None, at(0), at(-1)]
    rows = [{"key": str(n), "n": n, "at": time} for n, time in enumerate(times)]
    assert [row["key"] for row in task.batch(rows, late=10_000, watermark=20_000)] == ["2", "3"]
    assert task.late == 4
    assert [row["key"] for row in task.batch(rows)] == ["0", "1", "2", "3"]


def test_timers_fire_after_the_rows_of_all_keys() -> None:
    """As they were when the first one fires: what is set or deleted meanwhile makes no difference."""
    task = OneTask(spec_of(Says(), ["key"], ROWS, OUT, "EventTime"))
    found = task.batch([{"key": "timer", "n": 1, "at": None}, {"key": "z", "n": 1, "at": None}], watermark=5_000)
    fired = [eval(row["what"]) for row in found[2:]]
    assert [row["key"] for row in found] == ["timer", "z", "timer", "timer"]
    assert fired == [
        (3_000, [3_000, 5_000, 5_001], [2_000, 3_000, 5_001]),
        (5_000, [2_000, 5_001], [2_000, 4_000, 5_001]),
    ]
    assert task.next_due() == (2_000, None)
    task.restart()
    assert task.next_due() == (2_000, None)
    assert [eval(row["what"])[0] for row in task.batch(watermark=5_000)] == [2_000, 4_000]


class Waits(StatefulProcessor):
    """Has a timer, and sets it again when it fires."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        self.handle.registerTimer(10**15)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N802, N803
        watermark = timerValues.getCurrentWatermarkInMs()
        self.handle.registerTimer(watermark + 500)
        yield Row(key=key[0], what=repr((expiredTimerInfo.getExpiryTimeInMs(), watermark)))

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("mode", ["EventTime", "ProcessingTime"])
def test_a_drain_fires_all_timers_and_those_that_these_set_once(mode: str) -> None:
    """Otherwise a periodic timer would never end. Times can be computed with the watermark."""
    task = OneTask(spec_of(Waits(), ["key"], ROWS, OUT, mode))
    assert task.batch([{"key": "a", "n": 1, "at": None}], 1_000, watermark=7_000) == []
    drained = task.batch(time_ms=2_000, late=7_000, watermark=END_OF_TIME, drains=True)
    assert [row["what"] for row in drained] == ["(1000000000000000, 7000)", "(7500, 7000)"]


def test_nothing_is_called_where_nothing_is_due() -> None:
    task = OneTask(spec_of(Says(), ["key"], ROWS, OUT, "ProcessingTime"))
    task.batch([{"key": "timer", "n": 1, "at": None}], 1_000)
    Says.calls.clear()
    assert task.batch((), 2_999) == []
    assert Says.calls == []
    assert len(task.batch((), 3_000)) == 1
    assert Says.calls == ["init", "close"]


def test_initial_state_comes_before_the_rows_of_its_key() -> None:
    initial = StructType().add("key", StringType()).add("m", LongType())
    task = OneTask(spec_of(Says(), ["key"], ROWS, OUT, initial=initial))
    Says.calls.clear()
    before = [{"key": "z", "m": 4}, {"key": "a", "m": 1}, {"key": "z", "m": 5}]
    found = task.batch([{"key": key, "n": 1, "at": None} for key in "bac"], initial=before)
    assert Says.calls == ["init", "initial z", "initial z", "initial a", "close"]
    assert [row["key"] for row in found] == ["a", "b", "c"]
    assert len(task.state("seen")) == 2


class Frame(StatefulProcessor):
    """The pandas form."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", N)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        import pandas as pd

        total = 0 if self.total.get() is None else self.total.get()[0]
        for frame in rows:
            assert list(frame.columns) == ["key", "n", "at"]
            assert frame.index.tolist() == list(range(len(frame)))
            assert frame["at"].dtype == "datetime64[ns]"
            total += int(frame["n"].sum())
        self.total.update((total,))
        yield pd.DataFrame({"what": [total if key[0] == "bad" else str(total)], "key": [key[0]]})
        yield pd.DataFrame()
        if key[0] == "row":
            yield Row(key="a", what="b")

    def close(self) -> None:
        pass


def test_pandas_form() -> None:
    pytest.importorskip("pandas")
    task = OneTask(spec_of(Frame(), ["key"], ROWS, OUT, form="pandas"))
    rows = [{"key": key, "n": n, "at": at(n)} for n, key in enumerate("abab")]
    assert task.batch(rows) == [{"key": "a", "what": "2"}, {"key": "b", "what": "4"}]
    assert task.batch(rows[:1]) == [{"key": "a", "what": "2"}]
    with pytest.raises(KeyFailed, match="handleInputRows, key") as raised:
        task.batch([{"key": "row", "n": 1, "at": at(1)}])
    assert "pandas.DataFrame" in str(raised.value.__cause__)


class Changes(StatefulProcessor):
    """Changes the DataFrames that it gets."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        for frame in rows:
            frame["n"] += 100
            frame.loc[0, "n"] = -1
            frame["what"] = frame["n"].astype(str)
            yield frame[["key", "what"]]

    def close(self) -> None:
        pass


@pytest.mark.filterwarnings("error")
def test_a_processor_may_change_the_frames_that_it_gets() -> None:
    pytest.importorskip("pandas")
    task = OneTask(spec_of(Changes(), ["key"], ROWS, OUT, form="pandas"))
    rows = [{"key": key, "n": n, "at": at(n)} for n, key in enumerate("ababcb")]
    found = [(row["key"], row["what"]) for row in task.batch(rows)]
    assert found == [("a", "-1"), ("a", "102"), ("b", "-1"), ("b", "103"), ("b", "105"), ("c", "-1")]


def test_frames_of_many_types_become_the_rows_that_each_becomes_alone() -> None:
    pd = pytest.importorskip("pandas")
    schema = StructType().add("key", StringType()).add("n", LongType()).add("at", TimestampType())
    times = pd.Series([at(1), at(2)])
    kinds = [
        {"key": ["a", "b"], "n": [1, 2], "at": times},
        {"key": ["a", None], "n": [1.0, float("nan")], "at": times},
        {"at": times.dt.tz_localize(None), "n": pd.array([1, None], dtype="Int64"), "key": ["a", "b"]},
        {"key": pd.Categorical(["c", "a"]), "n": [2**62 + 1, 3], "at": [pd.NaT, at(3)]},
        {"key": ["a", "b"], "n": [True, False], "at": times.dt.tz_convert("Asia/Tokyo")},
    ]
    random = Random(7)
    frames = [pd.DataFrame(random.choice(kinds)) for _ in range(60)]
    frames += [pd.DataFrame(kinds[0], index=[5, 5]), pd.DataFrame(kinds[3]).iloc[1:]]

    def rows_of(made: list[Any]) -> list[dict[str, Any]]:
        chunks: list[bytes] = []
        output = FrameOutput(schema, lambda _, chunk: chunks.append(chunk), "Europe/Berlin")
        for frame in made:
            output.add("key", "handleInputRows", [frame])
        output.flush()
        return read_rows(chunks, schema)

    assert rows_of(frames) == [row for frame in frames for row in rows_of([frame])]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (("a", "b"), "a processor returns pyspark.sql.Row objects"),
        (Row("a", "b"), "CANNOT_CONVERT_TYPE"),
        (Row(key="a", what=5), "Expected bytes, got a .int. object"),
        (None, "not iterable"),
    ],
)
def test_what_is_no_row_of_the_output_is_refused(returned: Any, said: str) -> None:
    class Returns(Says):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            return None if returned is None else [returned]

    task = OneTask(spec_of(Returns(), ["key"], ROWS, OUT))
    with pytest.raises(KeyFailed, match="handleInputRows") as raised:
        task.batch([{"key": "a", "n": 1, "at": None}])
    assert re.search(said, str(raised.value.__cause__))


def test_rows_are_matched_by_name() -> None:
    class Returns(Says):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            yield Row(what="w", key=key[0])
            yield Row(key=key[0], more=1)

    task = OneTask(spec_of(Returns(), ["key"], ROWS, OUT))
    found = task.batch([{"key": "a", "n": 1, "at": None}])
    assert found == [{"key": "a", "what": "w"}, {"key": "a", "what": None}]


class Deletes(StatefulProcessor):
    """Deletes what it declares, in `init` and later."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.kept = handle.getValueState("kept", N)
        self.gone = handle.getValueState("gone", N)
        self.list, self.map = handle.getListState("list", N), handle.getMapState("map", N, N)
        for name in ("gone", "list", "map", "never there"):
            handle.deleteIfExists(name)
        with pytest.raises(PySparkRuntimeError, match="was deleted"):
            handle.getListState("gone", N)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        def late() -> None:
            self.handle.deleteIfExists("kept")

        assert [*self.list.get(), *self.map.iterator(), *self.map.keys(), *self.map.values()] == []
        for call in (self.gone.exists, self.gone.get, self.list.exists, lambda: self.map.getValue((1,)), late):
            with pytest.raises(PySparkRuntimeError) as raised:
                call()
            yield Row(key=key[0], what=str(raised.value)[:40])
        yield Row(key=key[0], what=repr(self.kept.get()))
        self.kept.update((5,))

    def close(self) -> None:
        pass


def test_a_variable_that_init_deletes_has_no_state() -> None:
    task = OneTask(spec_of(Deletes(), ["key"], ROWS, OUT))
    for again in ("None", "(5,)"):
        assert [row["what"] for row in task.batch([{"key": "a", "n": 1, "at": None}])] == [
            "Error in exists of the state variable go",
            "Error in get of the state variable gone:",
            "Error in exists of the state variable li",
            "Error in get_value of the state variable",
            "Error deleting state: [STATEFUL_PROCESSO",
            again,
        ]


WITHOUT_PANDAS = """
import sys


class Hides:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hides())
from tests.unit.spark.processor import test_forms

test_forms.check_without_pandas()
"""


def check_without_pandas() -> None:
    """In an interpreter that has no pandas."""
    stream: Any = SimpleNamespace(isStreaming=True)
    needed = re.escape(
        f'form="pandas" needs pandas, on the driver and on executors. In {sys.executable}: [PACKAGE_NOT_'
    )
    with pytest.raises(ConfigError, match=needed):
        pss.transform_with_state(stream, processor=Says(), key="key", output=OUT, form="pandas", root="nowhere")
    runner = TestRunner(application(spec_of(Says(), ["key"], ROWS, OUT, form="pandas")), partitions=1)
    runner.input("m.rows", [(None, b"not looked at")])
    with pytest.raises(UserCodeError, match=needed):
        runner.run()
    assert OneTask(spec_of(Says(), ["key"], ROWS, OUT)).batch([{"key": "a", "n": 1, "at": None}])


def test_the_pandas_form_is_refused_where_there_is_no_pandas_and_the_row_form_is_not() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("form", ["row", "pandas"])
def test_times_are_in_the_zone_of_the_session(form: Any) -> None:
    """As PySpark gives them: in a row with this zone, in a DataFrame without one. Returned, they are what they were."""
    times = StructType().add("at", TimestampType()).add("same", TimestampType())
    out = StructType([*times.fields]).add("said", StringType())

    class Local(Frame):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            said = f"{key[0]:%H:%M} {key[0].tzinfo} "
            for each in rows:
                if form == "row":
                    yield Row(at=each.at, same=each["same"], said=f"{said}{each.at:%H:%M} {each.at.tzinfo}")
                else:
                    assert type(key[0]) is type(each["at"][0])
                    yield each.assign(said=f"{said}{each['at'][0]:%H:%M} {each['at'][0].tzinfo}")

    task = OneTask(spec_of(Local(), ["at"], times, out, form=form, timezone="Asia/Kolkata"))
    moment = datetime.datetime(2024, 5, 6, 12, tzinfo=datetime.UTC)
    (found,) = task.batch([{"at": moment, "same": moment}])
    zone = "Asia/Kolkata" if form == "row" else None
    assert found == {"at": moment, "same": moment, "said": f"17:30 {zone} 17:30 {zone}"}


class Asks(Says):
    """Asks where it runs."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        where = TaskContext.get()
        assert where is not None
        yield Row(key=key[0], what=str(where.partitionId()))
        if key[0] == "more":
            where.taskAttemptId()


def test_the_task_context_knows_the_partition_and_says_what_it_does_not_know() -> None:
    task = OneTask(spec_of(Asks(), ["key"], ROWS, OUT))
    assert [row["what"] for row in task.batch([{"key": "a"}])] == ["0"]
    with pytest.raises(KeyFailed) as failed:
        task.batch([{"key": "more"}])
    assert "taskAttemptId() has no answer in a processor" in str(failed.value.__cause__)
    assert TaskContext.get() is None
