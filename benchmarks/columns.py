"""The keyed fold on columns: running count and sum per key, with a durable commit every batch.

Pathway and Bytewax have no batches that end with a commit, so a run of theirs counts as one batch.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from benchmarks import harness
from benchmarks.engines import PEERS, Engine, counted, installed, start_script, start_scripts
from benchmarks.figures import COLUMNS, Side, judge, run_sides
from benchmarks.jobs import configuration, files_system, run, stored
from benchmarks.workload import Workload, compare, write_inputs
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.packed_rows import PackedRows

SIDES = {
    "aggregate, parquet": ("columns:fold", "columns:verify"),
    "aggregate of each message, parquet": ("columns:fold", "columns:verify"),
    "aggregate in RocksDB, parquet": ("columns:fold", "columns:verify"),
    "aggregate, json": ("columns:fold", "columns:verify"),
    "process_batch, parquet": ("columns:fold", "columns:verify"),
    "Spark aggregation, parquet": ("queries:fold", "queries:verify_fold"),
    "Spark aggregation, json": ("queries:fold", "queries:verify_fold"),
    "transformWithStateInPandas, parquet": ("queries:fold", "queries:verify_fold"),
    "polars, parquet": ("columns:polars", None),
    "Pathway, json": ("columns:pathway", "columns:verify_pathway"),
    "Bytewax, json": ("columns:bytewax", "columns:verify_bytewax"),
}
"""By name, the operator and the form of the input: what runs it, and what verifies it."""
ENGINES = {
    "Pathway, json": Engine("pathway==0.33.0", PEERS / "pathway_fold.py", threads=True),
    "Bytewax, json": Engine("bytewax==0.21.1 orjson==3.11.4", PEERS / "bytewax_fold.py", prepares=True),
}
TARGETS = (
    ("aggregate, parquet", "Spark aggregation, parquet", 8.0),
    ("process_batch, parquet", "Spark aggregation, parquet", 4.0),
    ("process_batch, parquet", "transformWithStateInPandas, parquet", 100.0),
    ("aggregate, json", "Spark aggregation, json", 2.5),
    ("aggregate, json", "Pathway, json", 2.0),
    ("aggregate, json", "Bytewax, json", 2.0),
)
"""A side, another one, and the ratio of their rows per second, at least."""
EVENTS = ps.Columns(pa.schema({"key": pa.string(), "amount": pa.float64()}))
TOTALS = ps.Columns(pa.schema({"count": pa.int64(), "sum": pa.float64()}))
_LOOK_SECONDS = 0.1


class Fold(ps.BatchProcessor):
    """Running count and sum per key, as anybody would write it with NumPy."""

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.totals = context.store("totals")

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        keys = batch.keys.dictionary_encode()
        groups, own = keys.indices.to_numpy(), keys.dictionary
        before = self.totals.get_many(own)
        count = before["count"].fill_null(0).to_numpy() + np.bincount(groups, minlength=len(own))
        total = before["sum"].fill_null(0).to_numpy() + np.bincount(groups, batch["amount"].to_numpy(), len(own))
        self.totals.put_many(own, pa.record_batch({"count": count, "sum": total}))


def application(operator: str) -> ps.StreamApplication:
    """Events by key into the fold; nothing is sent on."""
    app = ps.StreamApplication("columns")
    events = app.input("files.events", value=EVENTS).partition_by(ps.col("key"))
    if operator.startswith("aggregate"):
        events.aggregate({"count": ps.Count(), "sum": ps.Sum(ps.col("amount"))}, id="totals")
    else:
        app.store("totals", value=TOTALS)
        events.select("amount").process_batch(Fold, stores=["totals"])
    return app


def config_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """A commit after every batch; a batch has a file for each partition."""
    kept = {"aggregate": "columns", "aggregate of each message": "columns", "aggregate in RocksDB": "rocksdb"}.get(
        parameters["operator"]
    )
    return {
        **configuration(parameters),
        **files_system(parameters["folder"], parameters["threads"]),
        **({"stores.totals.aggregate.factory": kept} if kept else {}),
        "job.intermediate.stream.partitions": parameters.get("tasks", 2),
        "job.partial.aggregates.enabled": parameters["operator"] != "aggregate of each message",
    }


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over all files; one entry per batch."""
    return run(application(parameters["operator"]), config_of(parameters))


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the state from the last checkpoint, as a restore does, and compare every key."""
    is_own = parameters["operator"].startswith("aggregate")
    packed = PackedRows([pa.field("count", pa.int64()), pa.field("sum", pa.float64())], counted=not is_own)
    keys, values = list[bytes](), list[bytes]()
    for _, key, value in stored(config_of(parameters), "columns", "totals.aggregate" if is_own else "totals"):
        keys.append(key)
        values.append(value)
    rows = packed.unpack(ByteArray.of_list(values))
    counts, sums = (rows.field(name).to_numpy() for name in ("count", "sum"))
    return compare(Workload(**parameters["workload"]), keys, counts, sums)


def polars(parameters: dict[str, Any]) -> dict[str, Any]:
    """Polars' group-by over the files of each batch: nothing is kept, and nothing is durable. One entry per batch."""
    import polars as pl

    files, threads = sorted(Path(parameters["files"]).iterdir()), parameters["threads"]
    batches = list[dict[str, Any]]()
    for begin in range(0, len(files), threads):
        began = time.monotonic()
        events = pl.read_parquet(files[begin : begin + threads])
        events.group_by("key").agg(pl.len().alias("count"), pl.col("amount").sum().alias("sum"))
        batches.append(_batch(len(batches) + 1, parameters["batch_messages"], time.monotonic() - began, time.time()))
    return {"batches": batches}


def _batch(number: int, rows: int, seconds: float, ended: float) -> dict[str, Any]:
    return {"batch": number, "rows": rows, "duration_ms": {"triggerExecution": seconds * 1000}, "ended": ended}


def pathway(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over all files; one entry for the whole run."""
    found = _pathway(parameters, totals=False)
    began, ended = found["began"], found["ended"]
    return {"batches": [_batch(1, parameters["workload"]["events"], ended - began, ended)]}


def verify_pathway(parameters: dict[str, Any]) -> dict[str, Any]:
    """Compare the totals of a second run, which writes all changes."""
    totals = _pathway(parameters, totals=True)["totals"]
    counts, sums = zip(*totals.values(), strict=True)
    return compare(Workload(**parameters["workload"]), list(totals), counts, sums)


def _pathway(parameters: dict[str, Any], *, totals: bool) -> dict[str, Any]:
    work = Path(parameters["work"]) / ("totals" if totals else "run")
    work.mkdir()
    result = work / "result.json"
    given = {**parameters, "work": str(work), "totals": totals, "result": str(result)}
    status = start_script(ENGINES["Pathway, json"], given).wait()
    if status != 0:
        raise RuntimeError(f"Pathway ended with status {status}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def bytewax(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over all files; one entry for the whole run, from the last moment before the first row was counted
    to the moment at which all were."""
    processes = start_scripts(ENGINES["Bytewax, json"], {**parameters, "start": 0}, parameters["threads"])
    began = ended = None
    events = parameters["workload"]["events"]
    running = True
    while running:
        running = any(process.poll() is None for process in processes)
        rows = counted(Path(parameters["work"]))
        if not rows:
            began = time.time()
        if rows == events and ended is None:
            ended = time.time()
        time.sleep(_LOOK_SECONDS)
    if any(process.returncode for process in processes) or began is None or ended is None:
        raise RuntimeError(f"Bytewax ended with status {[process.returncode for process in processes]}")
    return {"batches": [_batch(1, events, ended - began, ended)]}


def verify_bytewax(parameters: dict[str, Any]) -> dict[str, Any]:
    """Compare the totals that both processes have written."""
    lines = [line for path in Path(parameters["work"]).glob("totals-*") for line in path.read_text().splitlines()]
    keys, counts, sums = zip(*map(json.loads, lines), strict=True)
    return compare(Workload(**parameters["workload"]), keys, counts, sums)


@harness.benchmark(
    "columns",
    __doc__,
    events=10_000_000,
    batches=10,
    keys=[100_000, 5_000_000],
    sides=list(SIDES),
    repeat=2,
    threads=2,
    zipf=0.0,
    tasks=2,
)
def main(bench: harness.Bench) -> int:
    options = bench.options
    asked = installed([each for each in SIDES if each in options.sides], ENGINES)
    found = dict[str, dict[str, Any]]()
    for keys in options.keys:
        workload = Workload.of(options, keys=keys)
        folder = bench.work / f"inputs-{keys}"
        write_inputs(workload.tables(), folder, options.threads, ("parquet/events", "json/events"))
        sides = dict[str, Side]()
        for side in asked:
            operator, _, form = side.partition(", ")
            files = {"folder": str(folder / form), "files": str(folder / form / "events"), "form": form}
            parameters = {
                **workload.parameters(),
                **files,
                "files_a_batch": options.threads,
                "operator": operator,
                "tasks": options.tasks,
            }
            sides[f"{side}, {keys:,} keys"] = *SIDES[side], parameters
        summaries = run_sides(bench, sides)
        harness.show(f"{keys:,} keys", summaries, **COLUMNS)
        judge(bench, summaries, ((f"{a}, {keys:,} keys", f"{b}, {keys:,} keys", least) for a, b, least in TARGETS))
        found |= summaries
    return bench.finish(found)
