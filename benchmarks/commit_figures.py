"""What is made of the measured commits: percentiles, bytes, ratios, and whether targets are reached. No I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

LEAST = 4
"""Commits of each series, however many keys they change."""
BYTES_TARGET = 1.05
"""What a delta's size divided by that of the zstd-compressed net changes should at most be."""
LATENCY_TARGET = 1.5
"""What the median with the large state divided by that with the small one should at most be."""
NEGLIGIBLE_MS = 1.0
"""Where both are below this, their ratio is that of the clock's and the scheduler's noise."""

Summary = Mapping[str, Any]
"""Of one side and state: `series` by the number of changed keys, and what the side said of all of it."""


def plan(changed: Sequence[int], keys: int, most: int, budget_keys: int) -> list[dict[str, int]]:
    """The series of a side: as many commits as the budget of changed keys allows, none of more keys than there are."""
    return [
        {"changed": count, "commits": max(LEAST, min(most, budget_keys // count))}
        for count in sorted(changed)
        if count <= keys
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values is not above; of few values, the largest."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summarise(result: Summary, changelog: bool) -> dict[str, Any]:
    """Each series with its percentiles and what it wrote; `changelog`: whether commits wrote deltas."""
    return {**result, "series": {one["changed"]: _summarise(one, changelog) for one in result["series"]}}


def _summarise(series: Summary, changelog: bool) -> dict[str, Any]:
    written = series["delta_bytes" if changelog else "snapshot_bytes"]
    times = series["times"]
    found: dict[str, Any] = {}
    for part in ("wait", "durable", "updates", "batch"):
        if f"{part}_ms" in times[0]:
            values = [one[f"{part}_ms"] for one in times]
            found[part] = {"p50_ms": round(statistics.median(values), 3), "p99_ms": round(percentile(values, 0.99), 3)}
    beside = sum(one["beside_snapshot"] for one in times) / len(times)
    return {
        **found,
        "bytes_per_changed_byte": round(written / series["net_bytes"], 3),
        "of_zstd": round(written / series["zstd_bytes"], 4) if "zstd_bytes" in series else None,
        "beside_snapshot": round(beside, 3),
        **series,
    }


def of_zstd(sides: Mapping[str, Mapping[int, Summary]]) -> float | None:
    """The worst ratio of a series of deltas."""
    found = [one["of_zstd"] for state in sides.get("deltas", {}).values() for one in state["series"].values()]
    return max(found, default=None)


def growth(states: Mapping[int, Summary]) -> dict[int, dict[str, float]]:
    """Of the medians with the large and the small state, where both changed as many keys."""
    small, large = states[min(states)]["series"], states[max(states)]["series"]
    return {
        changed: {
            part: round(large[changed][part]["p50_ms"] / max(small[changed][part]["p50_ms"], 0.001), 2)
            for part in ("wait", "durable")
        }
        for changed in small
        if changed in large
    }


def is_independent(states: Mapping[int, Summary]) -> bool:
    """Whether neither part of a commit takes longer with the large state, as far as the target says."""
    small, large = states[min(states)]["series"], states[max(states)]["series"]
    pairs = [
        (small[changed][part]["p50_ms"], large[changed][part]["p50_ms"])
        for changed in small
        if changed in large
        for part in ("wait", "durable")
    ]
    return all(max(least, most) < NEGLIGIBLE_MS or most <= LATENCY_TARGET * least for least, most in pairs)


def ratios(sides: Mapping[str, Mapping[int, Summary]]) -> dict[str, dict[int, dict[str, float]]]:
    """With the large state: how many times as long, and as many bytes, each other side takes as `deltas`."""
    large = {name: states[max(states)]["series"] for name, states in sides.items() if states}
    own = large.pop("deltas", {})
    return {
        name: {
            changed: {
                "durable": round(series[changed]["durable"]["p50_ms"] / one["durable"]["p50_ms"], 2),
                "bytes": round(series[changed]["bytes_per_changed_byte"] / one["bytes_per_changed_byte"], 2),
            }
            for changed, one in own.items()
            if changed in series
        }
        for name, series in large.items()
    }
