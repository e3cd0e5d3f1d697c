"""Time in queries on a real Spark: PySpark's transformWithState is the oracle."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own abbreviation
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import penstock as ps
import penstock.spark as pss
from penstock.errors import ConfigError
from penstock.spark.heartbeat import Heartbeat
from penstock.spark.session.session import scratch_folder
from tests.support.jobs.home import wait_until

pytestmark = pytest.mark.spark

OUTPUT = "k STRING, what STRING, at LONG, n LONG"
STATE = "n LONG"
GAP_MS = 10_000
PATIENCE_S = 120

# The rows of each file are a batch. Event times are in seconds; the watermark is 5 s behind the highest.
FILES = [
    [("a", 100), ("b", 101), ("a", 104), ("now", 103), ("old", -5)],  # the watermark is 0 before the first rows
    [("a", 108), ("c", 130), ("b", 97), ("now", 107)],
    [("a", 99), ("b", 126), ("c", 131)],  # 99 is late, and "a" and "b" have fired
    [("d", 124), ("c", 160), ("a", 127)],  # 124 is late
    [("d", 150), ("b", 168)],  # the watermark comes to the timer of "d" behind the last rows
]
INITIAL = [("b", 40), ("e", 5)]

SLOW_PYSPARK = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "pyspark" and "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv:
            time.sleep(12)

sys.meta_path.insert(0, Slow())
"""
"""A `sitecustomize` of a busy machine: Spark waits 10 s for the process that imports it."""


class Sessions(StatefulProcessor):
    """Counts the rows of a key until there have been none for a while in event time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", STATE)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: N802, N803
        self.count.update((initialState.n,))
        self.handle.registerTimer(120_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        found = sorted(int(row.at.timestamp()) for row in rows)
        (before,) = self.count.get() or (0,)
        self.count.update((before + len(found),))
        timers = sorted(self.handle.listTimers())
        for timer in timers:
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(found[-1] * 1000 + GAP_MS)
        watermark = timerValues.getCurrentWatermarkInMs()
        if key[0] == "now":
            self.handle.registerTimer(watermark)
        yield Row(k=key[0], what=f"rows {found} {timers}", at=watermark, n=before + len(found))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        (n,) = self.count.get() or (None,)
        self.count.clear()
        yield Row(
            k=key[0], what=f"end {timerValues.getCurrentWatermarkInMs()}", at=expiredTimerInfo.getExpiryTimeInMs(), n=n
        )

    def close(self) -> None:
        pass


class Forgets(StatefulProcessor):
    """Sets a timer for each batch of rows, at which its state has expired."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", STATE, 500)
        self.kept = handle.getValueState("kept", STATE, 3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        n = sum(1 for _ in rows)
        self.last.update((n,))
        self.kept.update((n,))
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now_ms + 1_000)
        yield Row(k=key[0], what="rows", at=now_ms, n=n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        late_ms = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], what=f"timer {self.last.get()} {self.kept.get()}", at=late_ms, n=0)

    def close(self) -> None:
        pass


class Source:
    """A folder that gets a file for each batch."""

    def __init__(self, home: Path, name: str = "in") -> None:
        self.folder = home / name
        self.folder.mkdir()
        self.count = 0

    def add(self, rows: list[tuple[str, int]]) -> None:
        text = "".join(json.dumps({"k": k, "s": s}) + "\n" for k, s in rows)
        hidden = self.folder / f"_{self.count}.json"
        hidden.write_text(text)
        os.utime(hidden, (1_000 + self.count, 1_000 + self.count))
        hidden.rename(self.folder / f"{self.count}.json")
        self.count += 1

    def read(self, spark: SparkSession) -> DataFrame:
        found = spark.readStream.schema("k STRING, s LONG").option("maxFilesPerTrigger", 1).json(str(self.folder))
        return found.selectExpr("k", "timestamp_seconds(s) AS at").withWatermark("at", "5 seconds")


class Plan:
    """Two sources, and what Spark makes of them before a processor gets the rows."""

    def __init__(self, home: Path, make: Callable[[DataFrame, DataFrame], DataFrame]) -> None:
        self.sources = Source(home, "first"), Source(home, "second")
        self._make = make

    def read(self, spark: SparkSession) -> DataFrame:
        first, second = (source.read(spark) for source in self.sources)
        return self._make(first, second)


class Dashboard(StreamingQueryListener):
    """Adds up what events say of state: Spark's operators and Penstock's."""

    def __init__(self) -> None:
        self.late, self.updated = Counter[str](), Counter[str]()
        self.ended = 0

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        for operator in [*event.progress.stateOperators, *pss.state_operators(event.progress)]:
            self.late[str(event.progress.id)] += operator.numRowsDroppedByWatermark
            self.updated[str(event.progress.id)] += operator.numRowsUpdated

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.ended += 1


Found = dict[int, list[tuple[Any, ...]]]


def into(found: Found) -> Callable[[DataFrame, int], None]:
    def handle(df: DataFrame, number: int) -> None:
        if rows := sorted(map(tuple, df.collect())):
            found[number] = rows

    return handle


@pytest.fixture
def pyspark_state(spark: SparkSession) -> Iterator[None]:
    """Spark's own stateful operators need another state store than its default."""
    keys = {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.shuffle.partitions": "1",
    }
    for key, value in keys.items():
        spark.conf.set(key, value)
    yield
    for key in keys:
        spark.conf.unset(key)


def by_pyspark(spark: SparkSession, source: Source | Plan, home: Path) -> Found:
    found: Found = {}
    initial = spark.createDataFrame(INITIAL, "k STRING, n LONG").groupBy("k")
    processed = (
        source.read(spark)
        .groupBy("k")
        .transformWithState(
            statefulProcessor=Sessions(),
            outputStructType=OUTPUT,
            outputMode="append",
            timeMode="EventTime",
            initialState=initial,
        )
    )
    query = processed.writeStream.option("checkpointLocation", str(home / "theirs")).foreachBatch(into(found))
    query.trigger(availableNow=True).start().awaitTermination()
    return found


def by_penstock(
    spark: SparkSession, source: Source | Plan, home: Path, fails_in: int | None = None, **arguments: Any
) -> Found:
    found: Found = {}

    def handle(df: DataFrame, number: int) -> None:
        into(found)(df, number)
        if number == fails_in:
            raise ValueError("fails here")

    initial = spark.createDataFrame(INITIAL, "k STRING, n LONG").groupBy("k")
    writer = pss.transform_with_state(
        source.read(spark),
        processor=Sessions(),
        key="k",
        output=OUTPUT,
        time_mode="EventTime",
        initial_state=initial,
        partitions=2,
        root=str(home / "root"),
        **arguments,
    ).for_each_batch(handle)

    def run() -> None:
        query = writer.option("checkpointLocation", str(home / "ours")).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S), "the run must end"

    if fails_in is not None:
        with pytest.raises(StreamingQueryException, match="fails here"):
            run()
        fails_in = None
    run()
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("pyspark_state")
def test_event_time_late_rows_timers_and_first_state_are_pysparks(spark: SparkSession, tmp_path: Path) -> None:
    """In two runs: watermarks and timers go on from where they were. A listener hears of as many late rows."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    source, dashboard = Source(tmp_path), Dashboard()
    spark.streams.addListener(dashboard)
    try:
        for files in (FILES[:3], FILES[3:]):
            for rows in files:
                source.add(rows)
            expected, found = by_pyspark(spark, source, tmp_path), by_penstock(spark, source, tmp_path)
            assert flat(found) == flat(expected)
            assert any("end" in row[1] for row in flat(found))
        wait_until(lambda: dashboard.ended == 4, "the events of both queries in both runs", PATIENCE_S)
    finally:
        spark.streams.removeListener(dashboard)
    theirs, ours = (json.loads((tmp_path / name / "metadata").read_text())["id"] for name in ("theirs", "ours"))
    assert dashboard.late[ours] == dashboard.late[theirs] > 0
    assert dashboard.updated[ours] > 0


PLANS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "union": lambda first, second: first.dropDuplicatesWithinWatermark(["k"]).unionAll(second).where("k <> 'x'"),
    "aggregation": lambda first, second: (
        first.groupBy(F.window("at", "10 seconds"), "k").count().select("k", F.window_time("window").alias("at"))
    ),
    "join": lambda first, second: (
        first.alias("a").join(second.alias("b"), F.expr(JOINED)).select("a.k", F.col("a.at").alias("at"))
    ),
}
JOINED = "a.k = b.k AND a.at <= b.at + INTERVAL 20 SECONDS AND b.at <= a.at + INTERVAL 20 SECONDS"
SEVERAL = [
    [[("a", 100), ("c", 20)], [("b", 10), ("a", 12)]],
    [[("a", 150), ("x", 155)], [("b", 12), ("c", 22)]],
    [[("d", 250)], [("b", 13), ("a", 15)]],
    [[("a", 251), ("d", 240)], [("b", 130), ("d", 245)]],
]
LAST = [[(k, 600) for k in "abcd"], [(k, 600) for k in "abcd"]]
"""Shows the state of all keys."""


@pytest.mark.usefixtures("pyspark_state")
@pytest.mark.parametrize(
    ("plan", "policy", "fails"),
    [
        ("union", "min", True),
        ("union", "max", False),
        ("aggregation", "min", False),
        ("join", "min", False),
    ],
)
@pytest.mark.slow
def test_the_watermark_is_that_of_the_whole_plan(
    spark: SparkSession, tmp_path: Path, plan: str, policy: str, fails: bool
) -> None:
    """In several runs: of two sources, with rows that do not come to the processor, and behind state of Spark. If a
    handler fails in the last batch, the next run is asked for a batch that is in the state already."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", policy)
    # Without batches for timers, these wait for rows in both engines.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(policy == "min").lower())
    both = Plan(tmp_path, PLANS[plan])
    try:
        for batches in (SEVERAL, [LAST]):
            for batch in batches:
                for source, rows in zip(both.sources, batch, strict=True):
                    source.add(rows)
            expected = by_pyspark(spark, both, tmp_path)
            found = by_penstock(spark, both, tmp_path, fails_in=3 if fails and batches == SEVERAL else None)
            assert flat(found) == flat(expected)
            assert batches == [LAST] or any("end" in row[1] for row in flat(found))
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


@pytest.mark.slow
def test_an_application_with_one_input_has_the_watermark_of_the_whole_plan(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    both = Plan(tmp_path, lambda first, second: first.unionAll(second))
    batches = [[[("a", 100)], [("b", 10)]], [[("a", 150)], [("b", 12)]], [[("a", 250)], [("b", 58)]]]
    for batch in batches:
        for source, rows in zip(both.sources, batch, strict=True):
            source.add(rows)
    app = ps.StreamApplication("windows")
    panes = (
        app.input("spark.rows", value=pss.Rows())
        .partition_by(lambda row: row.k)
        .window(ps.Windows.tumbling(50_000, aggregates={"n": ps.Count()}), id="panes")
    )
    found = Found()
    said = panes.map(lambda pane: (pane.key, pane.window.start_ms, pane.message["n"]))
    said.send_to(app.output("spark.panes", value=pss.Rows("k STRING, at LONG, n LONG")))
    stream = pss.run_application(app, both.read(spark), partitions=1, root=str(tmp_path / "root"))
    writer = stream.for_each_batch(lambda outputs, number: into(found)(outputs["panes"], number))
    query = writer.option("checkpointLocation", str(tmp_path / "ours")).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert flat(found) == [("b", 0, 2)], "the watermark is 53 s; other windows are open"


def test_plans_that_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = Source(tmp_path).read(spark)
    made = rows.groupBy("k").transformWithState(Sessions(), OUTPUT, "append", "EventTime")
    twice = rows.join(rows.withColumnsRenamed({"k": "l", "at": "then"}), F.expr("k = l"))
    for given, mode, why in ((made, "None", "begin a second query"), (twice, "EventTime", "a watermark each")):
        with pytest.raises(ConfigError, match=why):
            pss.transform_with_state(
                given, processor=Sessions(), key="k", output=OUTPUT, time_mode=mode, root=str(tmp_path)
            )


@pytest.mark.slow
@pytest.mark.usefixtures("pyspark_state")
@pytest.mark.parametrize("changelog", ["false", "true"])
def test_taken_over_event_time_continues_as_in_pyspark(spark: SparkSession, tmp_path: Path, changelog: str) -> None:
    """Timers fire without rows as well, though PySpark made the location."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", changelog)
    source = Source(tmp_path)
    for rows in FILES[:3]:
        source.add(rows)
    by_pyspark(spark, source, tmp_path)
    shutil.copytree(tmp_path / "theirs", tmp_path / "ours")
    for rows in FILES[3:]:
        source.add(rows)
    expected, found = by_pyspark(spark, source, tmp_path), by_penstock(spark, source, tmp_path, import_state=True)
    spark.conf.unset("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled")
    assert flat(found) == flat(expected)
    assert any("end" in row[1] for row in flat(found))


def flat(found: Found) -> list[tuple[Any, ...]]:
    return sorted(row for rows in list(found.values()) for row in rows)


@pytest.mark.slow
def test_a_timer_fires_without_new_rows_and_nothing_runs_while_none_is_due(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    source, found, numbers = Source(tmp_path), Found(), list[int]()
    source.add([("a", 1), ("a", 2), ("b", 1)])

    def handle(df: DataFrame, number: int) -> None:
        into(found)(df, number)
        numbers.append(number)

    def begin(spark: SparkSession) -> Any:
        return (
            pss.transform_with_state(
                source.read(spark),
                processor=Forgets(),
                key="k",
                output=OUTPUT,
                time_mode="ProcessingTime",
                partitions=2,
                root=str(tmp_path / "root"),
            )
            .for_each_batch(handle)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )

    def fired() -> list[tuple[Any, ...]]:
        return [row for row in flat(found) if row[1].startswith("timer")]

    def files() -> list[Path]:
        """Where Spark's JVM removes them, however the program ends."""
        return list(scratch_folder(spark.sparkContext).glob("penstock-*"))

    query = begin(spark).start()
    try:
        assert len(files()) == 1
        wait_until(lambda: len(fired()) >= 2 or not query.isActive, "timers without rows", PATIENCE_S)
        first = len(numbers)
        source.add([("c", 1)])
        wait_until(lambda: len(fired()) >= 3 or not query.isActive, "a timer behind new rows", PATIENCE_S)
    finally:
        query.stop()
    assert not files()
    assert [(k, what) for k, what, _, _ in fired()] == [
        ("a", "timer None (2,)"),
        ("b", "timer None (1,)"),
        ("c", "timer None (1,)"),
    ], "one has expired, the other one not"
    (state,) = query.recentProgress[0].stateOperators
    assert state.operatorName in str(query.recentProgress[0]), "it can be printed, and has Penstock's operators"
    assert (state.numRowsUpdated > 0, state.numShufflePartitions) == (True, 2)
    assert first <= 3, "a batch with rows, and one for each time at which a timer was due"
    assert len(set(numbers)) <= 5

    ended = begin(spark.newSession()).trigger(availableNow=True).start()
    assert ended.awaitTermination(PATIENCE_S), "nothing is due, and nothing new"
    assert sorted(set(numbers)) == list(range(1 + max(numbers))), "the stop may have come before Spark knew of a batch"


@pytest.mark.slow
def test_a_query_starts_where_the_import_of_pyspark_takes_longer_than_spark_waits_for_a_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_PYSPARK)
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(tmp_path))
    source, batches = Source(tmp_path), list[int]()
    source.add([("a", 100)])
    heartbeat = Heartbeat(scratch_folder(spark.sparkContext))
    try:
        df = heartbeat.added_to(source.read(spark.newSession()))
        writer = df.writeStream.foreachBatch(lambda _, number: batches.append(number))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            # One has the row, and the others are due.
            wait_until(lambda: len(batches) >= 3 or not query.isActive, "batches", PATIENCE_S)
            assert query.exception() is None
        finally:
            query.stop()
    finally:
        heartbeat.close()


def test_initial_state_of_another_key_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.add([("a", 1)])

    def give(initial: Any) -> None:
        events = source.read(spark)
        pss.transform_with_state(
            events, processor=Sessions(), key="k", output=OUTPUT, initial_state=initial, root=str(tmp_path)
        )

    there = spark.createDataFrame(INITIAL, "k STRING, n LONG")
    for given in (there, there.groupBy("k"), there.groupBy(there.k)):
        give(given)
    with pytest.raises(ConfigError, match=r"grouped by \['n'\], and the stream by key=\['k'\]"):
        give(there.groupBy("n"))
    with pytest.raises(ConfigError, match="no column `k`"):
        give(there.select("n"))
    with pytest.raises(ConfigError, match="is bigint, and that of the stream is string: cast it"):
        give(there.selectExpr("n AS k"))
    with pytest.raises(ConfigError, match="is read once"):
        give(source.read(spark))


class Grows(StatefulProcessor):
    """Has a variable of each kind, whose rows may have a second field, and says what it found."""

    def __init__(self, *, grown: bool) -> None:
        self.grown = grown

    def init(self, handle: Any) -> None:
        schema = f"{STATE}, s STRING" if self.grown else STATE
        self.value = handle.getValueState("value", schema)
        self.list = handle.getListState("list", schema)
        self.map = handle.getMapState("map", "m LONG", schema)
        if self.grown:
            handle.getValueState("another", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        n = sum(1 for _ in rows)
        entries = sorted((tuple(m), tuple(value)) for m, value in self.map.iterator())
        found = (self.value.get(), [tuple(each) for each in self.list.get()], entries)
        row = (n, "new") if self.grown else (n,)
        self.value.update(row)
        self.list.appendValue(row)
        self.map.updateValue((n,), row)
        yield Row(k=key[0], what=repr(found), at=0, n=n)

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("pyspark_state")
def test_fields_that_are_added_are_null_in_older_rows_as_in_pyspark(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.conf.set("spark.sql.streaming.stateStore.encodingFormat", "avro")
    source = Source(tmp_path)
    theirs, ours = Found(), Found()
    try:
        for rows, grown in (([("a", 1), ("a", 2), ("b", 3)], False), ([("a", 4), ("b", 5)], True), ([("a", 6)], True)):
            source.add(rows)
            events = source.read(spark)
            made = events.groupBy("k").transformWithState(Grows(grown=grown), OUTPUT, "append", "None")
            writer: Any = made.writeStream.option("checkpointLocation", str(tmp_path / "theirs"))
            writer.foreachBatch(into(theirs)).trigger(availableNow=True).start().awaitTermination()
            root = str(tmp_path / "root")
            stream = pss.transform_with_state(
                events, processor=Grows(grown=grown), key="k", output=OUTPUT, partitions=2, root=root
            )
            running = stream.for_each_batch(into(ours)).option("checkpointLocation", str(tmp_path / "ours"))
            running.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.encodingFormat")
    assert flat(ours) == flat(theirs)
    assert any("None" in row[1] and "new" in row[1] for row in flat(ours))
