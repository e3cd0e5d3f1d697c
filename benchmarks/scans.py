"""Scans of a store within a batch, beside a plain RocksDB iterator.

Three things are measured after batches of 1,000 to 100,000 messages: a queue in a store, to which each message puts an
entry at the end and from which it takes the first one (the last 1,000 messages of the batch are timed); a scan over as
many entries, half of them changed in the running batch; and the first entry of that scan alone. The store is what a
container opens: serdes, overlay, changes gathered above RocksDB. The other side calls RocksDB directly, decodes the
same values, and has every write in RocksDB at once.

A queue's cost is to be flat: at most 1.5 times that of the smallest batch. RocksDB's own iterator walks over all that
was deleted, which takes minutes after 100,000 messages; where a queue takes longer than `--limit-s`, the table says so
and later rounds leave it out.

    python -m benchmarks.scans [--messages N ...] [--waiting N] [--repeat N] [--limit-s S] [--json PATH]
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
    positive_options,
    print_table,
    run_facts,
    run_side,
)

SIDES = ("store", "rocksdb")
FIGURES = {"queue_us": "queue, a message", "entry_us": "scan, an entry", "first_us": "scan, the first entry"}
FLAT = 1.5
"""How many times that of the smallest batch a queue's message may cost."""

Rounds = Mapping[str, Sequence[float | None]]
"""Figure -> its value in every round."""


def medians(rounds: Rounds) -> dict[str, float | None]:
    """The median of each figure; None if a round took too long."""
    found: dict[str, float | None] = {}
    for figure, values in rounds.items():
        known = [value for value in values if value is not None]
        found[figure] = round(statistics.median(known), 2) if len(known) == len(values) else None
    return found


def growth(queue_us: Mapping[int, float | None]) -> float | None:
    """How many times that of the smallest batch the costliest message costs."""
    known = [value for value in queue_us.values() if value is not None]
    first = queue_us[min(queue_us)]
    return None if first is None or len(known) != len(queue_us) else round(max(known) / first, 2)


def report(points: Mapping[int, Mapping[str, Mapping[str, float | None]]]) -> None:
    """The table."""
    rows = [
        (f"{what}, {messages:,} messages", *(_shown(sides[side][figure]) for side in SIDES))
        for figure, what in FIGURES.items()
        for messages, sides in points.items()
    ]
    print_table("microseconds, median", ("", "Penstock's store", "RocksDB's iterator"), rows)
    found = growth({messages: sides["store"]["queue_us"] for messages, sides in points.items()})
    console.print(
        f"a queue's message costs up to {found} times that of the smallest batch, at most {FLAT} is the target"
    )


def _shown(value: float | None) -> str:
    return "too long" if value is None else f"{value:,.1f}"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("scans", __doc__)
    parser.add_argument("--messages", nargs="+", type=int, default=[1_000, 10_000, 100_000], help="in the batch")
    parser.add_argument("--waiting", type=int, default=1000, help="entries in the queue when the batch begins")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--limit-s",
        type=float,
        default=20,
        help="how long a queue may take; after one round that took longer, it is left out",
    )
    return positive_options(parser, given, "repeat", "waiting", "messages")


def main(given: Sequence[str] | None = None) -> int:
    """Run both sides in turn, print the table, write the JSON. Returns the exit status."""
    options = arguments(given)
    facts = begin()
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    points: dict[int, dict[str, dict[str, float | None]]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name) / "side"
        for messages in sorted(options.messages):
            rounds: dict[str, dict[str, list[float | None]]] = {
                side: {figure: [] for figure in FIGURES} for side in SIDES
            }
            for side in SIDES * options.repeat:
                limit_s = 0 if None in rounds[side]["queue_us"] else options.limit_s  # once too long is enough
                given_side = {"messages": messages, "waiting": options.waiting, "limit_s": limit_s}
                with console.status(f"{side}, {messages:,} messages"):
                    run = run_side(f"benchmarks.side_scans:{side}", {**given_side, "work": str(work)}, work)
                shutil.rmtree(work)
                runs[side].append(run_facts(run))
                for figure, values in rounds[side].items():
                    values.append(run.result[figure])
            points[messages] = {side: medians(rounds[side]) for side in SIDES}
    report(points)
    parameters = {"waiting": options.waiting, "repeat": options.repeat, "limit_s": options.limit_s}
    finish(options.json, "scans", facts, runs, parameters=parameters, points=points, runs=runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
