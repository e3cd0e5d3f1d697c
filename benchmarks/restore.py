"""Restoring a task's state from each backend and by Spark, beside copying the same files with `cp -r`."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.state.job import ENTRY_BYTES, VERIFIED_KEYS, StateJob, keys_of, settle, time_cp, write_state_inputs
from penstock.config.settings import BACKENDS
from penstock.state.reading.comparison import digest

SPARK = "spark"
NO_SNAPSHOTS = {"state.snapshot.interval.commits": "0", "state.snapshot.interval.seconds": "0"}
"""After its base, the `changelog-files` backend writes deltas only."""
REPLAYING = ("changelog-files", SPARK)
"""Sides that restore a snapshot and the changes after it."""
TARGET = 0.5
"""For `blob`: the time of `cp` divided by that of the restore, at least."""


def summary(point: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest of the rounds, which count, and the medians. `verified` is None if no round was compared."""
    rounds = point["rounds"]
    cp, restored = ([one[f"{what}_seconds"] for one in rounds] for what in ("cp", "restore"))
    compared = [one["verified"] for one in rounds if one["verified"] is not None]
    return {
        "cp_seconds": round(min(cp), 3),
        "median_cp_seconds": round(statistics.median(cp), 3),
        "restore_seconds": round(min(restored), 3),
        "median_restore_seconds": round(statistics.median(restored), 3),
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


def restore(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state and back it up; then, after so many commits of changes, copy its files and restore it, in turn.

    A large state is compared with what was restored of it only after the last of them: to read it takes longer than to
    restore it.
    """
    work, points = Path(parameters["work"]), sorted(parameters["deltas"])
    with closing(StateJob(work, parameters["backend"], NO_SNAPSHOTS)) as job:
        job.prepare(parameters["keys"])
        found = []
        for made, deltas in pairwise([0, *points]):
            for _ in range(made, deltas):
                job.change(parameters["changed"])
                job.commit()
            compared = parameters["keys"] <= VERIFIED_KEYS or deltas == points[-1]
            files = work / "files"
            job.engine().copy_to(files)
            rounds = [_round(job, files, work, compared and number == 0) for number in range(parameters["repeat"])]
            shutil.rmtree(files)
            found.append({"deltas": deltas, "rounds": rounds})
        return {"points": found}


def _round(job: StateJob, files: Path, work: Path, compared: bool) -> dict[str, Any]:
    restored = work / "restored"
    cp_seconds = time_cp(files, work / "copied")
    settle(job.roots)
    began = time.perf_counter()
    engine = job.restore(restored)
    restore_seconds = time.perf_counter() - began
    with closing(engine):
        verified = digest(engine) == digest(job.engine()) if compared else None
    shutil.rmtree(restored)
    return {"cp_seconds": cp_seconds, "restore_seconds": restore_seconds, "verified": verified}


@harness.benchmark(
    "restore", __doc__, megabytes=1024, sides=[*BACKENDS, SPARK], deltas=[0, 1, 5, 20, 100], changed=10_000, repeat=5,
    threads=2,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options = bench.options
    keys, deltas = keys_of(options.megabytes), sorted(set(options.deltas))
    changed = min(options.changed, keys)
    for side in options.sides:
        parameters: dict[str, Any] = {
            "backend": side,
            "keys": keys,
            "deltas": deltas if side in REPLAYING else deltas[-1:],
            "changed": changed,
        }
        if side == SPARK:
            parameters |= write_state_inputs(bench.work / "inputs", keys, [changed] * deltas[-1])
        target = "state.spark:loads" if side == SPARK else "restore:restore"
        bench.run(side, target, parameters, figures=figures)
    points = {side: runs[0]["points"] for side, runs in bench.runs.items()}
    rows = {f"{side}, {n} deltas": point for side, own in points.items() for n, point in own.items()}
    columns = {f"{name}_seconds": ".2f" for name in ("cp", "median_cp", "restore", "median_restore")}
    harness.show("restore", rows, **columns, ratio_to_cp=".2f", verified="")
    if "blob" in points:
        bench.target("blob, of the speed of cp", points["blob"][deltas[-1]]["ratio_to_cp"], at_least=TARGET)
    ratios = {}
    if set(REPLAYING) <= points.keys():
        own, spark = (points[side] for side in REPLAYING)
        ratios = {n: round(spark[n]["restore_seconds"] / own[n]["restore_seconds"], 2) for n in own}
        harness.console.print(f"spark / changelog-files, by deltas: {ratios}")
    sides = {side: {"per_delta_ms": per_delta_ms(own)} for side, own in points.items()}
    return bench.finish(sides, ratios=ratios, state_bytes=keys * ENTRY_BYTES)
