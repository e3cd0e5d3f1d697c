"""Drains of jobs inside streaming queries of a real Spark, compared with plain Python."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
import penstock.spark as pss
from penstock import admin
from penstock.admin import open_job
from penstock.drain.requests import write_drain_notification
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from tests.support.jobs.home import wait_until

pytestmark = pytest.mark.spark

PATIENCE_S = 240
START_S = 1_700_000_000 // 3_600 * 3_600
COLUMNS = "user STRING, at TIMESTAMP"
Event = tuple[str, int]
"""A user and a second."""


def events(folder: Path, number: int, count: int = 50) -> list[Event]:
    """Write another file, whose events come after those of the ones before."""
    folder.mkdir(exist_ok=True)
    made = [(f"u{n % 3}", START_S + number * count + n) for n in range(count)]
    times = pa.array([second * 1_000_000 for _, second in made], pa.timestamp("us", "UTC"))
    table = pa.table({"user": pa.array([user for user, _ in made]), "at": times})
    pq.write_table(table, folder / f"{number}.parquet.new")
    (folder / f"{number}.parquet.new").rename(folder / f"{number}.parquet")
    return made


class Counts(ps.StreamTask):
    """Counts the events of each user, and says so when it drains."""

    def init(self, context: Any) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.counts[envelope.key] = self.counts.get(envelope.key, 0) + 1

    def on_drain(self, collector: Any, coordinator: Any) -> None:
        for user, n in self.counts.all():
            collector.emit(key=user, value={"what": "total", "user": user, "second": 0, "n": n})


def counts(window_s: int, *more: str) -> ps.StreamApplication:
    """Counts of windows, which only time closes, and of everything."""
    app = ps.StreamApplication("counts")
    app.store("counts", key=ps.String(), value=ps.Long())
    rows = pss.Rows(", ".join(("what STRING, user STRING, second LONG, n LONG", *more)))
    users = app.input("spark.users", value=pss.Rows()).partition_by(lambda row: row.user)
    panes = users.window(ps.Windows.tumbling(window_s * 1_000, aggregates={"n": ps.Count()}), id="panes").map(
        lambda pane: {"what": "pane", "user": pane.key, "second": pane.window.start_ms // 1000, "n": pane.message["n"]}
    )
    totals = users.process(Counts, stores=["counts"], value=rows)
    panes.merge(totals).send_to(app.output("spark.found", value=rows))
    return app


class Runs:
    """Runs of one query, and the rows that its handler has got."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark, self.folder = spark, tmp_path
        self.source, self.root = tmp_path / "source", str(tmp_path / "root")
        self.got: dict[int, list[tuple[Any, ...]]] = {}
        self.sink: Callable[[int], None] = lambda batch: None

    def start(self, app: ps.StreamApplication, **trigger: Any) -> Any:
        rows = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(self.source))
        return (
            pss.run_application(app, rows.withWatermark("at", "10 seconds"), root=self.root, partitions=2)
            .for_each_batch(self.handle)
            .option("checkpointLocation", str(self.folder / "location"))
            .trigger(**trigger)
            .start()
        )

    def handle(self, out: Mapping[str, DataFrame], batch: int) -> None:
        rows = [tuple(row) for row in out["found"].collect()]
        assert self.got.setdefault(batch, rows) == rows, "a batch has the same rows however often it is asked for"
        self.sink(batch)

    def rows(self, what: str) -> list[tuple[Any, ...]]:
        return sorted(row[1:4] for rows in list(self.got.values()) for row in rows if row[0] == what)


def panes(happened: list[Event], window_s: int) -> list[tuple[str, int, int]]:
    counted = Counter((user, second // window_s * window_s) for user, second in happened)
    return sorted((user, second, n) for (user, second), n in counted.items())


def totals(happened: list[Event]) -> list[tuple[str, int, int]]:
    return sorted((user, 0, n) for user, n in Counter(user for user, _ in happened).items())


def _rows_in(query: Any) -> int:
    """The rows that the batches of a query have read."""
    return sum(int(each["numInputRows"]) for each in query.recentProgress)


@pytest.mark.slow
@pytest.mark.parametrize("runs_drain", [(False,), (False, True)])
def test_an_idle_query_drains_ends_and_goes_on_with_another_program(
    spark: SparkSession, tmp_path: Path, runs_drain: tuple[bool, ...]
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    runs = Runs(spark, tmp_path)
    first = [each for number in range(2) for each in events(runs.source, number)]
    query = runs.start(counts(60), processingTime="0 seconds")
    try:
        # Not a number of batches: one may come without rows, when a window is due.
        wait_until(lambda: _rows_in(query) == len(first) or not query.isActive, "every file", PATIENCE_S)
        with open_job("counts", overrides={"job.root": runs.root}) as job:
            asked = admin.drain(job, wait=True, timeout_s=PATIENCE_S)
            assert asked.status == "drained"
            status = admin.status(job)
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
    finally:
        query.stop()
    assert status.drain.progress is not None
    assert status.drain.progress.phase == "drained"
    assert runs.rows("pane") == panes(first, 60)
    assert runs.rows("total") == totals(first)
    runs.got.clear()
    second = events(runs.source, 3)
    for number, drains in enumerate(runs_drain):
        if drains:
            with open_job("counts", overrides={"job.root": runs.root}) as job:
                admin.drain(job)  # it was stopped, and its next start goes on
        second += events(runs.source, 4 + number)
        query = runs.start(counts(40), availableNow=True)
        assert query.awaitTermination(PATIENCE_S)
        assert runs.rows("total") == (totals(first + second) if drains else []), "stores stay"
    closed, every = runs.rows("pane"), panes(second, 40)
    assert closed, "no window of the second program is closed"
    assert closed == (every if runs_drain[-1] else [pane for pane in every if pane in closed]), (
        "the first program has handed over what its windows had"
    )


@pytest.mark.slow
def test_the_rows_of_a_drain_reach_the_handler_before_the_next_program(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    runs = Runs(spark, tmp_path)
    happened = events(runs.source, 0)
    write_drain_notification(open_store(runs.root), JobPaths("counts", "1"))  # there is no job yet

    def is_away(batch: int) -> None:
        raise OSError("the sink is away")

    runs.sink = is_away
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        runs.start(counts(60), availableNow=True).awaitTermination(PATIENCE_S)
    events(runs.source, 1)
    runs.sink = lambda batch: None
    with pytest.raises(StreamingQueryException, match="other columns than when the last batch was processed"):
        runs.start(counts(40, "more LONG"), availableNow=True).awaitTermination(PATIENCE_S)
    assert runs.start(counts(40), availableNow=True).awaitTermination(PATIENCE_S)
    assert len(runs.got) > 1
    assert runs.rows("total") == totals(happened), "the run that follows does not drain"
    assert sorted(row[1:4] for row in runs.got[0] if row[0] == "pane") == panes(happened, 60)
