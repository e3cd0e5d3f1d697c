"""The keyed fold: running count and sum per key, with a durable commit every batch, through Penstock and Spark.

Of Spark's inputs the faster one counts in the ratio.
"""

from __future__ import annotations

from benchmarks import harness
from benchmarks.figures import COLUMNS, Side, judge, run_sides
from benchmarks.workload import Workload, write_inputs

SIDES = {
    "penstock": ("jobs:fold", "jobs:verify"),
    "aggregation, json": ("queries:fold", "queries:verify_fold"),
    "aggregation, parquet": ("queries:fold", "queries:verify_fold"),
    "transformWithState, parquet": ("queries:fold", "queries:verify_fold"),
}
"""By name, the operator and the form of the input: what runs it, and what verifies it."""
KINDS = dict.fromkeys(name.partition(",")[0] for name in SIDES)
TARGETS = (("penstock", "aggregation", 1.2), ("penstock", "transformWithState", 15.0))


@harness.benchmark(
    "keyed_fold", __doc__, events=2_000_000, batches=10, keys=100_000, sides=list(KINDS), repeat=2, threads=2
)
def main(bench: harness.Bench) -> int:
    options, workload = bench.options, Workload.of(bench.options)
    inputs = write_inputs(workload.tables(), bench.work / "inputs", options.threads)
    sides = dict[str, Side]()
    for side, (run, verify) in SIDES.items():
        operator, _, form = side.partition(", ")
        files = {"streams": str(inputs / "streams"), "files": str(inputs / form), "form": form}
        if operator in options.sides:
            sides[side] = run, verify, {**workload.parameters(), **files, "operator": operator}
    found = run_sides(bench, sides)
    harness.show("keyed fold", found, **COLUMNS)
    return bench.finish(found, ratios=judge(bench, found, TARGETS))
