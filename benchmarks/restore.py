"""Restoring a task's state from each backend and by Spark, beside copying the same files with `cp -r`.

A state is backed up as a whole, and then some commits of changes. In turn, and `--repeat` times, the files of RocksDB
are copied with `cp -r` and the store is restored into an empty folder, ready to be read. Of `changelog-files` and Spark
that is done after each number of `--deltas`: commits after the last snapshot, which a restore replays. Of the other
backends, which have no snapshots, after the last of them.

Spark's RocksDB state store loads its state for the first batch of a query that is started again, on a copy of the
checkpoint. The load alone counts, by Spark's log; `start_seconds` is the whole query of one batch. Before each of them
everything written is on disk, and what it reads is in the page cache, or dropped from it (`--page-cache cold`).

    python -m benchmarks.restore [--megabytes N] [--deltas N ...] [--sides ...] [--page-cache warm|cold] [--repeat N]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.state.content import KEY_BYTES, VALUE_BYTES, keys_of, spark_parameters
from penstock.config.settings import BACKENDS

SPARK = "spark"
REPLAYING = ("changelog-files", SPARK)
"""Sides that restore a snapshot and the changes after it."""
TARGETS = {"blob": 0.5}
"""The time of `cp` divided by that of the restore, at least."""


def summary(point: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest of the rounds, and the medians. `verified` is None if no round was compared.

    The fastest count: in some rounds the kernel takes several times as long for as many pages of the files that are
    written, probably because the host had taken the memory back. Which side meets that is chance.
    """
    rounds = point["rounds"]
    cp, restored = ([one[f"{what}_seconds"] for one in rounds] for what in ("cp", "restore"))
    starts = [one["start_seconds"] for one in rounds if "start_seconds" in one]
    compared = [one["verified"] for one in rounds if one["verified"] is not None]
    return {
        "cp_seconds": round(min(cp), 3),
        "median_cp_seconds": round(statistics.median(cp), 3),
        "restore_seconds": round(min(restored), 3),
        "median_restore_seconds": round(statistics.median(restored), 3),
        "slowest_restore_seconds": round(max(restored), 3),
        "start_seconds": round(statistics.median(starts), 3) if starts else None,
        "ratio_to_cp": round(min(cp) / min(restored), 3),
        "verified": all(compared) if compared else None,
        **point,
    }


def figures(run: harness.SideRun) -> dict[str, Any]:
    """By the number of deltas."""
    points = {point["deltas"]: summary(point) for point in run.result["points"]}
    return {"points": points, "verified": not any(point["verified"] is False for point in points.values())}


def per_delta_ms(points: Mapping[int, Mapping[str, Any]]) -> float | None:
    """The time that a delta adds to a restore. None if all runs have equally many deltas."""
    least, most = min(points), max(points)
    if least == most:
        return None
    seconds = points[most]["restore_seconds"] - points[least]["restore_seconds"]
    return float(round(seconds / (most - least) * 1000, 2))


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options(
        "restore", __doc__, given, megabytes=1024, sides=[*BACKENDS, SPARK], deltas=[0, 1, 5, 20, 100],
        changed=10_000, page_cache="warm", repeat=5, threads=2,
    )  # fmt: skip
    with harness.Bench("restore", options) as bench:
        keys, deltas = keys_of(options.megabytes), sorted(set(options.deltas))
        changed = min(options.changed, keys)
        for side in options.sides:
            parameters: dict[str, Any] = {
                "backend": side,
                "keys": keys,
                "value_bytes": VALUE_BYTES,
                "deltas": deltas if side in REPLAYING else deltas[-1:],
                "changed": changed,
                "repeat": options.repeat,
                "page_cache": options.page_cache,
                "threads": options.threads,
            }
            if side == SPARK:
                parameters |= spark_parameters(bench.work / "inputs", keys, [changed] * deltas[-1])
            target = "state.spark:loads" if side == SPARK else "state.penstock:restore"
            bench.run(side, target, parameters, figures=figures)
        points = {side: runs[0]["points"] for side, runs in bench.runs.items()}
        seconds = ("cp", "median_cp", "restore", "median_restore", "slowest_restore", "start")
        rows = {f"{side}, {n} deltas": point for side, own in points.items() for n, point in own.items()}
        columns = {f"{name}_seconds": ".2f" for name in seconds}
        harness.show("restore", rows, **columns, ratio_to_cp=".2f", durable_bytes="MB", verified="")
        for side, least in TARGETS.items():
            if side in points:
                bench.target(f"{side}, of the speed of cp", points[side][deltas[-1]]["ratio_to_cp"], at_least=least)
        ratios = {}
        if set(REPLAYING) <= points.keys():
            own, spark = (points[side] for side in REPLAYING)
            ratios = {n: round(spark[n]["restore_seconds"] / own[n]["restore_seconds"], 2) for n in own}
            harness.console.print(f"spark / changelog-files, by deltas: {ratios}")
        sides = {side: {"per_delta_ms": per_delta_ms(own)} for side, own in points.items()}
        return bench.finish(sides, ratios=ratios, state_bytes=keys * (KEY_BYTES + VALUE_BYTES))


if __name__ == "__main__":
    sys.exit(main())
