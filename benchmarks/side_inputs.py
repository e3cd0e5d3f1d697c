"""Side inputs and pushed tables: what they cost the job, how fast they are, and the same through Spark.

* `throughput`: messages per second of a job that looks up a row of a table for each of them, while `--updates` rows a
  second change. The table's stream is read in the containers (`container`), or it is an input of the job that writes
  the table (`spark`, `input.send_to(table)`). `idle` is the first with updates that go to a stream that nobody reads:
  the producer, which shares the machine, does as much. `container` is to reach 0.9 of `idle`.
* `latency`: at `--messages-per-s`, from the making of an update to the first message that finds it. p99 is to be
  below 2 s.
* `bootstrap`: `--rows` rows of the stream until the table is there, by the containers before the first batch, by the
  job itself, and by RocksDB's puts, one at a time and in batches of 500. To be at least five times as fast as puts.
  The keys of a partition come in order, the best case for puts, or (`random`) in no order. `--parts bootstrap --rows
  2000000 --repeat 1` is a quick look.
* `swap`: a table of `--rows` rows is pushed again while messages come. The time between the first messages of two
  batches says how long processing stands still at the swap; it is to be at most 100 ms more than usual.

    python -m benchmarks.side_inputs [--parts ...] [--rows N] [--updates N] [--messages N] [--repeat N] [--threads N]
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
    megabytes,
    positive_options,
    print_table,
    run_facts,
    run_side,
)

PARTS = ("throughput", "latency", "bootstrap", "swap")
SIDES: Mapping[str, Sequence[tuple[str, str, dict[str, Any]]]] = {
    "throughput": [(how, "throughput", {"how": how}) for how in ("idle", "container", "spark")],
    "latency": [(how, "latency", {"how": how}) for how in ("container", "spark")],
    "bootstrap": [
        ("container", "bootstrap", {"how": "container"}),
        ("spark", "bootstrap", {"how": "spark"}),
        ("puts", "puts", {"batch": 1}),
        ("batches of puts", "puts", {"batch": 500}),
        ("container, random", "bootstrap", {"how": "container", "order": "random"}),
        ("puts, random", "puts", {"batch": 1, "order": "random"}),
        ("batches of puts, random", "puts", {"batch": 500, "order": "random"}),
    ],
    "swap": [("swap", "swap", {})],
}
"""By part: the name of a side, its function, and its own parameters."""
LOOKED_UP = 100_000
"""Rows of the table whose messages and updates are counted."""
THROUGHPUT, P99_MS, BOOTSTRAP, SWAP_MS = 0.9, 2000.0, 5.0, 100.0
"""The targets."""

Run = Mapping[str, Any]
Part = Mapping[str, Sequence[Run]]
"""The runs of each side."""


def measure(part: str, options: argparse.Namespace, work: Path) -> dict[str, list[dict[str, Any]]]:
    """Run the sides of a part in turn, `--repeat` times."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in SIDES[part]}
    given = {
        "rows": options.rows if part in ("bootstrap", "swap") else min(options.rows, LOOKED_UP),
        "updates_per_s": options.updates,
        "messages": options.messages,
        "messages_per_s": options.messages_per_s,
        "seconds": options.seconds,
        "warm_up_s": options.warm_up,
        "threads": options.threads,
        "order": "ascending",
    }
    for _ in range(options.repeat):
        for name, function, own in SIDES[part]:
            with console.status(f"{part}: {name}"):
                parameters = {**given, **own, "work": str(work)}
                run = run_side(f"benchmarks.side_side_inputs:{function}", parameters, work)
            found[name].append({**run.result, **run_facts(run)})
            shutil.rmtree(work, ignore_errors=True)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """A value that was measured, below which that share of the values is."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def by_round(part: Part, figure: str, side: str, of: str) -> float:
    """The median over the rounds of one side's figure divided by that of another side in the same round."""
    return float(
        statistics.median(one[figure] / other[figure] for one, other in zip(part[side], part[of], strict=True))
    )


def figures(parts: Mapping[str, Part]) -> dict[str, float]:
    """What is compared with the targets, and Spark's way beside the container's."""
    found: dict[str, float] = {}
    if "throughput" in parts:
        for side in ("container", "spark"):
            found[f"throughput, {side} / idle"] = by_round(parts["throughput"], "messages_per_s", side, "idle")
    if "latency" in parts:
        for side, runs in parts["latency"].items():
            values = [ms for run in runs for ms in run["latencies_ms"]]
            found[f"latency, {side}, p50 ms"] = percentile(values, 0.5)
            found[f"latency, {side}, p99 ms"] = percentile(values, 0.99)
    if "bootstrap" in parts:
        for side in ("spark", "puts", "batches of puts", "puts, random", "batches of puts, random"):
            container = "container, random" if side.endswith("random") else "container"
            found[f"bootstrap, container / {side}"] = by_round(parts["bootstrap"], "rows_per_s", container, side)
    if "swap" in parts:
        found["swap, ms more than usual"] = statistics.median(stop_ms(run) for run in parts["swap"]["swap"])
    return {name: round(value, 3) for name, value in found.items()}


def stop_ms(run: Run) -> float:
    """How much longer than usual it took from the first message of a batch to that of the next one, at the swap: the
    batch that sees the new version first may begin late, or take long."""
    return float(max(run["swap_gap_ms"], run["after_gap_ms"]) - run["usual_gap_ms"])


def report(parts: Mapping[str, Part], compared: Mapping[str, float]) -> None:
    """The tables."""
    rows = []
    for part, sides in parts.items():
        for side, runs in sides.items():
            peak = max(run["peak"]["total_bytes"] for run in runs)
            cpu = statistics.median(sum(run["cpu_seconds"].values()) for run in runs)
            rows.append((f"{part}: {side}", said(part, runs), f"{cpu:.0f} s", megabytes(peak)))
    print_table("side inputs", ("", "median of the rounds", "CPU", "peak memory"), rows)
    for name, value in compared.items():
        console.print(f"{name}: {value:,.3f}")
    console.print(
        f"targets: throughput of container / idle at least {THROUGHPUT}, p99 below {P99_MS:,.0f} ms, "
        f"bootstrap at least {BOOTSTRAP} times puts, a swap at most {SWAP_MS:.0f} ms"
    )


def said(part: str, runs: Sequence[Run]) -> str:
    """What a side of a part measured."""

    def median(figure: str) -> float:
        return float(statistics.median(run[figure] for run in runs))

    match part:
        case "throughput":
            return f"{median('messages_per_s'):,.0f} messages/s"
        case "latency":
            values = [ms for run in runs for ms in run["latencies_ms"]]
            return f"p50 {percentile(values, 0.5):,.0f} ms, p99 {percentile(values, 0.99):,.0f} ms"
        case "bootstrap":
            return f"{median('took_s'):.1f} s, {median('rows_per_s'):,.0f} rows/s"
        case _:
            gaps = ", ".join(f"{name} {median(f'{name}_gap_ms'):.0f}" for name in ("usual", "beside", "swap", "after"))
            return f"ms between batches: {gaps}; loaded in {median('load_seconds'):.1f} s"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("side_inputs", __doc__)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the tables of `bootstrap` and `swap`")
    parser.add_argument("--updates", type=int, default=20_000, help="rows that change each second")
    parser.add_argument("--messages", type=int, default=3_000_000, help="messages of `throughput`")
    parser.add_argument("--messages-per-s", type=int, default=2_000, help="of `latency` and `swap`")
    parser.add_argument("--seconds", type=int, default=30, help="of `latency`, and before the swap")
    parser.add_argument("--warm-up", type=int, default=10, help="seconds before them")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--threads", type=int, default=2, help="Spark's local[N]")
    numbers = ("rows", "updates", "messages", "messages_per_s", "seconds", "warm_up", "repeat", "threads")
    return positive_options(parser, given, *numbers)


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the tables, write the JSON. Returns the exit status."""
    options = arguments(given)
    facts = begin()
    parts: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for part in options.parts:
            parts[part] = measure(part, options, Path(name) / "side")
    compared = figures(parts)
    report(parts, compared)
    parameters = {name: value for name, value in vars(options).items() if name != "json"}
    measured = {f"{part}: {side}": runs for part, sides in parts.items() for side, runs in sides.items()}
    finish(options.json, "side_inputs", facts, measured, parameters=parameters, parts=parts, figures=compared)
    return 0


if __name__ == "__main__":
    sys.exit(main())
