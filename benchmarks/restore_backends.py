"""Restoring a task's state from each backend, beside copying the same RocksDB files with `cp -r`.

`--megabytes` of keys and values are backed up as a whole, and then some commits of changes; every backend has a state
of its own, equal to the others'. Then, in turn and `--repeat` times, the files of RocksDB are copied with `cp -r` and
the store is restored into an empty folder, ready to be read. Job root and folder are on one disk. Before each of
them everything written is on disk (sync), and what it reads is in the page cache (`--page-cache warm`) or dropped from
it (`cold`); neither `cp` nor a restore syncs what it writes. One task restores alone; a container restores its tasks in
parallel. Every restored state is compared with the original by a digest of all its entries.

    python -m benchmarks.restore_backends [--megabytes N] [--backends ...] [--page-cache warm|cold] [--repeat N]
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
from benchmarks.state_job import KEY_BYTES, VALUE_BYTES
from penstock.config.table import BACKENDS

TARGETS = {"blob": 0.5}
"""What the time of `cp` divided by that of the restore should at least be."""


def measure(backend: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run a side."""
    keys = max(1, options.megabytes * 2**20 // (KEY_BYTES + VALUE_BYTES))
    run = run_side(
        "benchmarks.side_state:restore",
        {
            "backend": backend,
            "keys": keys,
            "value_bytes": VALUE_BYTES,
            "commits": options.commits,
            "changed": min(options.changed, keys),
            "repeat": options.repeat,
            "page_cache": options.page_cache,
            "work": str(work),
        },
        work,
    )
    return {**summarise(run.result), **run_facts(run)}


def summarise(result: Mapping[str, Any]) -> dict[str, Any]:
    """The medians of the rounds."""
    rounds = result["rounds"]
    cp = statistics.median(one["cp_seconds"] for one in rounds)
    restored = statistics.median(one["restore_seconds"] for one in rounds)
    return {
        "cp_seconds": round(cp, 3),
        "restore_seconds": round(restored, 3),
        "slowest_restore_seconds": round(max(one["restore_seconds"] for one in rounds), 3),
        "ratio_to_cp": round(cp / restored, 3),
        "restored_bytes": rounds[-1]["restored_bytes"],
        "verified": all(one["verified"] for one in rounds),
        **result,
    }


def report(sides: Mapping[str, Mapping[str, Any]], page_cache: str) -> None:
    """The table."""
    print_table(
        f"restore, {page_cache} page cache",
        ("backend", "state", "files", "cp -r", "restore", "slowest", "MB/s", "of cp", "uploaded", "read", "content"),
        [
            (
                backend,
                megabytes(side["state"]["size_bytes"]),
                megabytes(side["files_bytes"]),
                f"{side['cp_seconds']:.2f} s",
                f"{side['restore_seconds']:.2f} s",
                f"{side['slowest_restore_seconds']:.2f} s",
                f"{side['state']['size_bytes'] / 2**20 / side['restore_seconds']:,.0f}",
                f"{side['ratio_to_cp']:.2f}",
                megabytes(side["durable_bytes"]),
                megabytes(side["restored_bytes"]),
                "verified" if side["verified"] else "WRONG",
            )
            for backend, side in sides.items()
        ],
    )
    for backend, target in TARGETS.items():
        if backend in sides:
            console.print(f"{backend}: {sides[backend]['ratio_to_cp']:.2f} of the speed of cp, to be at least {target}")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restore_backends", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--megabytes", type=int, default=1024, help="keys and values of the state")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), help="names, or module:Class")
    parser.add_argument("--commits", type=int, default=5, help="commits after the first, which has everything")
    parser.add_argument("--changed", type=int, default=100_000, help="keys that each of them changes")
    parser.add_argument("--page-cache", choices=("warm", "cold"), default="warm")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of cp and restore")
    parser.add_argument("--json", type=Path, default=RESULTS / "restore_backends.json")
    options = parser.parse_args(given)
    if min(options.megabytes, options.changed, options.repeat) < 1 or options.commits < 0:
        parser.error("all numbers but --commits must be at least 1")
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
        for backend in options.backends:
            with console.status(backend):
                sides[backend] = measure(backend, options, work)
            shutil.rmtree(work)
    report(sides, options.page_cache)
    contended = contention({backend: [side] for backend, side in sides.items()}, facts["cores"])
    warn_of_contention(contended)
    result = {
        "benchmark": "restore_backends",
        "machine": facts,
        "parameters": {
            "megabytes": options.megabytes,
            "commits": options.commits,
            "changed": options.changed,
            "repeat": options.repeat,
            "page_cache": options.page_cache,
            "key_bytes": KEY_BYTES,
            "value_bytes": VALUE_BYTES,
        },
        "sides": sides,
        "contention": contended,
    }
    write_json(options.json, result)
    return 0 if all(side["verified"] for side in sides.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
