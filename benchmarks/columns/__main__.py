"""The keyed fold on columns: running count and sum per key, with a durable commit every batch.

Rows per second are those of the batches after the second, the median over batches and rounds. After each run the state
is read back from the checkpoint and compared, key by key, with a plain computation. `polars` is Polars' group-by over
the same files, without state and without durability: a floor. Pathway and Bytewax are installed
by themselves, and left out, in one line, if they cannot be.

    python -m benchmarks.columns [--events N] [--batches N] [--keys N ...] [--sides ...] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import harness
from benchmarks.columns.engines import ENGINES
from benchmarks.columns.inputs import write_files
from benchmarks.engines import installed
from benchmarks.keyed_fold.figures import COLUMNS, of_batches, summary
from benchmarks.keyed_fold.workload import Workload

SIDES = {
    "aggregate, parquet": "columns.penstock",
    "aggregate in RocksDB, parquet": "columns.penstock",
    "aggregate, json": "columns.penstock",
    "process_batch, parquet": "columns.penstock",
    "Spark aggregation, parquet": "columns.spark",
    "Spark aggregation, json": "columns.spark",
    "transformWithStateInPandas, parquet": "columns.spark",
    "polars, parquet": "columns.floor",
    "Pathway, json": "columns.engines",
    "Bytewax, json": "columns.engines",
}
"""By name, the operator and the form of the input: the module that runs it."""
TARGETS = (
    ("aggregate, parquet", "Spark aggregation, parquet", 8.0),
    ("process_batch, parquet", "Spark aggregation, parquet", 4.0),
    ("process_batch, parquet", "transformWithStateInPandas, parquet", 100.0),
    ("aggregate, json", "Spark aggregation, json", 2.5),
    ("aggregate, json", "Pathway, json", 2.0),
    ("aggregate, json", "Bytewax, json", 2.0),
)
"""A side, another one, and the ratio of their rows per second, at least."""


def main(given: Sequence[str] | None = None) -> int:
    default = Workload(events=10_000_000, batches=10)
    options = harness.options(
        "columns", __doc__, given, events=default.events, batches=default.batches, keys=[100_000, 5_000_000],
        seed=default.seed, sides=list(SIDES), repeat=2, threads=2,
    )  # fmt: skip
    with harness.Bench("columns", options) as bench:
        found: dict[str, dict[str, Any]] = {}
        asked = installed([each for each in SIDES if each in options.sides], ENGINES)
        for keys in options.keys:
            workload = Workload(options.events, options.batches, keys, options.seed)
            workload.check(options.threads)
            folder = write_files(workload, bench.work / f"inputs-{keys}", options.threads)
            for side in bench.turns(asked, options.repeat):
                operator, form = side.split(", ")
                parameters = {
                    "workload": asdict(workload),
                    "threads": options.threads,
                    "files": str(folder / form),
                    "operator": operator,
                    "form": form,
                }
                module = SIDES[side]
                verify = None if module.endswith("floor") else f"{module}:verify"
                name = f"{side}, {keys:,} keys"
                bench.run(name, f"{module}:fold", parameters, figures=of_batches, verify=verify)
            sides = {name: summary(runs) for name, runs in bench.runs.items() if name.endswith(f", {keys:,} keys")}
            harness.show(f"{keys:,} keys", sides, **COLUMNS)
            for side, other, least in TARGETS:
                one, two = (sides.get(f"{each}, {keys:,} keys") for each in (side, other))
                if one and two:
                    ratio = round(one["rows_per_second"] / two["rows_per_second"], 2)
                    bench.target(f"{side} / {other}, {keys:,} keys", ratio, at_least=least)
            found |= sides
        return bench.finish(found)


if __name__ == "__main__":
    sys.exit(main())
