"""The tables of the benchmark of Kafka, and its file of results, part by part."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.common import contention, megabytes, print_table, warn_of_contention, write_json

TARGETS = {"spark": 1.2, "quix": 2.0, "bytewax": 2.0, "faust": 2.0}
"""What Penstock's rows per second divided by the side's should at least be."""
Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def report(part: str, runs: Runs) -> None:
    """Print the table of a part."""
    {"throughput": _throughput, "restart": _restart, "latency": _latency}[part](runs)


def equal(runs: Runs) -> bool:
    """Whether every run that was checked sent what it had to."""
    return all(each["verified"]["equal"] for own in runs.values() for each in own if "verified" in each)


def save(path: Path, part: str, facts: Mapping[str, Any], options: Mapping[str, Any], runs: Runs) -> None:
    """Put a part into the file, and leave the others as they are."""
    measured = {name: [each for each in own if "others_cpu_seconds" in each] for name, own in runs.items()}
    contended = contention({name: own for name, own in measured.items() if own}, facts["cores"])
    warn_of_contention(contended)
    before = orjson.loads(path.read_bytes()) if path.exists() else {}
    own = {"machine": facts, "options": options, "contention": contended, "runs": runs}
    write_json(path, {**before, "benchmark": "kafka", part: own})


def middle(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    """The median of a figure; 0 where no run has it."""
    return float(statistics.median([each[name] for each in runs if each[name] is not None] or [0]))


def _throughput(runs: Runs) -> None:
    for durable in dict.fromkeys(name.partition(", ")[2] for name in runs):
        own = {name.partition(", ")[0]: each for name, each in runs.items() if name.endswith(f", {durable}")}
        speed = {side: middle(each, "rows_per_second") for side, each in own.items()}
        ours = speed.get("penstock")
        print_table(
            f"keyed count, durable every {durable}",
            ("side", "rows/s", "from", "to", "penstock is", "at least", "CPU µs/row", "peak PSS", "counts"),
            [
                (
                    side,
                    f"{speed[side]:,.0f}",
                    f"{min(one['rows_per_second'] for one in each):,}",
                    f"{max(one['rows_per_second'] for one in each):,}",
                    "" if side == "penstock" or not ours or not speed[side] else f"{ours / speed[side]:.2f} x",
                    f"{TARGETS[side]:.1f} x" if side in TARGETS else "",
                    f"{middle(each, 'cpu_us_per_row'):.1f}",
                    megabytes(max(one["peak"]["total_bytes"] for one in each)),
                    "verified" if all(one["verified"]["equal"] for one in each) else "WRONG",
                )
                for side, each in own.items()
            ],
        )


def _restart(runs: Runs) -> None:
    print_table(
        "from kill -9 of all processes to the next output",
        ("side", "ms", "all"),
        [
            (side, f"{middle(each, 'restart_ms'):,.0f}", ", ".join(f"{one['restart_ms']:,}" for one in each))
            for side, each in runs.items()
        ],
    )


def _latency(runs: Runs) -> None:
    print_table(
        "an output of Penstock",
        (
            "guarantee, messages a second, commit",
            "came",
            "p50 ms",
            "p99 ms",
            "cores",
            "CPU µs/message",
            "outbox bytes/message",
            "/commit",
            "record bytes",
            "messages",
        ),
        [
            (
                name,
                f"{middle(each, 'rate'):,.0f}",
                f"{middle(each, 'p50_ms'):,.0f}",
                f"{middle(each, 'p99_ms'):,.0f}",
                f"{middle(each, 'cores'):.2f}",
                f"{middle(each, 'cpu_us_per_message'):.1f}",
                f"{middle(each, 'outbox_bytes_per_message'):.1f}",
                f"{middle(each, 'outbox_bytes_per_commit'):,.0f}",
                f"{middle(each, 'record_bytes'):,.0f}",
                "verified" if all(one["verified"]["equal"] for one in each) else "WRONG",
            )
            for name, each in runs.items()
        ],
    )
