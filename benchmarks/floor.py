"""What a small batch consists of.

Batches of 480 messages in 8 partitions go through 1, 2 and 3 exchanges with a store behind each, into no output and
into two outputs of 8 partitions each (an exchange more, and 16 synced appends). There are no commits. Every job runs in
a process of its own; what counts is the median over `--batches` batches after a warm-up. Beside each job stand

* `Spark alone`: a Spark job with as many shuffles, whose tasks are Python functions that pass nothing on;
* `appends`: what the sink tasks write in a batch, from one process in the time of one append after the other, and all
  at once as they do it;
* `End`, which the driver measures.

What is left is reading, the operators, the calls to the containers (Flight) and the driver's own work.

    python -m benchmarks.floor [--batches N] [--exchanges 1 2 3] [--threads N] [--json PATH]
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

MESSAGES = 480
WARM_UP = 10
TARGET_MS = 120.0
"""What a batch through two exchanges into the outputs is to take at the most."""


def job_name(exchanges: int, outputs: bool) -> str:
    """Its name in the table."""
    return f"{exchanges} exchange{'s' if exchanges > 1 else ''}, {'two outputs' if outputs else 'no output'}"


def summarise(batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median milliseconds of the batches after the warm-up."""
    durations = [batch["duration_ms"] for batch in batches[WARM_UP:]]
    return {
        "batch": statistics.median(d["triggerExecution"] for d in durations),
        "spark_job": statistics.median(d["addBatch"] for d in durations),
        "end": statistics.median(d["end"] for d in durations),
    }


def parts(job: Mapping[str, float], spark_alone: float, appends: float) -> dict[str, float]:
    """What a batch consists of, in milliseconds; `rest` is all other work."""
    rest = job["batch"] - spark_alone - appends - job["end"]
    return {
        "spark_alone": round(spark_alone, 1),
        "appends": round(appends, 1),
        "end": job["end"],
        "rest": round(rest, 1),
    }


def report(jobs: Mapping[str, Mapping[str, Any]], appends: Mapping[str, float]) -> None:
    """The table."""
    print_table(
        f"a batch of {MESSAGES} messages, median ms",
        ("", "batch", "Spark alone", "appends", "End", "rest"),
        [(name, *(f"{value:.0f}" for value in (job["batch"], *job["parts"].values()))) for name, job in jobs.items()],
    )
    console.print(f"16 appends: {appends['in_turn']:.1f} ms one after the other, {appends['at_once']:.1f} ms at once")
    target = jobs.get(job_name(2, True))
    if target is not None:
        console.print(f"{job_name(2, True)}: {target['batch']:.0f} ms, to be at most {TARGET_MS:.0f} ms")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("floor", __doc__)
    parser.add_argument("--batches", type=int, default=100, help="measured batches of each job")
    parser.add_argument("--exchanges", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=2, help="local[N], containers")
    return positive_options(parser, given, "batches", "threads", "exchanges")


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    facts = begin()
    common = {"messages": MESSAGES, "batches": options.batches + WARM_UP, "threads": options.threads}
    runs: dict[str, list[dict[str, Any]]] = {}
    jobs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:

        def side(what: str, function: str, **more: Any) -> dict[str, Any]:
            work = Path(name) / "side"
            with console.status(what):
                run = run_side(f"benchmarks.side_floor:{function}", {**common, **more, "work": str(work)}, work)
            shutil.rmtree(work)
            runs.setdefault(what, []).append(run_facts(run))
            return run.result

        found = side("appends", "appends")
        appends = {key: statistics.median(found[key][WARM_UP:]) for key in ("in_turn", "at_once")}
        spark_alone: dict[int, float] = {}
        for exchanges in options.exchanges:
            for outputs in (False, True):
                shuffles = exchanges + outputs
                if shuffles not in spark_alone:
                    took = side(f"Spark alone, {shuffles} shuffles", "spark_alone", shuffles=shuffles)["ms"]
                    spark_alone[shuffles] = statistics.median(took[WARM_UP:])
                what = job_name(exchanges, outputs)
                job = summarise(side(what, "batches", exchanges=exchanges, outputs=outputs)["batches"])
                written = appends["at_once"] if outputs else 0.0
                jobs[what] = {**job, "parts": parts(job, spark_alone[shuffles], written)}
    report(jobs, appends)
    finish(
        options.json,
        "floor",
        facts,
        runs,
        parameters={"batches": options.batches, "warm_up": WARM_UP, **common},
        jobs=jobs,
        spark_alone_ms=spark_alone,
        appends_ms=appends,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
