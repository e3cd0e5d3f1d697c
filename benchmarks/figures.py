"""Figures of a side that works batch by batch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.harness import Bench, Run, SideRun, is_wrong

WARM_UP_BATCHES = 2
Side = tuple[str, str | None, Mapping[str, Any]]
"""The target that runs a side, the one that verifies it, and its parameters."""


def counted(batches: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The batches after the warm-up."""
    return batches[WARM_UP_BATCHES:] or batches


def rate(batch: Mapping[str, Any]) -> float:
    """Rows per second of a batch, by the time of its whole execution, the commit included.

    Penstock's is counted by the time between two reports where that is longer: the durations of its batches omit the
    work between two batches.
    """
    spent_ms: int = max(batch["duration_ms"]["triggerExecution"], batch.get("interval_ms", 0), 1)
    return float(batch["rows"] / spent_ms * 1000)


def commits_of(batches: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The commits that were complete when a batch ended, with the milliseconds of their `snapshot`, and in `total`."""
    by_checkpoint = {batch["commit"]["checkpoint"]: batch["commit"] for batch in batches}
    return [commit for commit in by_checkpoint.values() if "total" in commit]


def of_batches(run: SideRun) -> dict[str, Any]:
    """The batches of a run, and processor microseconds for a row, by kind of process, after the warm-up."""
    batches = run.result["batches"]
    return {**run.result, "cpu_us_per_row": cpu_us_per_row(run, batches)}


def cpu_us_per_row(run: SideRun, batches: Sequence[dict[str, Any]]) -> dict[str, float]:
    """From the end of the warm-up to the end of the last batch. Other work on the machine hardly changes it."""
    counts = counted(batches)
    before = batches[len(batches) - len(counts) - 1] if len(counts) < len(batches) else None
    started = before["ended"] if before else batches[0]["ended"] - batches[0]["duration_ms"]["triggerExecution"] / 1000
    rows = sum(batch["rows"] for batch in counts)
    spent = run.usage.cpu_between(started, batches[-1]["ended"])
    return {kind: round(seconds / rows * 1e6, 2) for kind, seconds in spent.items()}


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The median rate of the batches that count, of all runs; the median processor time; the largest memory."""
    rates = [rate(batch) for run in runs for batch in counted(run["batches"])]
    return {
        "rows_per_second": round(statistics.median(rates)),
        "slowest_batch_rows_per_second": round(min(rates)),
        "fastest_batch_rows_per_second": round(max(rates)),
        "cpu_us_per_row": round(statistics.median(sum(run["cpu_us_per_row"].values()) for run in runs), 2),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "verified": not any(map(is_wrong, runs)),
    }


COLUMNS = {
    "rows_per_second": ",.0f",
    "slowest_batch_rows_per_second": ",.0f",
    "fastest_batch_rows_per_second": ",.0f",
    "cpu_us_per_row": ".1f",
    "peak_bytes": "MB",
    "verified": "",
}
"""The columns of a table of summaries."""


def run_sides(bench: Bench, sides: Mapping[str, Side]) -> dict[str, dict[str, Any]]:
    """Run sides in turn, as often as the options say. Returns the summaries of all their runs."""
    for side in bench.turns(sides, bench.options.repeat):
        target, verify, parameters = sides[side]
        bench.run(side, target, parameters, figures=of_batches, verify=verify)
    return {side: summary(bench.runs[side]) for side in sides}


def judge(
    bench: Bench, sides: Mapping[str, Mapping[str, Any]], targets: Iterable[tuple[str, str, float]]
) -> dict[str, float]:
    """The ratios of rows per second beside their targets: a side, another one, and the ratio, at least.

    The other one may be the beginning of some names, up to a comma: of these sides, the fastest counts.
    """
    found = {}
    for own, other, least in targets:
        rates = [one["rows_per_second"] for name, one in sides.items() if f"{name}, ".startswith(f"{other}, ")]
        if own in sides and max(rates, default=0):
            found[f"{own} / {other}"] = round(sides[own]["rows_per_second"] / max(rates), 2)
            bench.target(f"{own} / {other}", found[f"{own} / {other}"], at_least=least)
    return found
