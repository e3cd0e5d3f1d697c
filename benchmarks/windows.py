"""Windows: count and mean for each key and minute of event time, through Penstock and Spark.

The same events (8 batches of 200,000 over 100,000 keys, each batch a minute of event time, out of order by up to ten
seconds, and 5 % of them late by minutes) go through

* Penstock: JSON messages of a local stream, a tumbling window with an ordinary Python fold (`fold`), and with declared
  aggregates (`aggregates`);
* Spark's own `withWatermark(...).groupBy(window, key).agg`, from files of JSON lines and of Parquet;
* PySpark's `transformWithState` (row form) with an event-time timer for each key and minute. It gets the first
  `--short-batches` only, because it takes so long.

Spark's state is in RocksDB with changelog checkpointing. All sides commit every batch and write each pane once, when
the watermark has passed the minute: Penstock to a local stream, Spark to Parquet files. On all sides a watermark counts
from the batch after, and late is what is below the watermark of the batch before. Every side runs in a process of its
own, in turn. Rows per second are those of the batches after the second, the median over batches and rounds; of Spark's
inputs the faster one counts in the ratio. After each run all panes are compared with a plain computation; a side that
differs makes the exit status 1.

    python -m benchmarks.windows [--events N] [--batches N] [--keys N] [--sides ...] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import argparse
import shutil
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
from benchmarks.side_windows import OUTPUT
from benchmarks.window_workload import WindowWorkload, write_window_inputs
from benchmarks.workload import Inputs

SIDES = ("fold", "aggregates", "aggregation", "transformWithState")
PENSTOCK = ("fold", "aggregates")
TARGETS = {"aggregation": 1.0, "transformWithState": 15.0}
"""What the rows per second of Penstock's fold divided by the side's should at least be."""


@dataclass(frozen=True, slots=True)
class WindowSide(Side):
    """One way through which the events go; its kind is one of SIDES."""

    short: bool = False
    """Whether it gets the first batches only."""

    @property
    def name(self) -> str:
        return f"penstock, {self.kind}" if self.kind in PENSTOCK else f"{self.kind}, {self.form}"

    @property
    def module(self) -> str:
        """Where its functions `windows` and `verify` are."""
        return "benchmarks.side_windows" if self.kind in PENSTOCK else "benchmarks.side_spark_windows"


def chosen_sides(kinds: Sequence[str]) -> list[WindowSide]:
    """Spark's aggregation once for each input."""
    sides: list[WindowSide] = []
    for kind in kinds:
        match kind:
            case "aggregation":
                sides += [WindowSide(kind, "json"), WindowSide(kind, "parquet")]
            case "transformWithState":
                sides.append(WindowSide(kind, "parquet", short=True))
            case _:
                sides.append(WindowSide(kind, "stream"))
    return sides


def measure(side: WindowSide, workload: WindowWorkload, inputs: Inputs, work: Path, threads: int) -> dict[str, Any]:
    """Run a side once, then check what it wrote."""
    parameters: dict[str, Any] = {
        "work": str(work),
        "workload": asdict(workload),
        "threads": threads,
        "partitions": threads,
        "batch_messages": workload.batch_events,
        "streams": str(inputs.streams),
        "output": OUTPUT,
        "operator": side.kind,
        "form": side.form,
        "files": str(inputs.files("parquet-short" if side.short else side.form)),
    }
    run = run_side(f"{side.module}:windows", parameters, work)
    verified = run_side(f"{side.module}:verify", parameters, work / "verify").result
    batches = run.result["batches"]
    return {"batches": batches, "verified": verified, "cpu_us_per_row": cpu_per_row(run, batches), **run_facts(run)}


def ratios(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The rows per second of Penstock's fold over those of each of Spark's operators, of which the fastest input
    counts."""
    own = next((o.rows_per_second for o in outcomes if o.side.kind == "fold"), None)
    found: dict[str, float] = {}
    for kind in TARGETS:
        theirs = [o.rows_per_second for o in outcomes if o.side.kind == kind]
        if own is not None and theirs:
            found[kind] = round(own / max(theirs), 2)
    return found


def report(outcomes: Sequence[Outcome], workload: WindowWorkload) -> None:
    """The table."""
    own = next((o for o in outcomes if o.side.kind == "fold"), None)
    print_table(
        f"windows: {workload.events:,} events, {workload.batches} batches, {workload.keys:,} keys, a batch "
        f"{workload.batch_ms:,} ms of event time",
        ("side", "rows/s", "slowest", "fastest", "the fold is", "CPU µs/row", "peak PSS", "panes"),
        [
            (
                o.side.name,
                f"{o.rows_per_second:,.0f}",
                f"{min(o.rates()):,.0f}",
                f"{max(o.rates()):,.0f}",
                "" if own is None or o is own else f"{own.rows_per_second / o.rows_per_second:.2f} x",
                f"{o.cpu_us_per_row:.1f}",
                megabytes(o.peak_bytes),
                f"{o.rounds[0]['verified']['panes']:,} verified" if o.verified else "WRONG",
            )
            for o in outcomes
        ],
    )
    for kind, ratio in ratios(outcomes).items():
        console.print(f"penstock, fold / {kind}: {ratio:.2f}, to be at least {TARGETS[kind]}")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    default = WindowWorkload()
    parser = command_line("windows", __doc__)
    parser.add_argument("--events", type=int, default=default.events)
    parser.add_argument("--batches", type=int, default=default.batches)
    parser.add_argument("--keys", type=int, default=default.keys)
    parser.add_argument("--batch-ms", type=int, default=default.batch_ms, help="event time of a batch")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--short-batches", type=int, default=4, help="batches that transformWithState gets")
    parser.add_argument("--repeat", type=int, default=1, help="rounds; every side runs once in each")
    parser.add_argument("--threads", type=int, default=2, help="local[N], tasks, partitions, shuffle partitions")
    options = positive_options(
        parser, given, "events", "batches", "keys", "batch_ms", "short_batches", "repeat", "threads"
    )
    if options.events % (options.batches * options.threads):
        parser.error("--events must be a multiple of --batches times --threads, so that all batches are equal")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    workload = WindowWorkload(options.events, options.batches, options.keys, options.batch_ms)
    short = min(options.short_batches, options.batches)
    sides = chosen_sides(options.sides)
    outcomes = [Outcome(side) for side in sides]
    facts = begin()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name)
        with console.status("writing the events"):
            inputs = write_window_inputs(workload, work / "inputs", options.threads, short)
        for number in range(options.repeat):
            for side, outcome in zip(sides, outcomes, strict=True):
                part = workload.first(short) if side.short else workload
                with console.status(f"round {number + 1} of {options.repeat}: {side.name}"):
                    outcome.rounds.append(measure(side, part, inputs, work / "side", options.threads))
                shutil.rmtree(work / "side")
    report(outcomes, workload)
    finish(
        options.json,
        "windows",
        facts,
        {outcome.side.name: outcome.rounds for outcome in outcomes},
        parameters={
            **asdict(workload),
            "short_batches": short,
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
