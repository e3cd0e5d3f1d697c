"""Commits of the changelog files backend: what they take and write, beside a snapshot per commit and Spark's store."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.state.job import ENTRY_BYTES, NEGLIGIBLE_MS, StateJob, keys_of, write_state_inputs
from penstock.state.engines.engine import compress, encode_records

SIDES = ("deltas", "snapshots", "spark")
WARM_UP = 2
"""Commits of each series that do not count."""
LEAST = 4
"""Commits of each series, however many keys they change."""
BYTES_TARGET = 1.05
"""A delta's size divided by that of the zstd-compressed net changes, at most."""
LATENCY_TARGET = 1.5
"""The median with the large state divided by that with the small one, at most."""
Series = Mapping[int, Mapping[str, Any]]
"""By the number of changed keys."""


def plan(changed: Sequence[int], keys: int, most: int, budget_keys: int) -> list[dict[str, int]]:
    """The series of a side: as many commits as the budget of changed keys allows, none of more keys than there are."""
    return [
        {"changed": count, "commits": max(LEAST, min(most, budget_keys // count))}
        for count in sorted(changed)
        if count <= keys
    ]


def figures(side: str, run: harness.SideRun) -> dict[str, Any]:
    """Each series with its percentiles and what it wrote."""
    return {**run.result, "series": {one["changed"]: _summary(one, side) for one in run.result["series"]}}


def _summary(series: Mapping[str, Any], side: str) -> dict[str, Any]:
    written = series["snapshot_bytes" if side == "snapshots" else "delta_bytes"]
    found: dict[str, Any] = {}
    for part in ("wait", "durable", "updates"):
        if f"{part}_ms" in series["times"][0]:
            values = [one[f"{part}_ms"] for one in series["times"]]
            found[f"{part}_p50_ms"] = round(statistics.median(values), 3)
            found[f"{part}_p99_ms"] = round(harness.percentile(values, 0.99), 3)  # of few, the slowest
    return {
        **found,
        "written_per_changed_byte": round(written / series["net_bytes"], 3),
        "of_zstd": round(written / series["zstd_bytes"], 4) if side == "deltas" else None,
        **series,
    }


def judge(bench: harness.Bench, large: Series, small: Series) -> None:
    """Targets: deltas are small, and their commits do not depend on the size of the state."""
    worst = max(one["of_zstd"] for series in (large, small) for one in series.values())
    bench.target("deltas / zstd of the net changes", worst, at_most=BYTES_TARGET)
    for changed in small.keys() & large.keys():
        for part in ("wait_p50_ms", "durable_p50_ms"):
            least, most = small[changed][part], large[changed][part]
            if max(least, most) >= NEGLIGIBLE_MS:
                text = f"deltas of {changed:,} keys, {part}, large / small state"
                bench.target(text, most / max(least, 0.001), at_most=LATENCY_TARGET)


def commits(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state, back it up as a whole, then commit series of changes."""
    work = Path(parameters["work"])
    backend = parameters.get("backend", "changelog-files")
    with closing(StateJob(work, backend, parameters.get("config"))) as job:
        job.prepare(parameters["keys"])
        series = [_series(job, one, parameters["warm_up"]) for one in parameters["series"]]
        job.finish_snapshots()
        return {"series": series, "verified": job.is_restored(work / "restored")}


def _series(job: StateJob, wanted: Mapping[str, int], warm_up: int) -> dict[str, Any]:
    """Some commits of as many changed keys each."""
    for _ in range(warm_up):
        job.change(wanted["changed"])
        job.commit()
    before = job.written()
    commits: list[dict[str, Any]] = []
    zstd_bytes = 0
    for _ in range(wanted["commits"]):
        changes = job.change(wanted["changed"])
        times = job.commit()
        commits.append({**times, "wait_ms": times["snapshot_ms"], "durable_ms": sum(times.values())})
        zstd_bytes += len(compress(encode_records(changes)))
    written = {kind: size - before[kind] for kind, size in job.written().items()}
    net_bytes = wanted["commits"] * wanted["changed"] * ENTRY_BYTES
    return {**wanted, **written, "net_bytes": net_bytes, "zstd_bytes": zstd_bytes, "times": commits}


@harness.benchmark(
    "commit", __doc__, megabytes=1024, small_megabytes=10, changed=[1000, 10_000, 100_000, 1_000_000], commits=100,
    spark_commits=25, budget_keys=3_000_000, sides=list(SIDES), threads=2,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options = bench.options
    found: dict[str, list[Series]] = {}
    for megabytes in (options.megabytes, options.small_megabytes):
        for side in options.sides:
            keys = keys_of(megabytes)
            most = options.spark_commits if side == "spark" else options.commits
            series = plan(options.changed, keys, most, options.budget_keys)
            config = {} if side == "deltas" else {"state.changelog.enabled": "false"}
            own: dict[str, Any] = {"keys": keys, "series": series, "warm_up": WARM_UP, "config": config}
            if side == "spark":
                counts = [one["changed"] for one in series for _ in range(WARM_UP + one["commits"])]
                own |= write_state_inputs(bench.work / f"inputs-{megabytes}", keys, counts)
            target = "state.spark:commits" if side == "spark" else "commit:commits"
            name = f"{side}, {megabytes:,} MB"
            run = bench.run(name, target, own, figures=partial(figures, side))
            found.setdefault(side, []).append(run["series"])
    rows = {
        f"{name}, {changed:,} keys": one
        for name, runs in bench.runs.items()
        for changed, one in runs[0]["series"].items()
    }
    times = {f"{part}_{kind}_ms": ",.2f" for part in ("wait", "durable") for kind in ("p50", "p99")}
    rest = {"written_per_changed_byte": ".2f", "of_zstd": ".3f"}
    harness.show("commits, of each changed keys", rows, commits=",", **times, updates_p50_ms=",.0f", **rest)
    if "deltas" in found:
        judge(bench, *found["deltas"])
    return bench.finish(entry_bytes=ENTRY_BYTES)
