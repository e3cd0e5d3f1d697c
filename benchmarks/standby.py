"""How long a job stands still when a container or an executor is killed with `kill -9`, with a large state.

A job of four tasks in two containers, each on a separate executor, has `--megabytes` of state and processes a few
messages all the time. Then a container is killed: with a `standby` of each task in the other container
(`job.standbytasks.replication.factor` 2), with a `host copy` (`job.host-affinity.enabled`), and without either, from
`blob`
and from `changelog-files`. Spark's side is an aggregation with its RocksDB state store and as many partitions, of which
an executor is killed. What is measured, from the kill on:

* `noticed`: until the driver knows that the container, or the executor, is lost;
* `processed`: until a message of a lost task is processed elsewhere;
* `visible`: until its batch has written it; of Spark, until the end of the first batch that the loss had to do with.

    python -m benchmarks.standby [--megabytes N] [--sides ...] [--victim container|executor] [--repeat N]
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
    megabytes,
    positive_options,
    print_table,
    run_facts,
    run_side,
)

SPARK = "spark"
SIDES = ("standby", "host copy", "blob", "changelog-files", SPARK)
TARGET_MS = 2000.0
"""Between noticing a loss and the next message, with a standby."""
FIGURES = ("noticed_ms", "processed_ms", "visible_ms", "after_notice_ms")

Summary = Mapping[str, Any]


def measure(side: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run a side."""
    given = {
        "work": str(work),
        "kind": side,
        "megabytes": options.megabytes,
        "repeat": options.repeat,
        "victim": options.victim,
    }
    run = run_side(f"benchmarks.side_standby:{'spark' if side == SPARK else 'penstock'}", given, work)
    return {**summarise(run.result["rounds"]), **run.result, **run_facts(run)}


def summarise(rounds: Sequence[Summary]) -> dict[str, Any]:
    """The median and the slowest of each figure, in milliseconds."""
    split = [{**one, "after_notice_ms": after_notice(one)} for one in rounds]
    found: dict[str, Any] = {}
    for figure in FIGURES:
        values = [one[figure] for one in split if one.get(figure) is not None]
        found[figure] = {"median": round(statistics.median(values)), "most": round(max(values))} if values else None
    return found


def after_notice(one: Summary) -> float | None:
    """From the notice to the next message; of Spark, to the end of its batch."""
    if one.get("noticed_ms") is None:
        return None
    return float(one.get("processed_ms", one["visible_ms"]) - one["noticed_ms"])


def report(sides: Mapping[str, Summary], victim: str) -> None:
    """The table."""
    print_table(
        f"kill -9 of {'an' if victim == 'executor' else 'a'} {victim}: median (and slowest), ms",
        ("side", "state", "noticed", "after it", "processed", "visible", "peak memory"),
        [
            (
                name,
                megabytes(side["state_bytes"]),
                *(_shown(side[figure]) for figure in ("noticed_ms", "after_notice_ms", "processed_ms", "visible_ms")),
                megabytes(side["peak"]["total_bytes"]),
            )
            for name, side in sides.items()
        ],
    )
    if "standby" in sides and sides["standby"]["after_notice_ms"]:
        found = sides["standby"]["after_notice_ms"]["most"]
        console.print(f"with a standby: at most {found:,} ms after the loss is noticed, to be at most {TARGET_MS:,.0f}")
    for name, ratio in ratios(sides).items():
        console.print(f"spark / {name}, until visible: {ratio:.1f}")


def ratios(sides: Mapping[str, Summary]) -> dict[str, float]:
    """How many times as long Spark takes until its batch is through, by side."""
    if SPARK not in sides:
        return {}
    spark = sides[SPARK]["visible_ms"]["median"]
    return {name: round(spark / side["visible_ms"]["median"], 2) for name, side in sides.items() if name != SPARK}


def _shown(figure: Summary | None) -> str:
    return "" if figure is None else f"{figure['median']:,} ({figure['most']:,})"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("standby", __doc__)
    parser.add_argument("--megabytes", type=int, default=1024, help="keys and values of the state")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--victim", choices=("container", "executor"), default="container", help="of Penstock's sides")
    parser.add_argument("--repeat", type=int, default=5, help="kills")
    return positive_options(parser, given, "megabytes", "repeat")


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    facts = begin()
    sides: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for side in options.sides:
            work = Path(name) / "side"
            with console.status(side):
                sides[side] = measure(side, options, work)
            shutil.rmtree(work, ignore_errors=True)
    report(sides, options.victim)
    parameters = {name: value for name, value in vars(options).items() if name != "json"}
    measured = {name: [side] for name, side in sides.items()}
    finish(options.json, "standby", facts, measured, parameters=parameters, sides=sides, ratios=ratios(sides))
    return 0


if __name__ == "__main__":
    sys.exit(main())
