"""How long a start takes: from the command to the first committed batch.

In turn, over `--repeat` rounds, each command in a fresh process and an empty folder:

* `bare`: a Python program that makes a Spark session (`local[N]`) and then runs one task in a Python worker;
* `penstock`: `penstock run`, two stages with a store and an output, until its checkpoint of the first batch is there;
* `query`: a Spark streaming query over the same messages as JSON files, `groupBy().agg` with RocksDB, until its first
  batch is in its commit log.

All are watched from outside, by what is on disk. The last column is what Penstock takes more than the session alone.
`penstock --help` is timed as well, the fastest of `--repeat` times.

    python -m benchmarks.start [--repeat N] [--threads N] [--messages N] [--json PATH]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
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

SIDES = ("bare", "penstock", "query")
ENDS = {"bare": "session", "penstock": "first commit", "query": "first commit"}
"""The moment of each side that counts."""
TARGET_SECONDS = 3.0
HELP_SECONDS = 0.3


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds from the command to each moment, the median over the rounds."""
    return {name: round(statistics.median(one["moments"][name] for one in rounds), 2) for name in rounds[0]["moments"]}


def more_than_bare(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """What a side took more than the bare session of the same round, the median over the rounds."""
    bare = [one["moments"][ENDS["bare"]] for one in rounds["bare"]]
    return {
        side: round(
            statistics.median(one["moments"][ENDS[side]] - without for one, without in zip(own, bare, strict=True)),
            2,
        )
        for side, own in rounds.items()
        if side != "bare"
    }


def help_seconds(repeat: int) -> float:
    """`penstock --help`, the fastest of some."""
    found = []
    for _ in range(max(3, repeat)):
        began = time.perf_counter()
        command = [sys.executable, "-m", "penstock.cli", "--help"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ))
        found.append(time.perf_counter() - began)
    return round(min(found), 3)


def report(rounds: Mapping[str, Sequence[Mapping[str, Any]]], more: Mapping[str, float], help_s: float) -> None:
    """The table."""
    rows = []
    for side, own in rounds.items():
        for moment, seconds in medians(own).items():
            last = moment == ENDS[side] and side in more
            rows.append((f"{side}: {moment}", f"{seconds:.2f} s", f"{more[side]:+.2f} s" if last else ""))
    print_table("from the command to", ("", "median", "more than the bare session"), rows)
    if "penstock" in more:
        console.print(f"penstock: {more['penstock']:+.2f} s, to be at most {TARGET_SECONDS} s")
    console.print(f"penstock --help: {help_s:.2f} s, to be at most {HELP_SECONDS} s")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("start", __doc__)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--repeat", type=int, default=5, help="rounds; every side runs once in each")
    parser.add_argument("--threads", type=int, default=2, help="local[N], partitions")
    parser.add_argument("--messages", type=int, default=1000)
    options = positive_options(parser, given, "repeat", "threads", "messages")
    if "bare" not in options.sides:
        parser.error("--sides needs bare, with which the others are compared")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    facts = begin()
    rounds: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for number in range(options.repeat):
            for side in options.sides[:: 1 if number % 2 == 0 else -1]:
                work = Path(name) / side
                parameters = {"work": str(work), "threads": options.threads, "messages": options.messages}
                with console.status(f"round {number + 1} of {options.repeat}: {side}"):
                    run = run_side(f"benchmarks.side_start:{side}", parameters, work, timeout_s=600)
                rounds[side].append({**run.result, **run_facts(run)})
                shutil.rmtree(work)
    more, help_s = more_than_bare(rounds), help_seconds(options.repeat)
    report(rounds, more, help_s)
    finish(
        options.json,
        "start",
        facts,
        rounds,
        parameters={"rounds": options.repeat, "threads": options.threads, "messages": options.messages},
        sides={side: {"medians": medians(own), "rounds": own} for side, own in rounds.items()},
        more_than_bare=more,
        help_seconds=help_s,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
