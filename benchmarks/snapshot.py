"""The synchronous part of a commit: whether it grows with the state."""

from __future__ import annotations

from typing import Any

from benchmarks import harness
from benchmarks.state.job import NEGLIGIBLE_MS
from penstock.config.settings import BACKENDS

WARM_UP = 3
TARGET = 1.5
"""The median with the largest state divided by that with the smallest, at most."""
PARTS = ("snapshot", "copies", "upload")


def figures(run: harness.SideRun) -> dict[str, Any]:
    """The median of each part of the commits."""
    (series,) = run.result["series"]
    return {**run.result, **{f"{part}_ms": harness.median(series["times"], f"{part}_ms") for part in PARTS}}


@harness.benchmark(
    "snapshot", __doc__, sizes=[10_000, 1_000_000, 10_000_000], changed=10_000, repeat=20, backends=list(BACKENDS)
)
def main(bench: harness.Bench) -> int:
    options = bench.options
    for backend in options.backends:
        medians = []
        for keys in sorted(options.sizes):
            series = [{"changed": min(options.changed, keys), "commits": options.repeat}]
            parameters = {"backend": backend, "keys": keys, "series": series, "warm_up": WARM_UP}
            side = f"{backend}, {keys:,} keys"
            medians.append(bench.run(side, "commit:commits", parameters, figures=figures)["snapshot_ms"])
        if max(medians) >= NEGLIGIBLE_MS:
            bench.target(f"{backend}, largest / smallest state", medians[-1] / medians[0], at_most=TARGET)
        else:
            bench.target(f"{backend}, ms with any state", max(medians), at_most=NEGLIGIBLE_MS)
    rows = {side: runs[0] for side, runs in bench.runs.items()}
    harness.show("commits", rows, **{f"{part}_ms": ",.2f" for part in PARTS}, verified="")
    return bench.finish()
