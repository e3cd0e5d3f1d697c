"""The keyed fold: running count and sum per key, with a durable commit every batch, through Penstock and Spark.

Of Spark's inputs the faster one counts in the ratio. `batch_floor` is the time that a batch of 10 messages takes in
Penstock, a shuffle included.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import harness
from benchmarks.figures import COLUMNS, of_batches, ratios, summaries
from benchmarks.workload import Workload, write_inputs

SIDES = {
    "penstock": ("jobs:fold", "jobs:verify"),
    "aggregation, json": ("queries:fold", "queries:verify_fold"),
    "aggregation, parquet": ("queries:fold", "queries:verify_fold"),
    "transformWithState, parquet": ("queries:fold", "queries:verify_fold"),
}
"""By name, the operator and the form of the input: what runs it, and what verifies it."""
KINDS = dict.fromkeys(name.partition(",")[0] for name in SIDES)
TARGETS = {"aggregation": 1.2, "transformWithState": 15.0}
"""Penstock's rows per second divided by the side's, at least."""
FLOOR_MESSAGES, FLOOR_BATCHES, FLOOR_WARM_UP = 10, 20, 5


def main(given: Sequence[str] | None = None) -> int:
    default = Workload()
    options = harness.options(
        "keyed_fold", __doc__, given, events=default.events, batches=default.batches, keys=default.keys,
        seed=default.seed, sides=list(KINDS), repeat=2, threads=2, no_floor=False,
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
        floor = None if options.no_floor else batch_floor(bench)
        harness.show("keyed fold", sides, **COLUMNS)
        found = ratios(sides, "penstock", list(TARGETS))
        for other, ratio in found.items():
            bench.target(f"penstock / {other}", ratio, at_least=TARGETS[other])
        return bench.finish(sides, ratios=found, batch_floor=floor)


def batch_floor(bench: harness.Bench) -> dict[str, Any]:
    """The median time of a batch of a few messages, with and without its commit."""
    given = {"batch_messages": FLOOR_MESSAGES, "batches": FLOOR_WARM_UP + FLOOR_BATCHES}
    batches = bench.run("batch floor", "jobs:floor", given)["batches"][FLOOR_WARM_UP:]
    durations = [batch["duration_ms"] for batch in batches]
    with_commit = statistics.median(d["triggerExecution"] for d in durations)
    bench.target("batch floor, ms with the commit", with_commit, at_most=250)
    return {
        "p50_ms": statistics.median(
            d["triggerExecution"] - d.get("commitWait", 0) - d.get("walCommit", 0) for d in durations
        ),
        "p50_with_commit_ms": with_commit,
        "p50_between_reports_ms": statistics.median(batch["interval_ms"] for batch in batches),
    }


if __name__ == "__main__":
    sys.exit(main())
