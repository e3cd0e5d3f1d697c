"""What commits cost the keyed fold when the store of the backups is slow.

The events of `keyed_fold` go through Penstock on real Spark and containers

* without commits (`task.commit.ms` 0);
* with a commit every second to an object store with 200 ms latency per call and 20 MB/s for each container, uploaded
  in the background, as Penstock does it;
* the same, but with the run loop waiting for each commit once it has begun.

Rows per second are those between the reports of two batches: the last one of the warm-up, and the last of all. On all
sides the commits at a job's start and end are outside of that, and of an asynchronous one what is left of its upload
when the last batch ends. Every side runs in a process of its own, in turn, over `--repeat` rounds; after each the state
is read back from the last checkpoint and compared, key by key, with a plain computation.

    python -m benchmarks.async_commit [--events N] [--batches N] [--latency-ms N] [--megabytes-per-second N] ...
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
from benchmarks.workload import Inputs, Workload, write_inputs

MODES = ("none", "asynchronous", "synchronous")
WARM_UP_BATCHES = 4
TARGET = 0.95
"""What the rows per second with asynchronous commits divided by those without any should at least be."""


def measure(mode: str, workload: Workload, inputs: Inputs, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run a side once, then check what it left."""
    parameters = {
        "mode": mode,
        "work": str(work),
        "workload": asdict(workload),
        "threads": options.threads,
        "batch_messages": workload.batch_events,
        "streams": str(inputs.streams),
        "commit_ms": options.commit_ms,
        "latency_ms": options.latency_ms,
        "bytes_per_second": options.megabytes_per_second * 2**20,
    }
    run = run_side("benchmarks.side_async_commit:fold", parameters, work)
    verified = run_side("benchmarks.side_penstock:verify", parameters, work / "verify").result
    return {**summarise(run.result), "verified": verified, **run_facts(run)}


def summarise(result: Mapping[str, Any]) -> dict[str, Any]:
    """Rows per second after the warm-up, and the commits that began meanwhile."""
    batches = result["batches"]
    first = batches[min(WARM_UP_BATCHES, len(batches) - 1) - 1]
    rest = [batch for batch in batches if batch["batch"] > first["batch"]]
    started, ended = first["ended"], rest[-1]["ended"]
    commits = [commit for commit in result["commits"] if started <= commit["began"] <= ended]
    return {
        "rows_per_second": sum(batch["rows"] for batch in rest) / (ended - started),
        "measured_seconds": ended - started,
        "commits": len(commits),
        "upload_ms": statistics.fmean(commit["upload_ms"] for commit in commits) if commits else None,
        "snapshot_ms": statistics.fmean(commit["snapshot_ms"] for commit in commits) if commits else None,
        "commit_wait_ms": sum(batch["duration_ms"].get("commitWait", 0) for batch in rest),
        "batches": batches,
        "all_commits": result["commits"],
    }


def combine(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A side's rounds: the median rows per second, the means of the rest, the largest memory."""
    with_commits = [one for one in rounds if one["commits"]]
    return {
        "rows_per_second": round(statistics.median(one["rows_per_second"] for one in rounds)),
        "commits": [one["commits"] for one in rounds],
        "upload_ms": round(statistics.fmean(one["upload_ms"] for one in with_commits)) if with_commits else None,
        "snapshot_ms": round(statistics.fmean(one["snapshot_ms"] for one in with_commits), 1) if with_commits else None,
        "peak_bytes": max(one["peak"]["total_bytes"] for one in rounds),
        "verified": all(one["verified"]["equal"] for one in rounds),
        "rounds": list(rounds),
    }


def ratios(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The rows per second of the sides with commits over those of the side without: of each round, as its sides ran one
    right after the other, and of these the median."""
    if "none" not in sides:
        return {}
    base = [one["rows_per_second"] for one in sides["none"]["rounds"]]
    return {
        mode: round(
            statistics.median(
                one["rows_per_second"] / without for one, without in zip(side["rounds"], base, strict=True)
            ),
            3,
        )
        for mode, side in sides.items()
        if mode != "none"
    }


def report(sides: Mapping[str, Mapping[str, Any]]) -> None:
    """The table."""
    found = ratios(sides)
    print_table(
        "keyed fold, commits to a slow store",
        ("commits", "rows/s", "of none", "made", "snapshot", "mean upload", "peak PSS", "totals"),
        [
            (
                mode,
                f"{side['rows_per_second']:,}",
                f"{found[mode]:.3f}" if mode in found else "",
                ", ".join(map(str, side["commits"])),
                "" if side["snapshot_ms"] is None else f"{side['snapshot_ms']:,.1f} ms",
                "" if side["upload_ms"] is None else f"{side['upload_ms']:,} ms",
                megabytes(side["peak_bytes"]),
                "verified" if side["verified"] else "WRONG",
            )
            for mode, side in sides.items()
        ],
    )
    if "asynchronous" in found:
        console.print(f"asynchronous / none: {found['asynchronous']:.3f}, to be at least {TARGET}")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    default = Workload(events=4_000_000, batches=80)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.async_commit", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--events", type=int, default=default.events)
    parser.add_argument("--batches", type=int, default=default.batches)
    parser.add_argument("--keys", type=int, default=default.keys)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--commit-ms", type=int, default=1000, help="task.commit.ms")
    parser.add_argument("--latency-ms", type=float, default=200, help="of each call to the object store")
    parser.add_argument("--megabytes-per-second", type=float, default=20, help="of each container; 0: unlimited")
    parser.add_argument("--repeat", type=int, default=7, help="rounds; every side runs once in each")
    parser.add_argument("--threads", type=int, default=2, help="local[N], tasks, partitions, containers")
    parser.add_argument("--json", type=Path, default=RESULTS / "async_commit.json")
    options = parser.parse_args(given)
    if min(options.events, options.repeat, options.keys, options.threads, options.commit_ms) < 1 or options.batches < 2:
        parser.error("all numbers must be at least 1, --batches at least 2")
    if options.events % (options.batches * options.threads):
        parser.error("--events must be a multiple of --batches times --threads, so that all batches are equal")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    workload = Workload(options.events, options.batches, options.keys, options.seed)
    end_on_sigterm()
    facts = machine()
    console.print(describe_machine(facts))
    rounds: dict[str, list[dict[str, Any]]] = {mode: [] for mode in options.modes}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name)
        with console.status("writing the events"):
            inputs = write_inputs(workload, work / "inputs", options.threads)
        for number in range(options.repeat):
            # Back and forth, so that a machine that becomes faster or slower favours no side.
            for mode in options.modes[:: 1 if number % 2 == 0 else -1]:
                own = rounds[mode]
                with console.status(f"round {number + 1} of {options.repeat}: {mode}"):
                    own.append(measure(mode, workload, inputs, options, work / "side"))
                shutil.rmtree(work / "side")
    sides = {mode: combine(own) for mode, own in rounds.items()}
    report(sides)
    contended = contention(rounds, facts["cores"])
    warn_of_contention(contended)
    result = {
        "benchmark": "async_commit",
        "machine": facts,
        "parameters": {
            **asdict(workload),
            "rounds": options.repeat,
            "warm_up_batches": WARM_UP_BATCHES,
            "threads": options.threads,
            "commit_ms": options.commit_ms,
            "latency_ms": options.latency_ms,
            "megabytes_per_second": options.megabytes_per_second,
            "driver_memory": DRIVER_MEMORY,
        },
        "sides": sides,
        "ratios": ratios(sides),
        "contention": contended,
    }
    write_json(options.json, result)
    return 0 if all(side["verified"] for side in sides.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
