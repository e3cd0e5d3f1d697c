"""Applications inside streaming queries of a real Spark, compared with plain Python."""

from __future__ import annotations

import datetime
import os
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass
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
from penstock.admin import open_job
from penstock.admin.job.status import metrics_of
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.local import LocalSystem
from tests.support.jobs.home import wait_until
from tests.support.streams.outboxes import read_all
from tests.support.tools.places import ROOT

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_500
PATIENCE_S = 240
COLUMNS = "user STRING, page STRING, kind STRING, at TIMESTAMP"


@dataclass(frozen=True)
class Event:
    user: str
    page: str
    kind: str
    time_ms: int


def events(folder: Path, number: int, count: int = 60) -> list[Event]:
    """Write another file, whose events come after those of the ones before."""
    folder.mkdir(exist_ok=True)
    chosen = random.Random(number)
    made = [
        Event(
            f"u{chosen.randrange(4)}", f"p{n}", chosen.choice(("click", "view")), START_MS + (number * count + n) * 1000
        )
        for n in range(count)
    ]
    columns = {
        "user": pa.array([each.user for each in made]),
        "page": pa.array([each.page for each in made]),
        "kind": pa.array([each.kind for each in made]),
        "at": pa.array([each.time_ms * 1000 for each in made], pa.timestamp("us", "UTC")),
    }
    path = folder / f"{number}.parquet"
    pq.write_table(pa.table(columns), path)
    os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return made


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.mark.slow
def test_the_example_of_the_page_with_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "pyspark-applications.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lake, source = tmp_path / "lake", tmp_path / "source"
    happened: list[list[Event]] = []
    for numbers in ([0], [1, 2]):
        happened += [events(source, number) for number in numbers]
        found: dict[str, Any] = {
            "__name__": "__main__",
            "events": stream(spark, source),
            "root": str(tmp_path / "root"),
            "location": str(tmp_path / "location"),
            "lake": str(lake),
        }
        for block in blocks:
            exec(compile(block, "docs/pyspark-applications.md", "exec"), found)
            assert found["query"].awaitTermination(240)

    def rows(name: str) -> list[tuple[Any, ...]]:
        frame = spark.read.parquet(str(lake / name))
        return sorted(tuple(row)[:-1] for row in frame.collect())

    everything = [each for batch in happened for each in batch]
    clicks = [each for each in everything if each.kind == "click"]
    seen = Counter[str]()
    totals = []
    for click in clicks:
        seen[click.user] += 1
        totals.append((click.user, seen[click.user], click.page))
    assert rows("totals") == sorted(totals)
    views = [each for each in everything if each.kind == "view"]
    pairs = [(c.user, c.page, v.page) for c in clicks for v in views if near(c, v)]
    assert pairs
    assert rows("pairs") == sorted(pairs)
    watermark = max(each.time_ms for each in clicks) - 10_000
    minutes = Counter((each.user, each.time_ms // 60_000 * 60_000) for each in clicks)
    closed = sorted((user, minute, n) for (user, minute), n in minutes.items() if minute + 60_000 <= watermark)
    assert closed
    assert rows("minutes") == closed
    newest = {row[0]: row for row in rows("activity")}
    counted = Counter(view.user for view in views)
    latest = {view.user: local_time(view) for view in views}
    assert newest == {user: (user, n, latest[user]) for user, n in counted.items()}


class Reminds(ps.StreamTask):
    """Has a timer in processing time for each user."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.context.schedule(envelope.key, self.context.batch_time_ms + 500, domain="processing")

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value={"what": "timer", "user": timer.key, "n": 1})


def timely() -> ps.StreamApplication:
    """Timers, windows, windows of both inputs, and windows behind windows."""
    app = ps.StreamApplication("timely")
    found = pss.Rows("what STRING, user STRING, n LONG")

    def by_user(stream: Any) -> Any:
        return stream.partition_by(lambda row: row.user)

    def counts(stream: Any, what: str, minutes: int, **aggregates: Any) -> Any:
        window = ps.Windows.tumbling(minutes * 60_000, aggregates=aggregates or {"n": ps.Count()})
        panes = stream.window(window, id=what)
        return panes.map(lambda pane: {"what": what, "user": pane.key, "n": pane.message["n"]})

    clicks = by_user(app.input("spark.clicks", value=pss.Rows()))
    views = by_user(app.input("spark.views", value=pss.Rows()))
    minutes = counts(clicks, "minute", 1)
    longer = counts(minutes, "longer", 2, n=ps.Sum(lambda row: row["n"]))
    both = counts(clicks.merge(views), "both", 1)
    timers = clicks.process(Reminds, timers=ps.String(), value=found)
    minutes.merge(longer, both, timers).send_to(app.output("spark.found", value=found))
    return app


@pytest.mark.slow
def test_what_is_due_needs_no_rows_and_an_idle_input_holds_nothing_open(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    source = tmp_path / "source"
    clicks = [each for number in range(4) for each in events(source, number) if each.kind == "click"]
    found: dict[int, list[tuple[Any, ...]]] = {}

    def handle(outputs: Any, batch: int) -> None:
        found[batch] = [tuple(row) for row in outputs["found"].collect()]

    def start(**trigger: Any) -> Any:
        return (
            pss.run_application(
                timely(),
                stream(spark, source).withWatermark("at", "10 seconds"),
                inputs=lambda df: {"clicks": df.where("kind = 'click'"), "views": df.where("kind = 'no view'")},
                root=str(tmp_path / "root"),
                config={"streams.spark.views.idle.ms": 1_000},
            )
            .for_each_batch(handle)
            .option("checkpointLocation", str(tmp_path / "location"))
            .trigger(**trigger)
            .start()
        )

    def panes(minutes: int, what: str) -> list[tuple[Any, ...]]:
        """The windows that the watermark of the clicks has closed."""
        size, end = minutes * 60_000, max(each.time_ms for each in clicks) - 10_000
        counted = Counter((each.user, each.time_ms // size) for each in clicks)
        return sorted((what, user, n) for (user, number), n in counted.items() if (number + 1) * size <= end)

    def came(what: str) -> list[tuple[Any, ...]]:
        return sorted(row for rows in list(found.values()) for row in rows if row[0] == what)

    users = {each.user for each in clicks}
    expected = {"minute": panes(1, "minute"), "longer": panes(2, "longer"), "both": panes(1, "both")}
    assert all(expected.values())

    def is_complete() -> bool:
        return {row[1] for row in came("timer")} == users and all(len(came(w)) >= len(expected[w]) for w in expected)

    query = start(processingTime="0 seconds")
    try:
        wait_until(lambda: is_complete() or not query.isActive, "everything that is due", PATIENCE_S)
    finally:
        query.stop()
    assert {what: came(what) for what in expected} == expected
    clicks += [each for each in events(source, 4) if each.kind == "click"]
    query = start(availableNow=True)
    assert query.awaitTermination(PATIENCE_S), "nothing more is due"
    expected = {"minute": panes(1, "minute"), "longer": panes(2, "longer")}
    assert {what: came(what) for what in expected} == expected


def local_time(event: Event) -> datetime.datetime:
    """As Spark shows it."""
    return datetime.datetime.fromtimestamp(event.time_ms / 1000)  # noqa: DTZ006


def near(click: Event, view: Event) -> bool:
    return click.user == view.user and abs(click.time_ms - view.time_ms) <= 2_000


def enriched(pages: str) -> ps.StreamApplication:
    """Rows with names of a side input and sizes of a pushed table, to a DataFrame and to two other outputs."""
    app = ps.StreamApplication("enriched")
    pushed = ps.PushedTable(pages, key="page", value="size")
    sizes = app.table("sizes", key=ps.String(), value=ps.Long(), pushed=pushed)
    names = app.table("names", value=ps.String(), side_inputs=["local.names"], broadcast=True)
    users = app.input("spark.events", value=pss.Rows(COLUMNS)).partition_by(lambda row: row.user)
    named = users.join_table(names, lambda row, name: {"page": row.page, "name": name, "at": row.at})
    found = named.map(lambda row: row["page"])
    named.send_to(app.output("spark.named", value=pss.Rows("name STRING, page STRING, at TIMESTAMP")))
    by_page = found.partition_by(lambda page: page, key=ps.String(), value=ps.String())
    sized = by_page.join_table(sizes, lambda page, size: f"{page} {size}")
    sized.send_to(app.output("local.once", value=ps.String()))
    sized.send_to(app.output("local.least", value=ps.String()))
    rows = sized.map(lambda text: {"page": text.split()[0], "size": int(text.split()[1]), "days": {"a": "2024-05-01"}})
    rows.send_to(app.output("lake.sizes", value=ps.Json()))
    return app


def test_side_inputs_pushed_tables_and_other_outputs(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    streams = LocalSystem("local", str(tmp_path / "streams"))
    for name in ("names", "once", "least"):
        streams.admin().create_stream(name, 1)
    names = {f"u{n}": f"name {n}" for n in range(4)}
    entries = [(5, user.encode(), name.encode()) for user, name in names.items()]
    streams.writer(None).append(SystemStreamPartition("local", "names", 0), entries)
    happened = events(tmp_path / "source", 0, 20)
    pages = [(each.page, 100 + number) for number, each in enumerate(happened)]
    schema = "page STRING, size LONG, days MAP<STRING, DATE>"
    spark.createDataFrame(pages, "page STRING, size LONG").write.parquet(str(tmp_path / "pages"))
    batches: list[list[tuple[Any, ...]]] = []

    def handle(outputs: Any, batch: int) -> None:
        assert outputs["named"].count() == len(happened)
        batches.append(sorted(tuple(row) for row in outputs["named"].selectExpr("page", "name", "at").collect()))

    query = (
        pss.run_application(
            enriched(str(tmp_path / "pages")),
            stream(spark, tmp_path / "source"),
            root=str(tmp_path / "root"),
            partitions=2,
            config={
                "systems.local.path": str(tmp_path / "streams"),
                "streams.local.once.output.guarantee": "exactly-once",
                "streams.lake.sizes.output.guarantee": "exactly-once",
                "systems.lake.samza.factory": "files",
                "systems.lake.folder": str(tmp_path / "lake"),
                "systems.lake.format": "json",
                "systems.lake.schema": schema,
            },
        )
        .for_each_batch(handle)
        .option("checkpointLocation", str(tmp_path / "location"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    local = [local_time(each) for each in happened]
    assert batches == [sorted((e.page, names[e.user], at) for e, at in zip(happened, local, strict=True))]
    for name in ("once", "least"):
        found = [(value or b"").decode() for _, _, value, *_ in read_all(streams, name)[0]]
        assert sorted(found) == sorted(f"{page} {size}" for page, size in pages)
    with open_job("enriched", overrides={"job.root": str(tmp_path / "root")}) as job:
        shown = metrics_of(job).items()
    published = sum(int(getattr(value, "count", 0)) for key, value in shown if key.name == "published-messages")
    assert published == 3 * len(happened), "to the DataFrame, the stream and the folder"
    lines = spark.read.schema(schema).json(str(tmp_path / "lake" / "sizes"))
    day = datetime.date(2024, 5, 1)
    assert sorted((row.page, row.size, row.days) for row in lines.collect()) == [
        (*each, {"a": day}) for each in sorted(pages)
    ]


def stamped(stamp: Any) -> ps.StreamApplication:
    """Two inputs of different columns, an output that differs in every run, and one that gets nothing."""
    app = ps.StreamApplication("stamped")
    clicks = app.input("spark.pages", value=pss.Rows("page STRING, user STRING"))
    rows = clicks.map(lambda row: {"stamp": stamp(), "page": row.page})
    rows.send_to(app.output("spark.stamped", value=pss.Rows("page STRING, stamp DOUBLE")))
    kinds = app.input("spark.kinds", value=pss.Rows())
    kinds.map(lambda row: (row.n + 1, row.kind)).send_to(
        app.output("spark.kinds", value=pss.Rows("n LONG, kind STRING"))
    )
    app.output("spark.nothing", value=pss.Rows("n LONG"))
    return app


@pytest.mark.slow
def test_the_handler_gets_the_same_rows_until_it_returns_and_misfits_named(spark: SparkSession, tmp_path: Path) -> None:
    """The number of tasks is that of the first start, which is not that of this machine."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    came: list[tuple[int, dict[str, list[Any]]]] = []

    def run(stamp: Any, problem: str | None = None, partitions: int | None = None) -> None:
        def handle(outputs: Any, batch: int) -> None:
            came.append((batch, {name: sorted(map(tuple, df.collect())) for name, df in outputs.items()}))
            assert len(came) > 2, "the sink is away"

        query = (
            pss.run_application(
                stamped(stamp),
                stream(spark, tmp_path / "source"),
                inputs=lambda df: {
                    "kinds": df.selectExpr("kind", "length(page) AS n"),
                    "pages": df.select("page", "user"),
                },
                root=str(tmp_path / "root"),
                partitions=partitions,
            )
            .for_each_batch(handle)
            .option("checkpointLocation", str(tmp_path / "location"))
            .trigger(availableNow=True)
            .start()
        )
        if problem is None:
            assert query.awaitTermination(PATIENCE_S)
            return
        with pytest.raises(StreamingQueryException, match=problem):
            query.awaitTermination(PATIENCE_S)

    happened = events(tmp_path / "source", 0, 20)
    for partitions in (3, None):
        run(random.random, "the sink is away", partitions)
    run(random.random)
    assert [batch for batch, _ in came] == [0, 0, 0]
    (_, rows), *others = came
    assert all(each == rows for _, each in others), "although every run of the code would make other ones"
    assert [page for page, _ in rows["stamped"]] == sorted(each.page for each in happened)
    assert rows["kinds"] == sorted((len(each.page) + 1, each.kind) for each in happened)
    assert rows["nothing"] == []
    events(tmp_path / "source", 1, 5)
    run(lambda: "noon", r"(?s)spark.stamped.*field `stamp` of type double")
    assert len(came) == 3, "nothing of the batch counts"
    run(random.random)
    assert (came[-1][0], len(came[-1][1]["stamped"])) == (1, 5)


class Counts(ps.StreamTask):
    """Counts the events of a user."""

    def init(self, context: Any) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        n = self.counts[envelope.key] = self.counts.get(envelope.key, 0) + 1
        collector.emit(key=envelope.key, value=(envelope.key, n))


@pytest.mark.slow
def test_an_application_continues_a_query_that_had_none(spark: SparkSession, tmp_path: Path) -> None:
    """It keeps the checkpoint location: what the query has read is not read again. A start that is refused changes
    nothing for Spark. Event time goes on, also for windows behind windows."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    source, location = tmp_path / "source", str(tmp_path / "location")
    app = ps.StreamApplication("counts")
    app.store("counts", value=ps.Long())
    rows = pss.Rows("user STRING, n LONG")
    users = app.input("spark.users", value=pss.Rows()).partition_by(lambda row: row.user)
    users.process(Counts, stores=["counts"], value=rows).send_to(app.output("spark.counts", value=rows))
    short = users.window(ps.Windows.tumbling(10_000, aggregates={"n": ps.Count()}), id="short")
    counted = short.map(lambda pane: pane.message["n"]).partition_by(lambda n: "all", value=ps.Long())
    long = counted.window(ps.Windows.tumbling(20_000, aggregates={"n": ps.Sum(lambda n: n)}), id="long")
    spans = long.map(lambda pane: {"user": str(pane.window.start_ms), "n": pane.message["n"]})
    spans.send_to(app.output("spark.spans", value=rows))
    found: dict[str, list[tuple[str, int]]] = {"counts": [], "spans": []}
    batches: list[int] = []

    def timed() -> DataFrame:
        return stream(spark, source).withWatermark("at", "10 seconds")

    def start(writer: Any) -> Any:
        return writer.option("checkpointLocation", location).trigger(availableNow=True).start()

    def handle(out: Any, batch: int) -> None:
        batches.append(batch)
        for name, those in found.items():
            those += map(tuple, out[name].collect())

    def run(**arguments: Any) -> None:
        stream_of = pss.run_application(app, timed(), root=str(tmp_path / "root"), **arguments)
        assert start(stream_of.for_each_batch(handle)).awaitTermination(PATIENCE_S)

    events(source, 0)
    assert start(timed().writeStream.foreachBatch(lambda *_: None)).awaitTermination(PATIENCE_S)
    events(source, 1)
    with pytest.raises(StreamingQueryException, match=r'has no state of job counts.*begin_at="here"'):
        run()
    assert start(timed().writeStream.foreachBatch(lambda *_: None)).awaitTermination(PATIENCE_S)
    happened = [events(source, 2)]
    run(begin_at="here")
    for number in (3, 4, 5):
        happened.append(events(source, number))
        run(begin_at="here")  # has no effect any more
    assert batches == list(range(2, 2 + len(batches)))
    wanted, seen, sums = [], Counter[str](), Counter[int]()
    for each in (each for some in happened for each in some):
        seen[each.user] += 1
        wanted.append((each.user, seen[each.user]))
        sums[each.time_ms // 20_000 * 20_000] += 1
    assert sorted(found["counts"]) == sorted(wanted)
    passed = max(each.time_ms for some in happened for each in some) - 10_000
    complete = [(str(start), n) for start, n in sorted(sums.items()) if start + 20_000 <= passed]
    assert complete
    assert sorted(found["spans"]) == complete


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = stream(spark, tmp_path).where("kind = 'click'")

    def refused(problem: str, app: ps.StreamApplication, **arguments: Any) -> None:
        df = arguments.pop("df", source)
        with pytest.raises(ConfigError, match=problem):
            pss.run_application(app, df, root=str(tmp_path), **arguments).for_each_batch(lambda out, batch: None)

    def of(stream: str = "spark.events", **arguments: Any) -> ps.StreamApplication:
        app = ps.StreamApplication("refused")
        app.input(stream, **arguments)
        return app

    rows = pss.Rows()
    refused("takes a streaming DataFrame", of(value=rows), df=spark.range(1))
    refused(r'input `spark.events` is a DataFrame: app.input\("spark.events", value=pss.Rows\(\)\)', of())
    refused("input `local.events`: the inputs of an application inside a query", of("local.events"))
    refused("returns a dict of DataFrames for events, not", of(value=rows), inputs=lambda df: {"clicks": df})
    refused("must count or collect nothing", of(value=rows), inputs=lambda df: {"events": df.limit(df.count())})
    refused("has `user string` as column 1, where `n bigint` is declared", of(value=pss.Rows("n LONG")))
    refused("Spark cannot read this schema", of(value=pss.Rows("n LUNG")))
    refused('begin_at="now": it is "here"', of(value=rows), begin_at="now")
    refused("cannot be configured", of(value=rows), config={"streams.spark.events.samza.offset.default": "oldest"})
    durable = of(value=rows)
    two = of(value=rows)
    two.input("spark.others", value=pss.Rows())
    refused("has the inputs events, others", two)
    both = {"inputs": lambda df: {"events": df, "others": df}, "partitions": 1}
    refused("an application with 2 inputs has at least 2", two, **both)
    durable.input("spark.others", value=pss.Rows()).partition_by(str, through="local.middle")
    refused("has no durable intermediate streams", durable)
