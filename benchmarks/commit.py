"""Commits of the changelog files backend: what they take and write, beside a snapshot per commit and Spark's store.

In a state of `--megabytes` (keys of 16 bytes, values of 100 random ones), and in a small one, 1 thousand to 1 million
keys change and are committed, again and again, in turn by

* `deltas`: a delta per commit and now and then a snapshot in the background, the backend's defaults;
* `snapshots`: a snapshot per commit, `state.changelog.enabled=false`;
* `spark`: Spark's RocksDB state store with changelog checkpointing, in a streaming query of one partition.

All change the same keys to the same values. Penstock's sides are one task in a container's storage, driven without
Spark. `waited` is what processing waits for, `durable` the time until the commit is on disk. Spark's query waits for
all of its commits.

    python -m benchmarks.commit [--megabytes N] [--small-megabytes N] [--changed N ...] [--sides ...] [--json PATH]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commit_figures import (
    BYTES_TARGET,
    LATENCY_TARGET,
    LEAST,
    NEGLIGIBLE_MS,
    Summary,
    growth,
    is_independent,
    of_zstd,
    plan,
    ratios,
    summarise,
)
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

SIDES = ("deltas", "snapshots", "spark")
WARM_UP = 2
"""Commits of each series that do not count."""


def measure(side: str, state_megabytes: int, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run a side."""
    keys = keys_of(state_megabytes)
    most = options.spark_commits if side == "spark" else options.commits
    series = plan(options.changed, keys, most, options.budget_keys)
    given: dict[str, Any] = {
        "keys": keys,
        "value_bytes": VALUE_BYTES,
        "series": series,
        "warm_up": WARM_UP,
        "work": str(work),
    }
    if side == "spark":
        counts = [one["changed"] for one in series for _ in range(WARM_UP + one["commits"])]
        inputs = write_state_inputs(work / "inputs", keys, VALUE_BYTES, counts)
        files = {"files": str(inputs.folder), "fill": inputs.fill, "changes": inputs.changes, "counts": counts}
        run = run_side("benchmarks.side_spark_state:commits", {**given, **files, "threads": options.threads}, work)
    else:
        run = run_side("benchmarks.side_state:commits", {**given, "changelog": side == "deltas"}, work)
    return {**summarise(run.result, side != "snapshots"), "keys": keys, **run_facts(run)}


def report(sides: Mapping[str, Mapping[int, Summary]]) -> None:
    """The tables, and whether the targets are reached."""
    print_table(
        "commits: milliseconds; bytes written per changed byte; the share beside a snapshot in the background",
        (
            *("side", "state", "changed", "commits", "waited p50", "p99", "durable p50", "p99"),
            *("written", "of zstd", "beside"),
        ),
        [
            (
                side,
                f"{size:,} MB",
                f"{changed:,}",
                f"{one['commits']}",
                *(f"{one[part][kind]:,.2f}" for part in ("wait", "durable") for kind in ("p50_ms", "p99_ms")),
                f"{one['bytes_per_changed_byte']:.2f}",
                "" if one["of_zstd"] is None else f"{one['of_zstd']:.3f}",
                f"{one['beside_snapshot']:.0%}" if side != "snapshots" else "",
            )
            for side, states in sides.items()
            for size, state in states.items()
            for changed, one in state["series"].items()
        ],
    )
    console.print("Of fewer than 100 commits, p99 is the slowest one.")
    print_table(
        "sides",
        ("side", "state", "fill", "commits", "changed", "snapshots", "their size", "peak PSS", "restored"),
        [
            (
                side,
                f"{size:,} MB",
                f"{state['fill_seconds']:.0f} s",
                f"{state['series_seconds']:.0f} s",
                megabytes(sum(one["net_bytes"] for one in state["series"].values())),
                f"{state['snapshots']}",
                megabytes(state["snapshot_bytes"]),
                megabytes(state["peak"]["total_bytes"]),
                {True: "verified", False: "WRONG", None: ""}[state["verified"]],
            )
            for side, states in sides.items()
            for size, state in states.items()
        ],
    )
    _report_spark(sides.get("spark", {}))
    _report_targets(sides)


def _report_spark(states: Mapping[int, Summary]) -> None:
    for size, state in states.items():
        for changed, one in state["series"].items():
            console.print(
                f"spark, {size:,} MB, {changed:,} keys: updates, in which it writes most of the changelog, "
                f"{one['updates']['p50_ms']:,.0f} ms, whole batch {one['batch']['p50_ms']:,.0f} ms (p50)"
            )


def _report_targets(sides: Mapping[str, Mapping[int, Summary]]) -> None:
    for name, by_changed in ratios(sides).items():
        for changed, one in by_changed.items():
            console.print(
                f"{name} / deltas, {changed:,} keys: durable {one['durable']:.2f} x, bytes {one['bytes']:.2f} x"
            )
    worst = of_zstd(sides)
    if worst is not None:
        reached = "reached" if worst <= BYTES_TARGET else "NOT reached"
        console.print(f"deltas / zstd of the net changes: {worst:.3f}, to be at most {BYTES_TARGET}: {reached}")
    for name, states in sides.items():
        if len(states) > 1:
            own = "; ".join(
                f"{changed:,} keys: waited {one['wait']:.2f}, durable {one['durable']:.2f}"
                for changed, one in growth(states).items()
            )
            reached = "reached" if is_independent(states) else "NOT reached"
            target = f", to be at most {LATENCY_TARGET}, or both below {NEGLIGIBLE_MS:g} ms: {reached}"
            console.print(f"{name}, large / small state: {own}{target if name == 'deltas' else ''}")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commit", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="keys and values of the large state")
    parser.add_argument("--small-megabytes", type=int, default=10, help="of the small state; 0: none")
    parser.add_argument("--changed", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--commits", type=int, default=100, help="most commits of a series, Penstock")
    parser.add_argument("--spark-commits", type=int, default=25, help="most commits of a series, Spark")
    parser.add_argument("--budget-keys", type=int, default=3_000_000, help="most changed keys of a series")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--threads", type=int, default=2, help="Spark's local[N]")
    parser.add_argument("--json", type=Path, default=RESULTS / "commit.json")
    options = parser.parse_args(given)
    numbers = (options.megabytes, options.commits, options.spark_commits, options.budget_keys, options.threads)
    if min(*numbers, *options.changed) < 1:
        parser.error("all numbers but --small-megabytes must be at least 1")
    if not 0 <= options.small_megabytes < options.megabytes:
        parser.error("--small-megabytes must be less than --megabytes")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the tables, write the JSON. Returns the exit status."""
    options = arguments(given)
    end_on_sigterm()
    facts = machine()
    console.print(describe_machine(facts))
    sizes = [size for size in (options.megabytes, options.small_megabytes) if size]
    sides: dict[str, dict[int, dict[str, Any]]] = {side: {} for side in options.sides}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name) / "side"
        for size in sizes:
            for side, states in sides.items():
                with console.status(f"{side}, {size:,} MB"):
                    states[size] = measure(side, size, options, work)
                shutil.rmtree(work)
    report(sides)
    contended = contention(
        {f"{side}, {size} MB": [state] for side, states in sides.items() for size, state in states.items()},
        facts["cores"],
    )
    warn_of_contention(contended)
    result = {
        "benchmark": "commit",
        "machine": facts,
        "parameters": {
            **{name: value for name, value in vars(options).items() if name not in ("json", "sides")},
            "warm_up": WARM_UP,
            "least_commits": LEAST,
            "key_bytes": KEY_BYTES,
            "value_bytes": VALUE_BYTES,
        },
        "sides": sides,
        "ratios": ratios(sides),
        "of_zstd": of_zstd(sides),
        "growth": {side: growth(states) for side, states in sides.items() if len(states) > 1},
        "contention": contended,
    }
    write_json(options.json, result)
    return 1 if any(state["verified"] is False for states in sides.values() for state in states.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
