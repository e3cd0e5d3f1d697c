"""Messages between stages: one Spark row per message, packets in Spark's rows, and packets in frames.

1,000,000 messages of 60 bytes go from one stage of Python through a shuffle to a second one, with 2 and with 8 tasks:

* row-wise: `mapInArrow` and `repartitionById`, with the columns (dest, key, value, timestamp, offset);
* packed rows: the same with packets as `penstock.runtime.messages.packet` makes them, a row each;
* frames: packets in RDDs of raw frames, as `penstock.spark.batches.lineage` sends them.

All begin with the same Arrow batches of messages and end with Arrow batches of messages, and the counts and offsets
that come out are checked. Each side runs in a process of its own, in turn.

    python -m benchmarks.shuffle [--messages N] [--tasks N ...] [--rounds N] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import (
    DRIVER_MEMORY,
    RESULTS,
    console,
    contention,
    describe_machine,
    end_on_sigterm,
    machine,
    megabytes,
    print_table,
    run_facts,
    run_side,
    warn_of_contention,
    write_json,
)

FORMS = ("row-wise", "packed rows", "frames")
MESSAGE_BYTES = 60
WARM_UP = 3


def measure(form: str, tasks: int, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run a side once."""
    run = run_side(
        "benchmarks.side_shuffle:shuffle",
        {
            "form": form,
            "tasks": tasks,
            "messages": options.messages,
            "rounds": options.rounds,
            "warm_up": WARM_UP,
            "threads": options.threads,
            "work": str(work),
        },
        work,
    )
    spent = run.usage.cpu_between(run.result["started"], run.result["ended"])
    rows = options.messages * options.rounds
    return {
        **run.result,
        "cpu_us_per_message": {kind: round(seconds / rows * 1e6, 3) for kind, seconds in spent.items()},
        **run_facts(run),
    }


def summarise(form: str, tasks: int, runs: Sequence[dict[str, Any]], messages: int) -> dict[str, Any]:
    """The medians over all rounds of all runs."""
    seconds = float(statistics.median(second for run in runs for second in run["round_seconds"]))
    return {
        "form": form,
        "tasks": tasks,
        "seconds": round(seconds, 4),
        "empty_seconds": round(statistics.median(second for run in runs for second in run["empty_round_seconds"]), 4),
        "messages_per_second": round(messages / seconds),
        "cpu_us_per_message": round(statistics.median(sum(run["cpu_us_per_message"].values()) for run in runs), 3),
        "peak_bytes": max(run["peak"]["total_bytes"] for run in runs),
        "runs": list(runs),
    }


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shuffle", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=5, help="measured jobs in one process")
    parser.add_argument("--repeat", type=int, default=2, help="processes of each side")
    parser.add_argument("--threads", type=int, default=2, help="local[N]")
    parser.add_argument("--json", type=Path, default=RESULTS / "shuffle.json")
    options = parser.parse_args(given)
    if min(options.messages, options.rounds, options.repeat, options.threads, *options.tasks) < 1:
        parser.error("all numbers must be at least 1")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    end_on_sigterm()
    facts = machine()
    console.print(describe_machine(facts))
    runs: dict[tuple[int, str], list[dict[str, Any]]] = {(t, form): [] for t in options.tasks for form in FORMS}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name) / "side"
        for number in range(options.repeat):
            for (tasks, form), found in runs.items():
                with console.status(f"round {number + 1} of {options.repeat}: {form}, {tasks} tasks"):
                    found.append(measure(form, tasks, options, work))
                shutil.rmtree(work)
    sides = {
        f"{form}, {tasks} tasks": summarise(form, tasks, found, options.messages)
        for (tasks, form), found in runs.items()
    }
    ratios = {
        f"{form}, {tasks} tasks": round(sides[f"{form}, {tasks} tasks"]["seconds"] / frames["seconds"], 2)
        for tasks in options.tasks
        for frames in [sides[f"frames, {tasks} tasks"]]
        for form in FORMS[:-1]
    }
    report(sides, ratios, options.messages)
    contended = contention({name: side["runs"] for name, side in sides.items()}, facts["cores"])
    warn_of_contention(contended)
    parameters = {
        "messages": options.messages,
        "message_bytes": MESSAGE_BYTES,
        "rounds": options.rounds,
        "repeat": options.repeat,
        "warm_up": WARM_UP,
        "threads": options.threads,
        "driver_memory": DRIVER_MEMORY,
    }
    result = {
        "benchmark": "shuffle",
        "machine": facts,
        "parameters": parameters,
        "sides": sides,
        "ratios": ratios,
        "contention": contended,
    }
    write_json(options.json, result)
    return 0


def report(sides: dict[str, dict[str, Any]], ratios: dict[str, float], messages: int) -> None:
    """The table."""
    print_table(
        f"shuffle: {messages:,} messages of {MESSAGE_BYTES} bytes",
        ("side", "messages/s", "seconds", "empty job", "CPU µs/message", "peak PSS"),
        [
            (
                name,
                f"{side['messages_per_second']:,}",
                f"{side['seconds']:.2f}",
                f"{side['empty_seconds']:.2f}",
                f"{side['cpu_us_per_message']:.2f}",
                megabytes(side["peak_bytes"]),
            )
            for name, side in sides.items()
        ],
    )
    for side, ratio in ratios.items():
        console.print(f"frames are {ratio:.2f} times as fast as {side}")


if __name__ == "__main__":
    sys.exit(main())
