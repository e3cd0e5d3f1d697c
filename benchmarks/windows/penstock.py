"""Count and mean for each key and minute through Penstock: what runs in the side's own process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import penstock as ps
from benchmarks.keyed_fold.penstock import configuration, follow, read_stream
from benchmarks.keyed_fold.workload import STREAM
from benchmarks.windows.workload import BOUND_MS, MINUTE_MS, Panes, WindowWorkload, compare_panes
from penstock.system.local import LocalSystem

OUTPUT = "minutes"


def add(total: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """Count and sum, as anybody would write it."""
    total["count"] += 1
    total["sum"] += event["amount"]
    return total


def of_fold(pane: ps.WindowPane[str, Any]) -> dict[str, Any]:
    """The output for a pane whose message is a fold's."""
    total = pane.message
    return {"minute": pane.window.start_ms, "count": total["count"], "mean": total["sum"] / total["count"]}


def of_aggregates(pane: ps.WindowPane[str, Any]) -> dict[str, Any]:
    """The output for a pane whose message is of aggregates."""
    return {"minute": pane.window.start_ms, **pane.message}


def application(kind: str) -> ps.StreamApplication:
    """Events by key into windows of a minute: with a `fold`, or with `aggregates`."""
    app = ps.StreamApplication("windows")
    events = app.input(
        f"local.{STREAM}",
        value=ps.Json(),
        timestamp=lambda event: event["time"],
        watermark=ps.BoundedOutOfOrderness(max_delay_ms=BOUND_MS),
    )
    by_key = events.partition_by(lambda event: event["key"], key=ps.String())
    if kind == "fold":
        minutes = ps.Windows.tumbling(MINUTE_MS, fold=(lambda: {"count": 0, "sum": 0.0}, add))
        shown = by_key.window(minutes, id="minutes").map(of_fold)
    else:
        wanted = {"count": ps.Count(), "mean": ps.Mean(lambda event: event["amount"])}
        shown = by_key.window(ps.Windows.tumbling(MINUTE_MS, aggregates=wanted), id="minutes").map(of_aggregates)
    shown.send_to(app.output(f"local.{OUTPUT}", key=ps.String(), value=ps.Json()))
    return app


def column_application() -> ps.StreamApplication:
    """The same from Parquet to Parquet, by column."""
    app = ps.StreamApplication("windows")
    events = app.input(
        "files.events",
        value=ps.Columns(pa.schema({"key": pa.string(), "time": pa.int64(), "amount": pa.float64()})),
        timestamp=ps.col("time"),
        watermark=ps.BoundedOutOfOrderness(max_delay_ms=BOUND_MS),
    )
    wanted = {"count": ps.Count(), "mean": ps.Mean(ps.col("amount"))}
    minutes = ps.Windows.tumbling(MINUTE_MS, aggregates=wanted)
    panes = events.partition_by(ps.col("key")).window(minutes, rows=True, id="minutes").with_key("key")
    panes.send_to(app.output(f"files.{OUTPUT}"))
    return app


def windows(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run over the published stream to its end; one entry per batch that read messages."""
    work, streams = Path(parameters["work"]), Path(parameters["streams"])
    if parameters["operator"] == "columns":
        job = column_application().run(config_of_columns(parameters), until="latest")
        return {"batches": [batch for batch in follow(job) if batch["rows"]]}
    system = LocalSystem("local", str(streams))
    admin = system.admin()
    admin.create_stream(parameters["output"], parameters["partitions"])
    admin.close()
    config = configuration(streams, work, parameters["batch_messages"], parameters["threads"])
    job = application(parameters["operator"]).run(config, until="latest")
    return {"batches": [batch for batch in follow(job) if batch["rows"]]}


def config_of_columns(parameters: dict[str, Any]) -> dict[str, Any]:
    """As `configuration`, from files to files."""
    work = Path(parameters["work"])
    files = {
        "systems.files.samza.factory": "files",
        "systems.files.folder": parameters["files"],
        "systems.files.partitions": parameters["threads"],
        f"systems.files.schema.{OUTPUT}": "key STRING, start_ms BIGINT, count BIGINT, mean DOUBLE",
    }
    return {**configuration(work / "streams", work, parameters["batch_messages"], parameters["threads"]), **files}


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Read what was sent, and compare it with a plain computation."""
    if parameters["operator"] == "columns":
        folder = Path(parameters["files"]) / OUTPUT
        panes = ds.dataset(folder, format="parquet", exclude_invalid_files=True).to_table()
        shutil.rmtree(folder)
        numbers = np.array([int(name.removeprefix("key-")) for name in panes.column("key").to_pylist()], np.int64)
        read = (panes.column(name).to_numpy() for name in ("start_ms", "count", "mean"))
        return compare_panes(Panes.ordered(numbers, *read), WindowWorkload(**parameters["workload"]).panes())
    system = LocalSystem("local", parameters["streams"])
    rows = [(key.decode(), pane["minute"], pane["count"], pane["mean"]) for _, key, pane in read_stream(system, OUTPUT)]
    system.admin().delete_stream(OUTPUT)
    return compare_panes(Panes.of_rows(rows), WindowWorkload(**parameters["workload"]).panes())
