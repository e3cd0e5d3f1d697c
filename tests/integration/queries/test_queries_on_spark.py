"""Queries with a job inside: what handlers and processors may do, stops, and states that do not fit the query."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkConf
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock.spark as pss
from penstock import admin
from penstock.errors import ConfigError
from tests.support.faults.plan import Fault, Faults
from tests.support.jobs.fault_jobs import faulty
from tests.support.jobs.home import wait_until
from tests.support.jobs.query_home import QueryHome
from tests.support.oracles.counted_visits import OUTPUT, CountVisits
from tests.support.processes.inspection import containers_of

pytestmark = pytest.mark.spark


@dataclass
class World:
    """One query: a file of rows for each batch, and the rows that the handler got."""

    spark: SparkSession
    folder: Path
    got: dict[int, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir()
        self.faults = Faults(self.folder / "faults")

    def publish(self, *users: str) -> None:
        number = len(list((self.folder / "in").iterdir()))
        part = self.folder / "part"
        pq.write_table(pa.table({"user": list(users)}), part)
        os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first
        part.replace(self.folder / "in" / f"{number:03}.parquet")

    def save(self) -> Path:
        """A copy of the checkpoint location."""
        return Path(shutil.copytree(self.folder / "checkpoint", self.folder / "saved"))

    def set_back(self, saved: Path) -> None:
        """Let the checkpoint location be as it was."""
        shutil.rmtree(self.folder / "checkpoint")
        shutil.copytree(saved, self.folder / "checkpoint")

    def start(self, handler: Callable[[DataFrame, int], object] | None = None, **changes: Any) -> StreamingQuery:
        """Start the query. `changes`: other arguments; `checkpoint` is the name of the checkpoint location, `columns`
        are expressions that make those of the input, `lease_ms` is the lease of the job."""
        checkpoint, columns = changes.pop("checkpoint", "checkpoint"), changes.pop("columns", ["*"])
        lease_ms = changes.pop("lease_ms", 1500)
        trigger = changes.pop("trigger", {"availableNow": True})
        events = self.spark.readStream.schema("user STRING").option("maxFilesPerTrigger", 1)
        chosen = {"key": "user", "root": str(self.folder / "root"), "name": "visits", "output": OUTPUT, **changes}
        return (
            pss.transform_with_state(
                self.through_worker(events.parquet(str(self.folder / "in")).selectExpr(*columns)),
                processor=CountVisits(self.faults),
                config={"job.lease.ms": lease_ms, "stores.backup.factories": faulty("changelog-files")},
                **chosen,
            )
            .for_each_batch(handler or self.keep)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(**trigger)
            .start()
        )

    def through_worker(self, rows: DataFrame, point: str = "source") -> DataFrame:
        """The same rows, through a Python worker of Spark that comes to a point."""
        faults = self.faults

        def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                faults.at(point)
                yield batch

        return rows.mapInArrow(same, rows.schema)

    def keep(self, rows: DataFrame, batch: int) -> None:
        """A handler that keeps what it gets."""
        self.got[batch] = sorted(rows.collect())

    def refused(self, **changes: Any) -> str:
        """The error of a query that may not start."""
        with pytest.raises(StreamingQueryException) as raised:
            self.start(**changes).awaitTermination()
        return str(raised.value)

    def containers(self) -> list[psutil.Process]:
        """The containers of this process."""
        return [p for p in psutil.Process().children(recursive=True) if _is_container(p)]

    def registers(self) -> set[Path]:
        """Penstock's files in Spark's scratch folder: lists of containers, with a lock for each."""
        folders = self.spark.sparkContext.range(1).map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).first()
        return {path for folder in folders.split(",") for path in Path(folder).glob("penstock-*")}

    def verify(self, *files: list[str]) -> None:
        """The rows of the handler equal a plain computation, and each row knows the one before."""
        visits: Counter[str] = Counter()
        last: dict[str, str] = {}
        for number, users in enumerate(files):
            visits += (added := Counter(users))
            assert [(row.user, row.added, row.visits, row.before) for row in self.got[number]] == [
                (user, added[user], visits[user], last.get(user)) for user in sorted(added)
            ]
            last |= {row.user: row.token for row in self.got[number]}


def _is_container(process: psutil.Process) -> bool:
    try:
        return "penstock.container" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


SETTINGS = {
    "spark.sql.caseSensitive": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
"""Names of columns may differ in case only, Spark's own exchanges have one partition, and there is a time zone."""


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[None]:
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    yield
    for key in SETTINGS:
        spark.conf.unset(key)


@pytest.mark.usefixtures("settings")
@pytest.mark.slow
@pytest.mark.parametrize("all_fail", [False, True])
def test_a_processor_and_handlers_that_fail_get_the_same_rows_again(world: World, all_fail: bool) -> None:
    seen: list[list[Any]] = []

    def fails(rows: DataFrame, batch: int) -> None:
        first, second = sorted(rows.collect()), sorted(rows.collect())
        assert first == second, "an output may be used twice"
        seen.append(first)
        raise ValueError("the sink is away")

    columns: dict[str, Any] = {"columns": ["upper(user) AS user", "user AS USER"], "key": "USER"}
    world.publish("a", "b", "a")
    if all_fail:
        world.faults.plan(Fault("raises", "processor", "fail"))
        said = world.refused(**columns)
        assert "injected: `raises` is final" in said
        assert "handleInputRows" in said
        assert "'a'" in said
        assert "run_loop.py" not in said, "the traceback is the processor's"
        with pytest.raises(StreamingQueryException, match="the handler of for_each_batch returned a generator, which"):
            world.start(lambda rows, batch: (row for row in rows.collect()), **columns).awaitTermination()
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        world.start(fails, **columns).awaitTermination()
    if all_fail:
        said = world.refused(output=f"{OUTPUT}, n LONG", **columns)
        assert "other columns than when the last batch was processed" in said
    world.publish("b")
    world.start(**columns).awaitTermination()
    assert [world.got[0]] == seen
    world.verify(["a", "b", "a"], ["b"])


@pytest.mark.slow
def test_a_copy_that_is_made_a_separate_job_gets_the_rows_of_its_last_batch(world: World, tmp_path: Path) -> None:
    """The handler had not finished with them when everything was copied. The original gets them too."""

    def fails(rows: DataFrame, batch: int) -> None:
        raise ValueError("the sink is away")

    world.publish("a", "b", "a")
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        world.start(fails).awaitTermination()
    root = str(shutil.copytree(tmp_path / "root", tmp_path / "root-copy"))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "checkpoint-copy")
    refused = world.refused(root=root, checkpoint="checkpoint-copy")
    assert f"penstock job adopt visits-1 -c job.root=file://{root}`" in refused, refused
    with admin.open_job("visits", overrides={"job.root": root}) as job:
        admin.adopt(job)
    world.publish("b")
    for each, checkpoint in ((root, "checkpoint-copy"), (str(tmp_path / "root"), "checkpoint")):
        world.start(root=each, checkpoint=checkpoint).awaitTermination()
        world.verify(["a", "b", "a"], ["b"])
        world.got.clear()


@pytest.mark.slow
def test_a_state_that_does_not_fit_the_query_is_refused(world: World) -> None:
    world.publish("a")
    world.start(lambda rows, batch: None).awaitTermination()
    world.publish("a")
    root, saved = world.folder / "root", world.folder / "saved"
    assert "belongs to the query" in world.refused(checkpoint="another")
    assert "has no state of job renamed" in world.refused(name="renamed")
    assert "partitions=7" in world.refused(partitions=7)
    root.rename(saved)
    assert "has no state of job visits" in world.refused()
    shutil.rmtree(root, ignore_errors=True)
    saved.rename(root)
    world.start().awaitTermination()
    assert [(row.user, row.visits) for row in world.got[1]] == [("a", 2)]


@pytest.mark.slow
def test_the_state_goes_back_with_the_checkpoint_location(world: World) -> None:
    """Spark then plans batches of the same numbers, which need not have the same rows."""
    world.publish("a")
    world.publish("b", "a")
    world.start().awaitTermination()
    saved = world.save()
    world.publish("c", "a")
    world.start().awaitTermination()
    world.set_back(saved)
    said = world.refused()
    assert "the state of job visits-1 is at batch 2, and the query asks for batch 2" in said
    assert 'which is of batch 1, with `from_checkpoint="matching"`' in said

    world.faults.plan(Fault("raises", "processor", "fail"))
    assert "is final" in world.refused(from_checkpoint="matching"), "it ended behind its start checkpoint"
    (saved / "commits" / "1").unlink()  # a copy from before batch 1 was committed
    (saved / "commits" / ".1.crc").unlink()
    world.set_back(saved)
    assert "is at batch 1, and the query asks for batch 1" in world.refused(), "it has not the output of batch 1"
    world.publish("a")
    before = dict(world.got)
    world.start(from_checkpoint="matching").awaitTermination()
    assert [number for number, rows in before.items() if world.got[number] != rows] == [1, 2], "they have run again"

    records = sorted((world.folder / "root" / "visits-1" / "checkpoints").glob("*.json"))
    records[-1].write_bytes(b"{}")  # the run's last one, behind that of batch 3
    world.publish("c")
    assert 'Inside a query `from_checkpoint="matching"` does' in world.refused()
    world.start(from_checkpoint="matching").awaitTermination()
    world.verify(["a"], ["b", "a"], ["c", "a"], ["a"], ["c"])


@pytest.mark.slow
def test_rows_that_a_handler_keeps_are_gone_behind_the_next_batch(world: World) -> None:
    """If they are many: few are in the driver."""
    kept: dict[int, DataFrame] = {}
    world.publish(*(f"u{number}" for number in range(30_000)))
    world.publish("a")

    def keeps(rows: DataFrame, batch: int) -> None:
        kept[batch] = rows
        assert rows.count() == (1 if batch else 30_000)

    world.start(keeps).awaitTermination()
    with pytest.raises(PythonException, match="the rows of batch 0 in output `output` are gone"):
        kept[0].collect()
    assert [row.user for row in kept[1].collect()] == ["a"]


def test_a_session_that_may_run_a_task_twice_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    given = SparkConf(loadDefaults=False).setAll([("spark.speculation", "true")])
    monkeypatch.setattr(world.spark.sparkContext, "getConf", lambda: given)
    with pytest.raises(ConfigError, match=r"`spark.speculation` is true.*Set it to false"):
        world.start()


@pytest.mark.slow
def test_a_session_that_uses_no_worker_twice(tmp_path: Path) -> None:
    """Nor a daemon that forks them."""
    home = QueryHome(tmp_path, dict.fromkeys(("spark.python.worker.reuse", "spark.python.use.daemon"), "false"))
    for _ in range(2):
        home.publish()
    assert home.run() == 0
    home.verify()


def test_arguments_that_are_wrong(world: World) -> None:
    events = world.spark.readStream.schema("user STRING").parquet(str(world.folder / "in"))
    given = {"processor": CountVisits(), "key": "user", "output": OUTPUT, "root": str(world.folder / "root")}

    def refused(problem: str, df: Any = events, **wrong: Any) -> None:
        with pytest.raises(ConfigError, match=problem):
            pss.transform_with_state(df, **{**given, **wrong}).for_each_batch(world.keep).start()

    refused("the query has no checkpoint location")
    refused("takes the DataFrame before `groupBy`", events.groupBy("user"))
    refused(r"is a class: give an object, CountVisits\(\)", processor=CountVisits)
    refused("takes names of columns", key=events.user)
    refused("takes names of columns", key=[events.user])
    refused("has no column `usr`", key="usr")
    refused("Spark cannot read this schema: .*Syntax error", output="user STRING visits LONG")
    refused("`spark.executor.cores` is a key of Spark", config={"spark.executor.cores": 2})


@pytest.mark.slow
def test_a_stop_while_containers_start_leaves_none(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    of_others = world.registers()
    executor = psutil.Process().children(recursive=True)
    world.publish("a")
    query = world.start(trigger={"processingTime": "0 seconds"})
    wait_until(lambda: containers_of(executor), "the first container")
    query.stop()
    wait_until(lambda: not containers_of(executor), "the end of the containers")
    assert not world.registers() - of_others  # those of queries before may go meanwhile
    assert "StackOverflowError" not in capfd.readouterr().err
    world.start().awaitTermination()
    world.verify(["a"])


@pytest.mark.slow
def test_a_stop_ends_a_batch_at_once(world: World) -> None:
    """While the processor waits in a container, and from within the handler."""
    world.publish("a", "b")
    world.faults.plan(Fault("blocks", "processor", "block"))
    of_others = world.registers()
    query = world.start()
    wait_until(lambda: world.faults.is_reached("blocks"), "the processor")
    assert len(world.registers() - of_others) == 2
    query.stop()
    assert query.exception() is None
    world.faults.open()
    wait_until(lambda: not world.containers(), "the end of the containers")
    names = ("penstock-query", "beats-")
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith(names)], "threads")
    assert not world.registers() - of_others

    def stops(rows: DataFrame, batch: int) -> None:
        world.keep(rows, batch)
        again.stop()

    again = world.start(lambda rows, batch: stops(rows, batch))
    again.awaitTermination()
    first = world.got[0]
    world.start().awaitTermination()
    assert world.got[0] == first
    world.verify(["a", "b"])


@pytest.mark.slow
@pytest.mark.parametrize("point", ["init", "source"])
def test_a_stop_ends_a_step_at_once(world: World, point: str) -> None:
    """While containers start, and while rows are read."""
    world.publish("a", "b")
    world.faults.plan(Fault("blocks", point, "block"))
    query = world.start()
    wait_until(lambda: world.faults.is_reached("blocks"), "the step")
    query.stop()
    assert query.exception() is None
    world.faults.plan()
    world.faults.open()
    wait_until(lambda: not world.containers(), "the end of the containers")
    world.start().awaitTermination()
    world.verify(["a", "b"])


@pytest.mark.slow
def test_a_stop_ends_the_start_of_containers(world: World) -> None:
    world.publish("a", "b")
    query = world.start()
    wait_until(world.containers, "a container that starts")
    query.stop()
    assert query.exception() is None
    assert world.got == {}
    wait_until(lambda: not world.containers(), "the end of the containers")
    world.start().awaitTermination()
    world.verify(["a", "b"])


@pytest.mark.slow
def test_a_stop_ends_the_job_of_a_handler(world: World) -> None:
    world.publish("a", "b")
    world.faults.plan(Fault("blocks", "sink", "block"))

    def collects(rows: DataFrame, batch: int) -> None:
        world.through_worker(rows, "sink").collect()

    query = world.start(collects)
    wait_until(lambda: world.faults.is_reached("blocks"), "the handler")
    query.stop()
    assert query.exception() is None
    world.faults.open()
    world.start().awaitTermination()
    world.verify(["a", "b"])


@pytest.mark.slow
def test_killed_processes_are_replaced_within_a_batch(world: World) -> None:
    """A worker of Spark, a container while it processes, and one in a commit."""
    world.publish("a", "b", "c")
    world.publish("a", "b", "d")
    world.publish("a", "c", "d")
    world.faults.plan(
        Fault("worker", "source", "kill"),
        Fault("container", "processor", "kill", skip=4),
        Fault("commit", "upload.middle", "kill", skip=3),
    )
    world.start().awaitTermination()
    assert not world.faults.left()
    world.verify(["a", "b", "c"], ["a", "b", "d"], ["a", "c", "d"])


@pytest.mark.slow
def test_a_query_starts_again_though_its_last_run_is_ending(world: World) -> None:
    """Spark's own handle does not wait until the job was given back, nor does a second start with the same location."""
    world.publish("a")
    query = world.start(trigger={"processingTime": "0 seconds"})
    wait_until(lambda: 0 in world.got, "the first batch")
    running = world.spark.streams.get(query.id)
    assert running is not None
    running.stop()
    world.publish("a")
    world.start(trigger={"processingTime": "0 seconds"})
    wait_until(lambda: 1 in world.got, "the second batch")
    world.publish("a")
    world.start().awaitTermination()
    world.verify(["a"], ["a"], ["a"])


@pytest.mark.slow
def test_of_two_queries_with_the_same_root_one_runs(world: World) -> None:
    """Started at the same moment, each with another checkpoint location."""
    world.publish("a", "b")
    refused = threading.Event()

    def waits(rows: DataFrame, batch: int) -> None:
        world.keep(rows, batch)
        wait_until(refused.is_set, "the end of the other query")

    # With a short lease, a standstill of the machine would look like the death of the other query.
    queries = [world.start(waits, checkpoint=name, lease_ms=10_000) for name in ("one", "other")]
    wait_until(lambda: not all(query.isActive for query in queries), "the end of one query")
    loser, winner = sorted(queries, key=lambda query: query.isActive)
    with pytest.raises(StreamingQueryException, match=r"this job is run by|belongs to the query"):
        loser.awaitTermination()
    assert winner.isActive
    refused.set()
    winner.awaitTermination()
    world.verify(["a", "b"])


def test_stops_in_a_commit_and_by_penstock_stop(world: World) -> None:
    world.publish("a", "b")
    world.faults.plan(Fault("blocks", "upload.middle", "block"))
    query = world.start()
    wait_until(lambda: world.faults.is_reached("blocks"), "the commit")
    query.stop()
    assert query.exception() is None
    world.faults.plan()
    world.faults.open()
    wait_until(lambda: not world.containers(), "the end of the containers")

    handed = threading.Event()

    def waits(rows: DataFrame, batch: int) -> None:
        world.keep(rows, batch)
        handed.set()
        wait_until(lambda: not again.isActive, "the end of the query")

    again = world.start(waits)
    wait_until(handed.is_set, "the handler")
    with admin.open_job("visits", overrides={"job.root": str(world.folder / "root")}) as job:
        found = admin.stop(job, timeout_s=120)
    assert (found.status, again.exception()) == ("stopped", None)
    wait_until(lambda: not world.containers(), "the end of the containers")
    world.start().awaitTermination()
    world.verify(["a", "b"])
