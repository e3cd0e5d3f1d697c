"""The keyed fold: running count and sum per key, with a durable commit every batch, through Penstock and Spark.

Rows per second are those of the batches after the second, the median over batches and rounds. Of Spark's inputs the
faster one counts in the ratio. After each run the state is read back from the checkpoint and compared, key by key, with
a plain computation. `batch_floor` is the time that a batch of 10 messages takes in Penstock, a shuffle included.

    python -m benchmarks.keyed_fold [--events N] [--batches N] [--keys N] [--sides ...] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import harness
from benchmarks.keyed_fold.figures import COLUMNS, of_batches, ratios, summary
from benchmarks.keyed_fold.workload import Workload, write_inputs

SIDES = {
    "penstock": ("penstock", "stream"),
    "aggregation, json": ("aggregation", "json"),
    "aggregation, parquet": ("aggregation", "parquet"),
    "transformWithState, parquet": ("transformWithState", "parquet"),
}
"""By name: the operator and the form of the input."""
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
    workload = Workload(options.events, options.batches, options.keys, options.seed)
    workload.check(options.threads)
    with harness.Bench("keyed_fold", options) as bench:
        inputs = write_inputs(workload, bench.work / "inputs", options.threads)
        for side in bench.turns([s for s in SIDES if s.partition(",")[0] in options.sides], options.repeat):
            operator, form = SIDES[side]
            parameters = {
                "workload": asdict(workload),
                "threads": options.threads,
                "partitions": options.threads,
                "batch_messages": workload.batch_events,
                "streams": str(inputs.streams),
                "operator": operator,
                "form": form,
                "files": str(inputs.files(form)),
            }
            module = f"keyed_fold.{'penstock' if operator == 'penstock' else 'spark'}"
            bench.run(side, f"{module}:fold", parameters, figures=of_batches, verify=f"{module}:verify")
        sides = {side: summary(runs) for side, runs in bench.runs.items()}
        floor = None if options.no_floor else batch_floor(bench, options.threads)
        harness.show("keyed fold", sides, **COLUMNS)
        found = ratios(sides, "penstock", list(TARGETS))
        for other, ratio in found.items():
            bench.target(f"penstock / {other}", ratio, at_least=TARGETS[other])
        return bench.finish(sides, ratios=found, batch_floor=floor)


def batch_floor(bench: harness.Bench, threads: int) -> dict[str, Any]:
    """The median time of a batch of a few messages, with and without its commit."""
    given = {"threads": threads, "messages": FLOOR_MESSAGES, "batches": FLOOR_WARM_UP + FLOOR_BATCHES}
    batches = bench.run("batch floor", "keyed_fold.penstock:floor", given)["batches"][FLOOR_WARM_UP:]
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
