"""Windows: count and mean for each key and minute of event time, through Penstock and Spark.

`transformWithState` has an event-time timer for each key and minute. It gets the first `--short-batches` only, because
it takes so long. On all sides a watermark counts from the batch after, and late is what is below the watermark of the
batch before. All panes are compared with a plain computation.

    python -m benchmarks.windows [--events N] [--batches N] [--keys N] [--sides ...] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks import harness
from benchmarks.keyed_fold.figures import COLUMNS, of_batches, ratios, summary
from benchmarks.windows.penstock import OUTPUT
from benchmarks.windows.workload import WindowWorkload, write_window_inputs

SIDES = {
    "fold": ("penstock", "stream"),
    "aggregates": ("penstock", "stream"),
    "columns": ("penstock", "columns"),
    "aggregation, json": ("spark", "json"),
    "aggregation, parquet": ("spark", "parquet"),
    "transformWithState": ("spark", "parquet-short"),
}
"""By name: the engine and the form of the input."""
KINDS = dict.fromkeys(name.partition(",")[0] for name in SIDES)
TARGETS = {"aggregation": 1.0, "transformWithState": 15.0}
"""The rows per second of Penstock's fold divided by the side's, at least."""
BY_COLUMN = 3.0
"""The rows per second of its columns divided by those of the faster one of Spark's aggregations."""


def main(given: Sequence[str] | None = None) -> int:
    default = WindowWorkload()
    options = harness.options(
        "windows", __doc__, given, events=default.events, batches=default.batches, keys=default.keys,
        batch_ms=default.batch_ms, short_batches=4, sides=list(KINDS), repeat=1, threads=2,
    )  # fmt: skip
    workload = WindowWorkload(options.events, options.batches, options.keys, options.batch_ms)
    workload.check(options.threads)
    short = min(options.short_batches, options.batches)
    with harness.Bench("windows", options) as bench:
        inputs = write_window_inputs(workload, bench.work / "inputs", options.threads, short)
        for side in bench.turns([s for s in SIDES if s.partition(",")[0] in options.sides], options.repeat):
            engine, form = SIDES[side]
            parameters = {
                "workload": asdict(workload.first(short) if form == "parquet-short" else workload),
                "threads": options.threads,
                "partitions": options.threads,
                "batch_messages": workload.batch_events,
                "streams": str(inputs.streams),
                "output": OUTPUT,
                "operator": side.partition(",")[0],
                "form": form.removesuffix("-short"),
                "files": str(inputs.files(form)),
            }
            module = f"windows.{engine}"
            bench.run(side, f"{module}:windows", parameters, figures=of_batches, verify=f"{module}:verify")
        sides = {side: summary(runs) for side, runs in bench.runs.items()}
        harness.show("windows", sides, **COLUMNS)
        found = ratios(sides, "fold", list(TARGETS))
        for other, ratio in found.items():
            bench.target(f"penstock, fold / {other}", ratio, at_least=TARGETS[other])
        by_column = ratios(sides, "columns", ["aggregation"])
        for other, ratio in by_column.items():
            bench.target(f"penstock, columns / {other}", ratio, at_least=BY_COLUMN)
        found |= {f"columns / {other}": ratio for other, ratio in by_column.items()}
        return bench.finish(sides, ratios=found)


if __name__ == "__main__":
    sys.exit(main())
