"""Restoring a task's state from each backend and by Spark, beside copying the same files with `cp -r`.

`--megabytes` of keys and values are backed up as a whole, and then some commits of changes; every side has a state of
its own, equal to the others'. In turn, and `--repeat` times, the files of RocksDB are copied with `cp -r` and the store
is restored into an empty folder, ready to be read. Of `changelog-files` and Spark that is done after each number of
`--deltas`: commits after the last snapshot, which a restore replays. Of the other backends, which have no snapshots,
after the last of them.

Spark's RocksDB state store loads its state for the first batch of a query that is started again, on a copy of the
checkpoint. What counts is the load alone, by what Spark logs; `start` is the whole query of one batch. Job root,
checkpoint and folders are on one disk. Before each of them everything written is on disk (sync), and what it reads is
in the page cache (`--page-cache warm`) or dropped from it (`cold`); none of them syncs what it writes. One task
restores alone; a container restores its tasks in parallel.

    python -m benchmarks.restore [--megabytes N] [--deltas N ...] [--sides ...] [--page-cache warm|cold] [--repeat N]
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
from benchmarks.state_content import KEY_BYTES, VALUE_BYTES, keys_of
from benchmarks.state_inputs import write_state_inputs
from penstock.config.table import BACKENDS

SPARK = "spark"
REPLAYING = ("changelog-files", SPARK)
"""What restores a snapshot and the changes after it."""
TARGETS = {"blob": 0.5}
"""What the time of `cp` divided by that of the restore should at least be."""

Summary = Mapping[str, Any]


def measure(side: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run a side."""
    keys = keys_of(options.megabytes)
    deltas = sorted(set(options.deltas)) if side in REPLAYING else [max(options.deltas)]
    changed = min(options.changed, keys)
    given: dict[str, Any] = {
        "keys": keys,
        "value_bytes": VALUE_BYTES,
        "deltas": deltas,
        "changed": changed,
        "repeat": options.repeat,
        "page_cache": options.page_cache,
        "work": str(work),
    }
    if side == SPARK:
        counts = [changed] * deltas[-1]
        inputs = write_state_inputs(work / "inputs", keys, VALUE_BYTES, counts)
        files = {"files": str(inputs.folder), "fill": inputs.fill, "changes": inputs.changes, "counts": counts}
        run = run_side("benchmarks.side_spark_state:loads", {**given, **files, "threads": options.threads}, work)
    else:
        run = run_side("benchmarks.side_state:restore", {**given, "backend": side}, work)
    state_bytes = keys * (KEY_BYTES + VALUE_BYTES)
    points = {point["deltas"]: summarise(point) for point in run.result["points"]}
    return {"points": points, "state_bytes": state_bytes, **run_facts(run)}


def summarise(point: Summary) -> dict[str, Any]:
    """The fastest of the rounds, and the medians. `verified` is None if no round was compared.

    The fastest count: in some rounds the kernel takes several times as long for as many pages of the files that are
    written, probably because the host had taken the memory back. Which side meets that is chance.
    """
    rounds = point["rounds"]
    cp = [one["cp_seconds"] for one in rounds]
    restored = [one["restore_seconds"] for one in rounds]
    compared = [one["verified"] for one in rounds if one["verified"] is not None]
    return {
        "cp_seconds": round(min(cp), 3),
        "median_cp_seconds": round(statistics.median(cp), 3),
        "restore_seconds": round(min(restored), 3),
        "median_restore_seconds": round(statistics.median(restored), 3),
        "slowest_restore_seconds": round(max(restored), 3),
        "ratio_to_cp": round(min(cp) / min(restored), 3),
        "verified": all(compared) if compared else None,
        **point,
    }


def per_delta_ms(points: Mapping[int, Summary]) -> float | None:
    """What each delta adds to a restore, from the fewest to the most of them; None without two numbers of them."""
    least, most = min(points), max(points)
    if least == most:
        return None
    seconds = points[most]["restore_seconds"] - points[least]["restore_seconds"]
    return float(round(seconds / (most - least) * 1000, 2))


def ratios(sides: Mapping[str, Summary]) -> dict[int, float]:
    """How many times as long Spark's load takes as a restore from `changelog-files`, by the number of deltas."""
    if not set(REPLAYING) <= sides.keys():
        return {}
    own, spark = (sides[side]["points"] for side in REPLAYING)
    return {
        deltas: round(spark[deltas]["restore_seconds"] / own[deltas]["restore_seconds"], 2)
        for deltas in own
        if deltas in spark
    }


def report(sides: Mapping[str, Summary], page_cache: str) -> None:
    """The table."""
    print_table(
        f"restore, {page_cache} page cache: fastest (and median)",
        ("side", "deltas", "state", "cp -r", "restore", "slowest", "start", "MB/s", "of cp", "stored", "content"),
        [
            (
                name,
                f"{deltas}",
                megabytes(side["state_bytes"]),
                f"{point['cp_seconds']:.2f} s ({point['median_cp_seconds']:.2f})",
                f"{point['restore_seconds']:.2f} s ({point['median_restore_seconds']:.2f})",
                f"{point['slowest_restore_seconds']:.2f} s",
                _start(point),
                f"{side['state_bytes'] / 2**20 / point['restore_seconds']:,.0f}",
                f"{point['ratio_to_cp']:.2f}",
                megabytes(point["durable_bytes"]),
                {True: "verified", False: "WRONG", None: ""}[point["verified"]],
            )
            for name, side in sides.items()
            for deltas, point in side["points"].items()
        ],
    )
    for name, side in sides.items():
        each = per_delta_ms(side["points"])
        each_told = "" if each is None else f"; each delta adds {each:.1f} ms"
        console.print(f"{name}: peak memory {megabytes(side['peak']['total_bytes'])} (PSS){each_told}")
    for deltas, ratio in ratios(sides).items():
        console.print(f"spark / changelog-files, {deltas} deltas: {ratio:.2f}")
    for name, target in TARGETS.items():
        if name in sides:
            ratio = max(sides[name]["points"].items())[1]["ratio_to_cp"]
            console.print(f"{name}: {ratio:.2f} of the speed of cp, to be at least {target}")


def _start(point: Summary) -> str:
    starts = [one["start_seconds"] for one in point["rounds"] if "start_seconds" in one]
    return f"{statistics.median(starts):.2f} s" if starts else ""


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="keys and values of the state")
    parser.add_argument("--sides", nargs="+", default=[*BACKENDS, SPARK], help="backends (or module:Class), and spark")
    parser.add_argument("--deltas", type=int, nargs="+", default=[0, 1, 5, 20, 100], help="commits after the snapshot")
    parser.add_argument("--changed", type=int, default=10_000, help="keys that each of them changes")
    parser.add_argument("--page-cache", choices=("warm", "cold"), default="warm")
    parser.add_argument("--repeat", type=int, default=5, help="rounds of cp and restore")
    parser.add_argument("--threads", type=int, default=2, help="Spark's local[N]")
    parser.add_argument("--json", type=Path, default=RESULTS / "restore.json")
    options = parser.parse_args(given)
    if min(options.megabytes, options.changed, options.repeat, options.threads) < 1 or min(options.deltas) < 0:
        parser.error("all numbers but --deltas must be at least 1")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    end_on_sigterm()
    facts = machine()
    console.print(describe_machine(facts))
    sides: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name) / "side"
        for side in options.sides:
            with console.status(side):
                sides[side] = measure(side, options, work)
            shutil.rmtree(work)
    report(sides, options.page_cache)
    contended = contention({name: [side] for name, side in sides.items()}, facts["cores"])
    warn_of_contention(contended)
    result = {
        "benchmark": "restore",
        "machine": facts,
        "parameters": {
            **{name: value for name, value in vars(options).items() if name not in ("json", "sides")},
            "key_bytes": KEY_BYTES,
            "value_bytes": VALUE_BYTES,
        },
        "sides": sides,
        "per_delta_ms": {name: per_delta_ms(side["points"]) for name, side in sides.items()},
        "ratios": ratios(sides),
        "contention": contended,
    }
    write_json(options.json, result)
    wrong = any(point["verified"] is False for side in sides.values() for point in side["points"].values())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
