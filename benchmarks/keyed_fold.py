"""The keyed fold: running count and sum per key, with a durable commit every batch, through Penstock and Spark.

Of Spark's inputs the faster one counts in the ratio.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import harness
from benchmarks.figures import COLUMNS, judge, of_batches, summaries
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


def main(given: Sequence[str] | None = None) -> int:
    default = Workload()
    options = harness.options(
        "keyed_fold", __doc__, given, events=default.events, batches=default.batches, keys=default.keys,
        seed=default.seed, sides=list(KINDS), repeat=2, threads=2,
    )  # fmt: skip
    workload = Workload.of(options)
    with harness.Bench("keyed_fold", options) as bench:
        inputs = write_inputs(workload.tables(), bench.work / "inputs", options.threads)
        for side in bench.turns([s for s in SIDES if s.partition(",")[0] in options.sides], options.repeat):
            operator, _, form = side.partition(", ")
            files = {"streams": str(inputs / "streams"), "files": str(inputs / form), "form": form}
            run, verify = SIDES[side]
            given_to_side = {**workload.parameters(), **files, "operator": operator}
            bench.run(side, run, given_to_side, figures=of_batches, verify=verify)
        sides = summaries(bench)
        harness.show("keyed fold", sides, **COLUMNS)
        return bench.finish(sides, ratios=judge(bench, sides, TARGETS))


if __name__ == "__main__":
    sys.exit(main())
