"""The synchronous part of a commit: whether it grows with the state.

10,000 keys change in a state of 10 thousand, 1 million and 10 million keys, and are committed, backend by backend, by
the storage of a container: a task, its RocksDB on disk, a job root on the same disk. Each state is backed up as a whole
before; each commit measured is uploaded and published before the next changes are made. Measured are

* `snapshot`: what processing waits for before its next batch;
* `copies`: how much longer the copy of RocksDB's files takes that a backend asked for. The End of the next batch waits
  for what is left of it by then.

No Spark and no containers: what the call to the container costs is not in it. Each state has a process of its own.

    python -m benchmarks.snapshot [--sizes N ...] [--changed N] [--repeat N] [--backends ...] [--json PATH]
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
from benchmarks.state_content import KEY_BYTES, VALUE_BYTES
from penstock.config.table import BACKENDS

WARM_UP = 3
TARGET = 1.5
"""What the median with the largest state divided by that with the smallest should at most be."""
NEGLIGIBLE_MS = 1.0
"""Where both are below this, their ratio is that of the clock's and the scheduler's noise."""
PARTS = ("snapshot", "copies", "upload")


def measure(backend: str, keys: int, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run a side."""
    run = run_side(
        "benchmarks.side_state:snapshot",
        {
            "backend": backend,
            "keys": keys,
            "changed": min(options.changed, keys),
            "value_bytes": VALUE_BYTES,
            "warm_up": WARM_UP,
            "repeat": options.repeat,
            "work": str(work),
        },
        work,
    )
    return {**summarise(run.result), **run_facts(run)}


def summarise(result: Mapping[str, Any]) -> dict[str, Any]:
    """Median and maximum of each part of the commits."""
    summary: dict[str, Any] = {}
    for part in PARTS:
        times = [commit[f"{part}_ms"] for commit in result["commits"]]
        summary[part] = {"median_ms": round(statistics.median(times), 3), "max_ms": round(max(times), 3)}
    return {**summary, **result}


def ratios(sides: Mapping[int, Mapping[str, Any]]) -> dict[str, float]:
    """Of the medians with the largest and the smallest state."""
    small, large = sides[min(sides)], sides[max(sides)]
    both = {part: (small[part]["median_ms"], large[part]["median_ms"]) for part in ("snapshot", "copies")}
    return {part: round(most / least, 2) for part, (least, most) in both.items() if least}


def is_reached(sides: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether the synchronous part does not grow with the state, as far as the target says."""
    least, most = (float(sides[keys]["snapshot"]["median_ms"]) for keys in (min(sides), max(sides)))
    return max(least, most) < NEGLIGIBLE_MS or most <= TARGET * least


def report(found: Mapping[str, Mapping[int, Mapping[str, Any]]], changed: int) -> None:
    """The table."""
    print_table(
        f"commit of {changed:,} changed keys, milliseconds",
        ("backend", "keys", "files", "snapshot", "max", "copies", "max", "upload", "restored"),
        [
            (
                backend,
                f"{keys:,}",
                megabytes(side["files_bytes"]),
                *(f"{side[part][kind]:,.2f}" for part in PARTS[:2] for kind in ("median_ms", "max_ms")),
                f"{side['upload']['median_ms']:,.0f}",
                {True: "verified", False: "WRONG", None: ""}[side["verified"]],
            )
            for backend, sides in found.items()
            for keys, side in sides.items()
        ],
    )
    for backend, sides in found.items():
        if len(sides) > 1:
            own = ", ".join(f"{part} {ratio:.2f}" for part, ratio in ratios(sides).items())
            console.print(
                f"{backend}, largest / smallest state: {own}; the snapshot's is to be at most {TARGET}, or both below "
                f"{NEGLIGIBLE_MS:g} ms: {'reached' if is_reached(sides) else 'NOT reached'}"
            )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshot", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000], help="keys of state")
    parser.add_argument("--changed", type=int, default=10_000, help="keys that change before a commit")
    parser.add_argument("--repeat", type=int, default=20, help="measured commits of each state")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), help="names, or module:Class")
    parser.add_argument("--json", type=Path, default=RESULTS / "snapshot.json")
    options = parser.parse_args(given)
    if min(options.changed, options.repeat, *options.sizes) < 1:
        parser.error("all numbers must be at least 1")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    end_on_sigterm()
    facts = machine()
    console.print(describe_machine(facts))
    found: dict[str, dict[int, dict[str, Any]]] = {backend: {} for backend in options.backends}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name) / "side"
        for backend, sides in found.items():
            for keys in options.sizes:
                with console.status(f"{backend}, {keys:,} keys"):
                    sides[keys] = measure(backend, keys, options, work)
                shutil.rmtree(work)
    report(found, options.changed)
    contended = contention(
        {f"{backend}, {keys:,} keys": [side] for backend, sides in found.items() for keys, side in sides.items()},
        facts["cores"],
    )
    warn_of_contention(contended)
    result = {
        "benchmark": "snapshot",
        "machine": facts,
        "parameters": {
            "sizes": options.sizes,
            "changed": options.changed,
            "repeat": options.repeat,
            "warm_up": WARM_UP,
            "key_bytes": KEY_BYTES,
            "value_bytes": VALUE_BYTES,
        },
        "sides": found,
        "ratios": {backend: ratios(sides) for backend, sides in found.items()},
        "contention": contended,
    }
    write_json(options.json, result)
    return 1 if any(side["verified"] is False for sides in found.values() for side in sides.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
