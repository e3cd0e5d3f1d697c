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
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
import penstock.spark as pss
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.local import LocalSystem
from tests.support.outboxes import read_all
from tests.support.places import ROOT

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_500
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


def test_the_example_of_the_page_with_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "pyspark-applications.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
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
    watermark = max(each.time_ms for each in happened[0] + happened[1] if each.kind == "click") - 10_000
    minutes = Counter((each.user, each.time_ms // 60_000 * 60_000) for each in clicks)
    closed = sorted((user, minute, n) for (user, minute), n in minutes.items() if minute + 60_000 <= watermark)
    assert closed
    assert rows("minutes") == closed


def near(click: Event, view: Event) -> bool:
    return click.user == view.user and abs(click.time_ms - view.time_ms) <= 2_000


def enriched() -> ps.StreamApplication:
    """Rows with names of a side input, to a DataFrame and to two other outputs."""
    app = ps.StreamApplication("enriched")
    names = app.table("names", value=ps.String(), side_inputs=["local.names"], broadcast=True)
    users = app.input("spark.events", value=pss.Rows(COLUMNS)).partition_by(lambda row: row.user)
    named = users.join_table(names, lambda row, name: {"page": row.page, "name": name, "at": row.at})
    named.send_to(app.output("spark.named", value=pss.Rows("name STRING, page STRING, at TIMESTAMP")))
    pages = named.map(lambda row: row["page"])
    pages.send_to(app.output("local.once", value=ps.String()))
    pages.send_to(app.output("local.least", value=ps.String()))
    return app


def test_side_inputs_and_other_outputs(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    streams = LocalSystem("local", str(tmp_path / "streams"))
    for name in ("names", "once", "least"):
        streams.admin().create_stream(name, 1)
    names = {f"u{n}": f"name {n}" for n in range(4)}
    entries = [(5, user.encode(), name.encode()) for user, name in names.items()]
    streams.writer(None).append(SystemStreamPartition("local", "names", 0), entries)
    happened = events(tmp_path / "source", 0, 20)
    batches: list[list[tuple[Any, ...]]] = []

    def handle(outputs: Any, batch: int) -> None:
        assert outputs["named"].count() == len(happened)
        batches.append(sorted(tuple(row) for row in outputs["named"].selectExpr("page", "name", "at").collect()))

    query = (
        pss.run_application(
            enriched(),
            stream(spark, tmp_path / "source"),
            root=str(tmp_path / "root"),
            partitions=2,
            config={
                "systems.local.path": str(tmp_path / "streams"),
                "streams.local.once.output.guarantee": "exactly-once",
            },
        )
        .for_each_batch(handle)
        .option("checkpointLocation", str(tmp_path / "location"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    local = [datetime.datetime.fromtimestamp(each.time_ms / 1000) for each in happened]  # noqa: DTZ006 - as Spark does
    assert batches == [sorted((e.page, names[e.user], at) for e, at in zip(happened, local, strict=True))]
    for name in ("once", "least"):
        pages = [(value or b"").decode() for _, _, value in read_all(streams, name)[0]]
        assert sorted(pages) == sorted(each.page for each in happened)


def test_a_start_keeps_the_number_of_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """It is not that of this machine, and the second start does not name it."""
    found: list[str] = []
    for number, chosen in enumerate((3, None)):
        happened = events(tmp_path / "source", number, 20)
        app = ps.StreamApplication("pages")
        pages = app.input("spark.events", value=pss.Rows()).map(lambda row: {"page": row.page})
        pages.send_to(app.output("spark.pages", value=pss.Rows("page STRING")))
        query = (
            pss.run_application(app, stream(spark, tmp_path / "source"), root=str(tmp_path / "root"), partitions=chosen)
            .for_each_batch(lambda out, batch: found.extend(row.page for row in out["pages"].collect()))
            .option("checkpointLocation", str(tmp_path / "location"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)
        assert sorted(found[20 * number :]) == sorted(each.page for each in happened)


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
    refused("is not to be configured", of(value=rows), config={"streams.spark.events.samza.offset.default": "oldest"})
    durable = of(value=rows)
    two = of(value=rows)
    two.input("spark.others", value=pss.Rows())
    refused("has the inputs events, others", two)
    both = {"inputs": lambda df: {"events": df, "others": df}, "partitions": 1}
    refused("an application with 2 inputs has at least 2", two, **both)
    durable.input("spark.others", value=pss.Rows()).partition_by(str, through="local.middle")
    refused("has no durable intermediate streams", durable)
