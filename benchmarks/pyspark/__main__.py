"""PySpark's StatefulProcessor: the same classes through transformWithState and through Penstock.

* `fold`: count and sum of each key, in a value;
* `last-ten`: the ten latest amounts of each key, in a list;
* `sessions`: sessions in event time, each with a timer that ends it.

Each is there in the row form, and as `<name>-pandas` in the form of pandas. Both engines read the same files, run the
same class, write the rows of each batch to Parquet in `foreachBatch`, and commit every batch. Behind the large batches
come some of ten rows and some of none. PySpark gets the first `--short-batches` large ones only, so that both run for
about as long: the JVM becomes faster meanwhile.

With `--by-file-system`, Spark writes the logs of the queries of both with its `FileSystemBasedCheckpointFileManager`.

    python -m benchmarks.pyspark [--kinds ...] [--batches N] [--rows N] [--keys N] [--repeat N] [--by-file-system]
        [--json PATH]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.keyed_fold.figures import COLUMNS, cpu_us_per_row, ratios, summary
from benchmarks.pyspark.query import PROCESSORS
from benchmarks.pyspark.workload import QueryWorkload, compare

ENGINES = ("penstock", "pyspark")
TARGETS = {kind: 15.0 if kind == "fold" else 8.0 for kind in PROCESSORS}
"""Penstock's rows per second divided by PySpark's, at least."""

FILE_SYSTEM = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""Spark writes its logs to a local disk without a program for each file."""


def figures(workload: QueryWorkload, run: harness.SideRun) -> dict[str, Any]:
    """The large batches, and milliseconds of those of a few rows and of none."""
    batches = run.result["batches"][: workload.batches]
    rest = [each["duration_ms"]["triggerExecution"] for each in run.result["batches"][workload.batches :]]
    return {
        "batches": batches,
        "small_ms": rest[: workload.small],
        "empty_ms": rest[workload.small : 2 * workload.small],
        "cpu_us_per_row": cpu_us_per_row(run, batches),
    }


def small_ms(runs: Sequence[harness.Run], name: str) -> float:
    """The median of the small batches after the first one."""
    return float(statistics.median(ms for run in runs for ms in run[name][1:] or [0]))


def main(given: Sequence[str] | None = None) -> int:
    default = QueryWorkload()
    options = harness.options(
        "pyspark", __doc__, given, kinds=list(PROCESSORS), engines=list(ENGINES), batches=default.batches,
        rows=default.batch_rows, keys=default.keys, small=default.small, short_batches=4, repeat=1, threads=2,
        by_file_system=False,
    )  # fmt: skip
    whole = QueryWorkload(options.batches, options.rows, options.keys, options.small)
    workloads: Mapping[str, QueryWorkload] = {
        "penstock": whole,
        "pyspark": whole.first(min(options.short_batches, options.batches)),
    }
    with harness.Bench("pyspark", options) as bench:
        for engine, workload in workloads.items():
            workload.write(bench.work / engine)
        sides = [(kind, engine) for kind in options.kinds for engine in options.engines]
        for kind, engine in bench.turns(sides, options.repeat):
            workload = workloads[engine]
            parameters = {
                "threads": options.threads,
                "partitions": options.threads,
                "kind": kind,
                "engine": engine,
                "files": str(bench.work / engine),
                "more": FILE_SYSTEM if options.by_file_system else {},
            }
            verify = partial(compare, kind.removesuffix("-pandas"), workload)
            own = partial(figures, workload)
            bench.run(f"{engine}, {kind}", "pyspark.query:query", parameters, figures=own, verify=verify)
        found = {
            side: {
                **summary(runs),
                "small_batch_ms": small_ms(runs, "small_ms"),
                "empty_batch_ms": small_ms(runs, "empty_ms"),
            }
            for side, runs in bench.runs.items()
        }
        harness.show("queries", found, **COLUMNS, small_batch_ms=",.0f", empty_batch_ms=",.0f")
        compared = {}
        for kind in options.kinds:
            own_sides = {name.partition(",")[0]: side for name, side in found.items() if name.endswith(f", {kind}")}
            for ratio in ratios(own_sides, "penstock", ["pyspark"]).values():
                compared[kind] = ratio
                bench.target(f"{kind}: penstock / pyspark", ratio, at_least=TARGETS[kind])
        return bench.finish(found, ratios=compared)


if __name__ == "__main__":
    sys.exit(main())
