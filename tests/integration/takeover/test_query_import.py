"""A query of PySpark's transformWithState that continues in Penstock, on a real Spark."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import penstock.spark as pss
from penstock.errors import ConfigError, IncompatibleError, PenstockError
from penstock.spark.heartbeat import prepare_heartbeat
from penstock.spark.queries import StreamWriter
from penstock.spark.query.checkpoint_location import OffsetLog
from tests.support.faults.plan import Fault, Faults
from tests.support.jobs.fault_jobs import faulty
from tests.support.jobs.home import wait_until
from tests.support.processes.spark_sessions import Sessions

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOUR_MS = 3_600_000
OUTPUT = "user STRING, total LONG, list ARRAY<LONG>, map MAP<STRING, LONG>, kept ARRAY<LONG>, gone BOOLEAN, fired LONG"


class Keeper(StatefulProcessor):
    """Has a state variable of each kind, with and without a time to live, and timers. Returns what it found."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n LONG, last STRING")
        self.all = handle.getListState("all", "id LONG, half DOUBLE")
        self.last = handle.getMapState("last", "odd STRING, null INT", "id LONG")
        self.kept = handle.getValueState("kept", "n LONG", HOUR_MS)
        self.kept_list = handle.getListState("kept_list", "id LONG", HOUR_MS)
        self.kept_map = handle.getMapState("kept_map", "id LONG", "n LONG", HOUR_MS)
        self.gone = handle.getValueState("gone", "n LONG", 1)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        ids = sorted(row.id for row in rows)
        n, _ = self.total.get() or (0, None)
        yield Row(
            user=key[0],
            total=n,
            list=[each[0] for each in self.all.get()],
            map={each[0]: value[0] for each, value in self.last.iterator()},
            kept=[
                *(self.kept.get() or ()),
                *(each[0] for each in self.kept_list.get()),
                *sorted(each[0] for each in self.kept_map.keys()),  # noqa: SIM118 - it is no dict,
            ],
            gone=self.gone.exists(),
            fired=None,
        )
        self.total.update((n + len(ids), key[0]))
        for each in ids:
            self.all.appendValue((each, each / 2))
            self.last.updateValue(("odd" if each % 2 else "even", None), (each,))
            self.kept_list.appendValue((each,))
            self.kept_map.updateValue((each,), (n,))
        self.kept.update((n + len(ids),))
        self.gone.update((1,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HOUR_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        waiting = len(list(self.handle.listTimers()))
        yield Row(user=key[0], total=None, list=None, map=None, kept=None, gone=None, fired=waiting)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    before = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = sessions.get()
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    for key in ("spark.sql.streaming.stateStore.providerClass", "spark.sql.shuffle.partitions"):
        session.conf.unset(key)
    if before is None:
        del os.environ["PYSPARK_PYTHON"]
    else:
        os.environ["PYSPARK_PYTHON"] = before


class World:
    """A folder that a query reads, its checkpoint location, a root, and what came out."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.location = str(folder / "location")
        self.config: dict[str, str] = {}
        self.rows: list[tuple[Any, ...]] = []

    def feed(self, first: int, end: int) -> None:
        ids = self.spark.range(first, end, 1, 1)
        ids.selectExpr("if(id % 5 = 0, null, concat('u', id % 5)) user", "id").write.mode("append").parquet(
            str(self.folder / "in")
        )

    @property
    def source(self) -> DataFrame:
        return self.spark.readStream.schema("user STRING, id LONG").parquet(str(self.folder / "in"))

    def _handle(self, df: DataFrame, batch: int) -> None:
        self.rows = [(row, batch) for row in df.collect()]

    def in_pyspark(self) -> None:
        made = self.source.groupBy("user").transformWithState(Keeper(), OUTPUT, "Update", "ProcessingTime")
        self._run(made.writeStream.outputMode("update").foreachBatch(self._handle))

    def in_penstock(self, processor: StatefulProcessor | None = None, **arguments: Any) -> None:
        self._run(self.writer(processor, **arguments))

    def writer(self, processor: StatefulProcessor | None = None, **arguments: Any) -> StreamWriter:
        return pss.transform_with_state(
            self.source,
            processor=processor or Keeper(),
            key="user",
            output=OUTPUT,
            time_mode="ProcessingTime",
            root=str(self.folder / "root"),
            name="keeper",
            partitions=2,
            config=self.config,
            **arguments,
        ).for_each_batch(self._handle)

    def _run(self, writer: Any) -> None:
        self.rows = []
        query = writer.option("checkpointLocation", self.location).trigger(once=True).start()
        query.awaitTermination()

    def check(self, seen: int, fed: int, batch: int, *, waiting: int) -> None:
        """Compare what came out with a plain computation: each key has seen the ids below `seen`, and now has those
        below `fed`."""
        assert {number for _, number in self.rows} == {batch}
        found = {row.user: row for row, _ in self.rows if row.fired is None}
        fired = [(row.user, row.fired) for row, _ in self.rows if row.fired is not None]
        users: dict[int, str | None] = {rest: f"u{rest}" if rest else None for rest in range(5)}
        assert found.keys() == set(users.values())
        for rest, user in users.items():
            ids = [each for each in range(seen) if each % 5 == rest]
            row = found[user]
            assert (row.total, sorted(row.list), row.gone) == (len(ids), ids, False)
            last = {"odd" if each % 2 else "even": each for each in ids}
            assert row.map == last
            assert row.kept == ([len(ids), *ids, *ids] if ids else [])
        assert sorted(fired, key=str) == sorted([(user, waiting) for user in users.values()], key=str) if seen else True


OTHER = {
    "fs.viewfs.mounttable.other.link./kept": "file:{}",
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
}
"""Another file system of Hadoop's than that of local files, by its name, and state that only Spark can read."""


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """The checkpoint location is on another file system, and the state is in another encoding."""
    (tmp_path / "kept").mkdir()
    for key, value in OTHER.items():
        spark.conf.set(key, value.format(tmp_path / "kept"))
    world = World(spark, tmp_path)
    world.location = "viewfs://other/kept/location"
    yield world
    for key in OTHER:
        spark.conf.unset(key)


def test_a_query_continues_with_the_state_that_pyspark_kept(elsewhere: World) -> None:
    """The import succeeds though a backup fails at first, within Spark's tasks."""
    world = elsewhere
    faults, backends = Faults.of_root(str(world.folder / "root")), faulty("changelog-files")
    world.config = {"stores.backup.factories": backends, "stores.restore.factories": backends}
    world.feed(0, 20)
    with pytest.raises(ConfigError, match="has had no batch"):
        world.in_penstock(import_state=True)
    world.in_pyspark()
    world.check(0, 20, 0, waiting=0)
    world.feed(20, 40)
    with pytest.raises(IncompatibleError, match="import_state=True"):
        world.in_penstock()
    faults.plan(Fault("late", "upload.end", "fail", skip=7))
    with pytest.raises(PenstockError, match="nothing was changed: injected: `late` is final"):
        world.in_penstock(import_state=True)
    assert faults.left() == []
    faults.plan()
    with pytest.raises(IncompatibleError, match="import_state=True"):
        world.in_penstock()
    world.in_penstock(import_state=True)
    world.check(20, 40, 1, waiting=4)
    world.feed(40, 50)
    world.in_penstock(import_state=True)  # has nothing to do any more
    world.check(40, 50, 2, waiting=5)


def test_a_query_that_still_runs_is_not_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    """Its next batches would be in PySpark's state alone."""
    world = World(spark, tmp_path)
    world.feed(0, 20)
    made = world.source.groupBy("user").transformWithState(Keeper(), OUTPUT, "Update", "ProcessingTime")
    writer = made.writeStream.outputMode("update").option("checkpointLocation", world.location)
    query = writer.foreachBatch(world._handle).start()
    commit = Path(world.location, "commits", "0")
    try:
        wait_until(lambda: commit.exists() or not query.isActive, "a batch of PySpark", 120)
        assert query.isActive, query.exception()
        for how in ({"import_state": True}, {"begin_at": "here"}):
            with pytest.raises(IncompatibleError, match="is running in this program"):
                world.writer(**how).option("checkpointLocation", world.location).start()
        assert query.isActive, query.exception()
    finally:
        query.stop()
    assert not (tmp_path / "root").exists()
    assert Path(world.location, "state", "0", "_metadata").exists()


class Other(StatefulProcessor):
    """Has one of Keeper's variables, with another type."""

    def init(self, handle: Any) -> None:
        handle.getValueState("total", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        return iter(())

    def close(self) -> None:
        pass


def test_timers_fire_without_rows_behind_a_takeover_that_died(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark is the oracle. The process dies between its changes of Spark's log of offsets."""
    world = World(spark, tmp_path)
    for first in (0, 20):
        world.feed(first, first + 20)
        world.in_pyspark()
    shutil.copytree(world.location, tmp_path / "theirs")
    add, added = OffsetLog.add_heartbeat, list[int]()

    def dies(log: OffsetLog, batch: int, content: bytes) -> None:
        if added:
            raise SystemExit
        add(log, batch, content)
        added.append(batch)

    with monkeypatch.context() as patch:
        patch.setattr(OffsetLog, "add_heartbeat", dies)
        with pytest.raises(SystemExit):
            world.in_penstock(import_state=True)
    assert added == [0]
    Path(world.location, "offsets", ".0.crc").unlink()  # as if it had died before this was written
    world.in_penstock(import_state=True)
    fired = world.rows

    theirs = World(spark, tmp_path)
    theirs.location = str(tmp_path / "theirs")
    spark.sql("select 'other' user, 1L id").write.mode("append").parquet(str(tmp_path / "in"))
    theirs.in_pyspark()  # which fires nothing behind a start until there are rows
    assert len(fired) == 5
    assert sorted(fired, key=str) == sorted((each for each in theirs.rows if each[0].user != "other"), key=str)


def test_another_processor_is_refused_and_may_begin_without_the_state(spark: SparkSession, tmp_path: Path) -> None:
    world = World(spark, tmp_path)
    world.feed(0, 20)
    world.in_pyspark()
    world.feed(20, 40)
    with pytest.raises(IncompatibleError, match="has the state variable"):
        world.in_penstock(Other(), import_state=True)
    world.in_penstock(begin_at="here")
    world.check(0, 40, 1, waiting=0)


def test_pyspark_can_continue_until_penstock_has_had_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """With its operator's metadata under the old name. Afterwards Penstock refuses its older state."""
    world = World(spark, tmp_path)
    world.feed(0, 20)
    world.in_pyspark()
    plan = world.writer(import_state=True)._plan
    assert plan.takeover is not None
    plan.takeover.run(spark, world.location, plan.settings(), 2)
    log = OffsetLog(spark, world.location)
    assert prepare_heartbeat(log, timed=True, continues=lambda: True)
    assert prepare_heartbeat(log, timed=False, continues=lambda: False), "Spark could not start without it any more"
    world.feed(20, 40)
    with pytest.raises(StreamingQueryException, match="sources in the checkpoint offsets"):
        world.in_pyspark()
    put_back(world)
    world.in_pyspark()
    world.check(20, 40, 1, waiting=4)
    world.feed(40, 50)
    for imports in (True, False):
        with pytest.raises(IncompatibleError):
            world.in_penstock(import_state=imports)


def test_pyspark_cannot_continue_behind_penstock_at_the_old_location(spark: SparkSession, tmp_path: Path) -> None:
    world = World(spark, tmp_path)
    world.feed(0, 20)
    world.in_pyspark()
    world.feed(20, 40)
    world.in_penstock(import_state=True)
    world.feed(40, 50)
    for number in range(2):
        if number == 1:
            put_back(world)
        with pytest.raises(StreamingQueryException):
            world.in_pyspark()
        assert world.rows == [], "with no state, or with old state"


def put_back(world: World) -> None:
    """Let Spark know of its operator again, and of no heartbeat."""
    for file in Path(world.location, "offsets").glob("[0-9]*"):
        file.write_text(file.read_text().removesuffix('\n{"penstock.heartbeat":-1}'))
        file.with_name(f".{file.name}.crc").unlink()
    operator = world.folder / "location" / "state" / "0"
    (operator / "_metadata.until-0").rename(operator / "_metadata")


class Counts(StatefulProcessor):
    """Counts rows; begins with a count of initial state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n LONG, last LONG")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: N802, N803
        self.count.update((initialState.n, initialState.last))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        ids = [row.id for row in rows]
        n, last = self.count.get() or (0, -1)
        self.count.update((n + len(ids), max(last, *ids)))
        yield Row(user=key[0], n=n + len(ids), last=max(last, *ids))

    def close(self) -> None:
        pass


def test_the_way_back_is_a_new_query_with_the_state_as_initial_state(spark: SparkSession, tmp_path: Path) -> None:
    first, second = World(spark, tmp_path), World(spark, tmp_path / "second")
    output = "user STRING, n LONG, last LONG"

    def in_pyspark(world: World, initial: Any = None) -> None:
        made = world.source.groupBy("user").transformWithState(Counts(), output, "Update", "None", initial)
        world._run(made.writeStream.outputMode("update").foreachBatch(world._handle))

    first.feed(0, 20)
    in_pyspark(first)
    first.feed(20, 40)
    root = str(tmp_path / "root")
    made = pss.transform_with_state(
        first.source, processor=Counts(), key="user", output=output, root=root, import_state=True
    )
    first._run(made.for_each_batch(first._handle))
    second.feed(40, 50)
    in_pyspark(second, pss.read_state(spark, root, "count").selectExpr("key.user", "value.*").groupBy("user"))
    wanted = {f"u{n}" if n else None: (10, 45 + n) for n in range(5)}
    assert {row.user: (row.n, row.last) for row, _ in second.rows} == wanted
