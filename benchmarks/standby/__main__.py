"""The time that a job stands still when a container or an executor is killed with `kill -9`, with a large state.

A job of four tasks in two containers, each on a separate executor, has `--megabytes` of state and processes a few
messages all the time. Then a container is killed: with a `standby` of each task in the other container
(`job.standbytasks.replication.factor` 2), with a `host copy` (`job.host-affinity.enabled`), and without either, from
`blob` and from `changelog-files`. Spark's side is an aggregation with its RocksDB state store and as many partitions,
of which an executor is killed. What is measured, from the kill on:

* `noticed`: until the driver knows that the container, or the executor, is lost;
* `processed`: until a message of a lost task is processed elsewhere;
* `visible`: until its batch has written it; of Spark, until the end of the first batch that the loss had to do with.

    python -m benchmarks.standby [--megabytes N] [--sides ...] [--victim container|executor] [--repeat N]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import harness

SPARK = "spark"
SIDES = ("standby", "host copy", "blob", "changelog-files", SPARK)
TARGET_MS = 2000.0
"""Between noticing a loss and the next message, with a standby."""
FIGURES = ("noticed", "after_notice", "processed", "visible")


def figures(run: harness.SideRun) -> dict[str, Any]:
    """The median and the slowest of each figure, in milliseconds."""
    kills = [{**kill, "after_notice_ms": after_notice(kill)} for kill in run.result["rounds"]]
    found: dict[str, Any] = {}
    for figure in FIGURES:
        values = [kill[f"{figure}_ms"] for kill in kills if kill.get(f"{figure}_ms") is not None]
        if values:
            found |= {f"{figure}_ms": round(statistics.median(values)), f"{figure}_most_ms": round(max(values))}
    return {**run.result, **found}


def after_notice(kill: harness.Run) -> float | None:
    """From the notice to the next message; of Spark, to the end of its batch."""
    noticed = kill.get("noticed_ms")
    return None if noticed is None else float(kill.get("processed_ms", kill["visible_ms"]) - noticed)


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options(
        "standby", __doc__, given, megabytes=1024, sides=list(SIDES), victim="container", repeat=5
    )
    with harness.Bench("standby", options) as bench:
        for side in options.sides:
            parameters = {
                "kind": side,
                "megabytes": options.megabytes,
                "repeat": options.repeat,
                "victim": options.victim,
            }
            module = "spark:spark" if side == SPARK else "penstock:penstock"
            bench.run(side, f"standby.{module}", parameters, figures=figures)
        rows = {side: runs[0] for side, runs in bench.runs.items()}
        columns = {f"{figure}_{kind}": "," for figure in FIGURES for kind in ("ms", "most_ms")}
        harness.show("kill -9", rows, state_bytes="MB", **columns, peak_bytes="MB")
        if "after_notice_most_ms" in rows.get("standby", {}):
            found = rows["standby"]["after_notice_most_ms"]
            bench.target("with a standby, ms after the loss is noticed", found, at_most=TARGET_MS)
        visible = {side: row["visible_ms"] for side, row in rows.items()}
        spark = visible.pop(SPARK, None)
        return bench.finish(ratios={side: round(spark / ms, 2) for side, ms in visible.items()} if spark else {})


if __name__ == "__main__":
    sys.exit(main())
