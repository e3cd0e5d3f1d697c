"""Windows: count and mean for each key and minute of event time, through Penstock and Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as ps
from benchmarks import harness
from benchmarks.figures import COLUMNS, Side, judge, run_sides
from benchmarks.jobs import configuration, create_stream, files_system, read_stream, run
from benchmarks.workload import BOUND_MS, MINUTE_MS, STREAM, WindowWorkload, compare_files, compare_panes, write_windows
from penstock.system.local import LocalSystem

SIDES = {
    "fold": ("windows", "streams"),
    "aggregates": ("windows", "streams"),
    "columns": ("windows", "columns"),
    "aggregation, json": ("queries", "json"),
    "aggregation, parquet": ("queries", "parquet"),
    "transformWithState": ("queries", "parquet-short"),
}
"""By name: the module that runs it, and the form of the input."""
KINDS = dict.fromkeys(name.partition(",")[0] for name in SIDES)
TARGETS = (("fold", "aggregation", 1.0), ("fold", "transformWithState", 15.0), ("columns", "aggregation", 3.0))
OUTPUT = "minutes"
PANE = ("key", "start_ms", "count", "mean")
"""The columns of a pane in a file."""
EVENTS = ps.Columns(pa.schema({"key": pa.string(), "time": pa.int64(), "amount": pa.float64()}))


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
    """Events by key into windows of a minute: with a `fold`, with `aggregates`, or by `columns` from file to file."""
    app = ps.StreamApplication("windows")
    late = ps.BoundedOutOfOrderness(max_delay_ms=BOUND_MS)
    if kind == "columns":
        events = app.input(f"files.{STREAM}", value=EVENTS, timestamp=ps.col("time"), watermark=late)
        wanted = {"count": ps.Count(), "mean": ps.Mean(ps.col("amount"))}
        minutes = ps.Windows.tumbling(MINUTE_MS, aggregates=wanted)
        panes = events.partition_by(ps.col("key")).window(minutes, rows=True, id="minutes").with_key("key")
        panes.send_to(app.output(f"files.{OUTPUT}"))
        return app
    messages = app.input(f"local.{STREAM}", value=ps.Json(), timestamp=lambda event: event["time"], watermark=late)
    by_key = messages.partition_by(lambda event: event["key"], key=ps.String())
    if kind == "fold":
        folded = ps.Windows.tumbling(MINUTE_MS, fold=(lambda: {"count": 0, "sum": 0.0}, add))
        shown = by_key.window(folded, id="minutes").map(of_fold)
    else:
        both = {"count": ps.Count(), "mean": ps.Mean(lambda event: event["amount"])}
        shown = by_key.window(ps.Windows.tumbling(MINUTE_MS, aggregates=both), id="minutes").map(of_aggregates)
    shown.send_to(app.output(f"local.{OUTPUT}", key=ps.String(), value=ps.Json()))
    return app


def windows(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run over all events; one entry per batch that read messages."""
    config = configuration(parameters)
    if parameters["operator"] == "columns":
        config |= {
            **files_system(parameters["files"], parameters["threads"]),
            f"systems.files.schema.{OUTPUT}": "key STRING, start_ms BIGINT, count BIGINT, mean DOUBLE",
        }
    else:
        create_stream(Path(parameters["streams"]), OUTPUT, parameters["threads"])
    return run(application(parameters["operator"]), config)


def verify_windows(parameters: dict[str, Any]) -> dict[str, Any]:
    """Read what was sent, and compare it with a plain computation."""
    workload = WindowWorkload(**parameters["workload"])
    if parameters["operator"] == "columns":
        found = compare_files(workload, folder := Path(parameters["files"]) / OUTPUT, PANE)
        shutil.rmtree(folder)
        return found
    system = LocalSystem("local", parameters["streams"])
    rows = [(key.decode(), pane["minute"], pane["count"], pane["mean"]) for _, key, pane in read_stream(system, OUTPUT)]
    system.admin().delete_stream(OUTPUT)
    return compare_panes(workload, *zip(*rows, strict=True)) if rows else {"equal": False}


@harness.benchmark(
    "windows", __doc__, events=1_600_000, batches=8, keys=100_000, batch_ms=MINUTE_MS, short_batches=4,
    sides=list(KINDS), repeat=1, threads=2,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options, workload = bench.options, WindowWorkload.of(bench.options)
    short = min(options.short_batches, options.batches)
    few = replace(workload, events=workload.batch_events * short, batches=short)
    forms, inputs = ("streams", "json", "parquet", "columns/events"), bench.work / "inputs"
    write_windows(workload, inputs, options.threads, forms)
    write_windows(few, inputs, options.threads, ["parquet-short"])
    sides = dict[str, Side]()
    for side, (module, form) in SIDES.items():
        parameters = {
            **(few if form == "parquet-short" else workload).parameters(),
            "streams": str(inputs / "streams"),
            "operator": side.partition(",")[0],
            "form": form.removesuffix("-short"),
            "files": str(inputs / form),
        }
        if parameters["operator"] in options.sides:
            sides[side] = f"{module}:windows", f"{module}:verify_windows", parameters
    found = run_sides(bench, sides)
    harness.show("windows", found, **COLUMNS)
    return bench.finish(found, ratios=judge(bench, found, TARGETS))
