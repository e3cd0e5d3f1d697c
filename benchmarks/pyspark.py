"""PySpark's StatefulProcessor: the same classes through transformWithState and through Penstock.

Parquet files (50 batches of 200,000 rows over 100,000 keys) go through one processor after the other:

* `fold`: count and sum of each key, in a value;
* `last-ten`: the ten latest amounts of each key, in a list;
* `sessions`: sessions in event time, each with a timer that ends it.

Each is there in the row form, and as `<name>-pandas` in the form of pandas.

Both engines read the same files, run the same class, and write the rows of each batch to Parquet in `foreachBatch`.
Both commit every batch; Spark's state is in RocksDB with changelog checkpointing. Behind the large batches come some of
ten rows and some of none. Every side runs in a separate process, in turn. Rows per second are those of the large
batches after the second, by Spark's `triggerExecution`, the median over batches and rounds. PySpark gets the first
`--short-batches` large ones only, so that both run for about as long: the JVM becomes faster meanwhile. After each run
everything that was written is compared with a plain computation; a side that differs makes the exit status 1.

    python -m benchmarks.pyspark [--kinds ...] [--batches N] [--rows N] [--keys N] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import (
    DRIVER_MEMORY,
    begin,
    command_line,
    console,
    finish,
    megabytes,
    positive_options,
    print_table,
    run_facts,
    run_side,
)
from benchmarks.keyed_fold import WARM_UP_BATCHES, Outcome, Side, cpu_per_row
from benchmarks.query_workload import QueryWorkload, compare
from benchmarks.side_pyspark import PROCESSORS

ENGINES = ("penstock", "pyspark")
TARGETS = {kind: 15.0 if kind == "fold" else 8.0 for kind in PROCESSORS}
"""What Penstock's rows per second divided by PySpark's should at least be."""


@dataclass(frozen=True, slots=True)
class QuerySide(Side):
    """A processor in an engine, which is its form."""

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.form}"


def measure(side: QuerySide, workload: QueryWorkload, files: Path, work: Path, threads: int) -> dict[str, Any]:
    """Run a side once, then check what it wrote."""
    parameters: dict[str, Any] = {
        "work": str(work),
        "threads": threads,
        "partitions": threads,
        "kind": side.kind,
        "engine": side.form,
        "files": str(files),
    }
    run = run_side("benchmarks.side_pyspark:query", parameters, work)
    verified = compare(side.kind.removesuffix("-pandas"), workload, work / "output")
    batches = run.result["batches"][: workload.batches]
    rest = [each["duration_ms"]["triggerExecution"] for each in run.result["batches"][workload.batches :]]
    return {
        "batches": batches,
        "small_ms": rest[: workload.small],
        "empty_ms": rest[workload.small : 2 * workload.small],
        "verified": verified,
        "cpu_us_per_row": cpu_per_row(run, batches),
        **run_facts(run),
    }


def ratios(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Penstock's rows per second over PySpark's, by kind."""
    rates = {(o.side.kind, str(o.side.form)): o.rows_per_second for o in outcomes}
    return {
        kind: round(rates[kind, "penstock"] / rates[kind, "pyspark"], 2)
        for kind in TARGETS
        if (kind, "penstock") in rates and (kind, "pyspark") in rates
    }


def small_ms(outcome: Outcome, name: str) -> float:
    """The median of the batches of a few rows, or of none, after the first ones."""
    return float(statistics.median(ms for one in outcome.rounds for ms in one[name][1:] or [0]))


def report(outcomes: Sequence[Outcome], workload: QueryWorkload) -> None:
    """The table."""
    print_table(
        f"queries: batches of {workload.batch_rows:,} rows over {workload.keys:,} keys",
        ("side", "rows/s", "slowest", "fastest", "CPU µs/row", "peak PSS", "10 rows", "no rows", "written"),
        [
            (
                o.side.name,
                f"{o.rows_per_second:,.0f}",
                f"{min(o.rates()):,.0f}",
                f"{max(o.rates()):,.0f}",
                f"{o.cpu_us_per_row:.1f}",
                megabytes(o.peak_bytes),
                f"{small_ms(o, 'small_ms'):,.0f} ms",
                f"{small_ms(o, 'empty_ms'):,.0f} ms",
                f"{o.rounds[0]['verified']['rows']:,} verified" if o.verified else "WRONG",
            )
            for o in outcomes
        ],
    )
    for kind, ratio in ratios(outcomes).items():
        console.print(f"{kind}: penstock / pyspark {ratio:.2f}, to be at least {TARGETS[kind]}")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    default = QueryWorkload()
    parser = command_line("pyspark", __doc__)
    parser.add_argument("--kinds", nargs="+", choices=list(PROCESSORS), default=list(PROCESSORS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--batches", type=int, default=default.batches)
    parser.add_argument("--rows", type=int, default=default.batch_rows, help="rows of a large batch")
    parser.add_argument("--keys", type=int, default=default.keys)
    parser.add_argument("--small", type=int, default=default.small, help="batches of ten rows, and of none")
    parser.add_argument("--short-batches", type=int, default=4, help="large batches that PySpark gets")
    parser.add_argument("--repeat", type=int, default=1, help="rounds; every side runs once in each")
    parser.add_argument("--threads", type=int, default=2, help="local[N], tasks, shuffle partitions")
    return positive_options(parser, given, "batches", "rows", "keys", "small", "short_batches", "repeat", "threads")


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    whole = QueryWorkload(options.batches, options.rows, options.keys, options.small)
    short = whole.first(min(options.short_batches, options.batches))
    workloads = {"penstock": whole, "pyspark": short}
    sides = [QuerySide(kind, engine) for kind in options.kinds for engine in options.engines]
    outcomes = [Outcome(side) for side in sides]
    facts = begin()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name)
        with console.status("writing the events"):
            for engine, workload in workloads.items():
                workload.write(work / engine)
        for number in range(options.repeat):
            for side, outcome in zip(sides, outcomes, strict=True):
                engine = str(side.form)
                with console.status(f"round {number + 1} of {options.repeat}: {side.name}"):
                    found = measure(side, workloads[engine], work / engine, work / "side", options.threads)
                outcome.rounds.append(found)
                shutil.rmtree(work / "side")
    report(outcomes, whole)
    finish(
        options.json,
        "pyspark",
        facts,
        {outcome.side.name: outcome.rounds for outcome in outcomes},
        parameters={
            **asdict(whole),
            "short_batches": short.batches,
            "rounds": options.repeat,
            "warm_up_batches": WARM_UP_BATCHES,
            "threads": options.threads,
            "driver_memory": DRIVER_MEMORY,
        },
        sides={outcome.side.name: outcome.summary() for outcome in outcomes},
        ratios=ratios(outcomes),
    )
    return 0 if all(outcome.verified for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
