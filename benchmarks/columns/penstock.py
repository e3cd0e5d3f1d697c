"""The keyed fold on columns through Penstock: what runs in the side's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from benchmarks.columns.inputs import totals_of
from benchmarks.keyed_fold.penstock import configuration, follow
from benchmarks.keyed_fold.workload import Workload
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.packed_rows import PackedRows
from penstock.config.load import load_config
from penstock.state.reading.reader import read_store

EVENTS = ps.Columns(pa.schema({"key": pa.string(), "amount": pa.float64()}))
TOTALS = ps.Columns(pa.schema({"count": pa.int64(), "sum": pa.float64()}))


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
    workload, work = Workload(**parameters["workload"]), Path(parameters["work"])
    operator = parameters["operator"]
    factory = "rocksdb" if operator.endswith("RocksDB") else "columns"
    own = {"stores.totals.aggregate.factory": factory} if operator.startswith("aggregate") else {}
    return {
        **configuration(work / "streams", work, workload.batch_events, parameters["threads"]),
        **own,
        "systems.files.samza.factory": "files",
        "systems.files.folder": parameters["files"],
        "systems.files.partitions": parameters["threads"],
    }


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over all files; one entry per batch."""
    job = application(parameters["operator"]).run(config_of(parameters), until="latest")
    return {"batches": [batch for batch in follow(job) if batch["rows"]]}


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the state from the last checkpoint, as a restore does, and compare every key."""
    is_own = parameters["operator"].startswith("aggregate")
    store = "totals.aggregate" if is_own else "totals"
    config = load_config(overrides=config_of(parameters), default_job_name="columns")
    counts, sums = totals_of(Workload(**parameters["workload"]))
    found_counts, found_sums = np.zeros_like(counts), np.zeros_like(sums)
    packed = PackedRows([pa.field("count", pa.int64()), pa.field("sum", pa.float64())], counted=not is_own)
    numbers, values = list[int](), list[bytes]()
    for _, key, value in read_store(config, store):
        numbers.append(int(key[4:]))
        values.append(value)
    rows = packed.unpack(ByteArray.of_list(values))
    found_counts[numbers] = rows.field("count").to_numpy()
    found_sums[numbers] = rows.field("sum").to_numpy()
    wrong = int(((found_counts != counts) | (found_sums != sums)).sum())
    return {"equal": not wrong, "keys": len(numbers), "wrong_keys": wrong}
