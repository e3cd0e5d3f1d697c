"""Timers of tasks: microseconds to set, replace, cancel and fire one, while a million wait.

The timers are those of a task: `context.schedule` and `cancel` above the store that a container opens, and `on_timer`
for those that are due, by batches, each of them applied to RocksDB. With `--spark`, PySpark's `transformWithState` sets
and fires a timer for each key; the same query without timers is subtracted.

    python -m benchmarks.timers [--timers N] [--batch N] [--repeat N] [--spark] [--spark-timers N] [--json PATH]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import (
    begin,
    command_line,
    console,
    finish,
    positive_options,
    print_table,
    run_facts,
    run_side,
)

FIGURES = {
    "set_first_us": "set one, none waits",
    "set_last_us": "set one, all others wait",
    "replace_us": "replace one",
    "cancel_us": "cancel one",
    "oldest_us": "what is due next, in a batch",
    "fire_first_us": "fire one, all others wait",
    "fire_last_us": "fire one of the last",
}


def median_of(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {figure: round(statistics.median(each[figure] for each in rounds), 2) for figure in rounds[0]}


def report(figures: Mapping[str, float], spark: Mapping[str, float]) -> None:
    """The table."""
    beside = {"set_last_us": spark.get("set_us"), "fire_first_us": spark.get("fire_us")}
    rows = [
        (what, f"{figures[figure]:,.2f}", "" if (found := beside.get(figure)) is None else f"{found:,.1f}")
        for figure, what in FIGURES.items()
    ]
    print_table("microseconds, median", ("", "Penstock", "transformWithState"), rows)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("timers", __doc__)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000, help="timers that a batch sets or fires")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="measure transformWithState as well")
    parser.add_argument("--spark-timers", type=int, default=200_000)
    return positive_options(parser, given, "timers", "batch", "repeat", "spark_timers")


def main(given: Sequence[str] | None = None) -> int:
    """Run the sides in turn, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    facts = begin()
    sides = {"in_process": {"timers": options.timers, "batch": options.batch}}
    if options.spark:
        sides["spark"] = {"timers": options.spark_timers, "threads": facts["cores"], "partitions": facts["cores"]}
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name) / "side"
        for side in [*sides] * options.repeat:
            with console.status(side):
                run = run_side(f"benchmarks.side_timers:{side}", {**sides[side], "work": str(work)}, work)
            shutil.rmtree(work)
            runs[side].append(run_facts(run))
            rounds[side].append(run.result)
    figures = {side: median_of(found) for side, found in rounds.items()}
    report(figures["in_process"], figures.get("spark", {}))
    finish(options.json, "timers", facts, runs, parameters=sides, figures=figures, rounds=rounds, runs=runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
