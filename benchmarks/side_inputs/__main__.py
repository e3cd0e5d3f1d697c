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

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import harness

SIDES: Mapping[str, Mapping[str, tuple[str, dict[str, Any]]]] = {
    "throughput": {how: ("throughput", {"how": how}) for how in ("idle", "container", "spark")},
    "latency": {how: ("latency", {"how": how}) for how in ("container", "spark")},
    "bootstrap": {
        "container": ("bootstrap", {"how": "container"}),
        "spark": ("bootstrap", {"how": "spark"}),
        "puts": ("puts", {"batch": 1}),
        "batches of puts": ("puts", {"batch": 500}),
        "container, random": ("bootstrap", {"how": "container", "order": "random"}),
        "puts, random": ("puts", {"batch": 1, "order": "random"}),
        "batches of puts, random": ("puts", {"batch": 500, "order": "random"}),
    },
    "swap": {"swap": ("swap", {})},
}
"""By part and name of a side: its function, and its own parameters."""
LOOKED_UP = 100_000
"""Rows of the table whose messages and updates are counted."""


def judge(bench: harness.Bench, part: str, runs: Mapping[str, Sequence[harness.Run]]) -> dict[str, float]:
    """The figures of a part beside its targets."""
    found: dict[str, float] = {}
    if part == "throughput":
        found = harness.against(runs, "messages_per_s", "idle")
        bench.target("throughput, container / idle", found["container"], at_least=0.9)
    elif part == "latency":
        for side, own in runs.items():
            values = [ms for run in own for ms in run["latencies_ms"]]
            found |= {f"{side}, p{share:.0%}": harness.percentile(values, share) for share in (0.5, 0.99)}
            bench.target(f"latency, {side}, p99 ms", harness.percentile(values, 0.99), at_most=2000)
    elif part == "bootstrap":
        for order in ("", ", random"):
            alike = {side: each for side, each in runs.items() if side.endswith(", random") == bool(order)}
            for side, ratio in harness.against(alike, "rows_per_s", f"container{order}").items():
                found[f"container / {side}"] = round(1 / ratio, 2)
            bench.target(f"bootstrap, container / puts{order}", found[f"container / puts{order}"], at_least=5)
    else:
        # The batch that sees the new version first may begin late, or take long.
        gaps = [{"ms": max(run["swap_gap_ms"], run["after_gap_ms"]) - run["usual_gap_ms"]} for run in runs["swap"]]
        found["ms more than usual"] = harness.median(gaps, "ms")
        bench.target("swap, ms more than usual", found["ms more than usual"], at_most=100)
    return found


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options(
        "side_inputs", __doc__, given, parts=list(SIDES), rows=5_000_000, updates=20_000, messages=3_000_000,
        messages_per_s=2_000, seconds=30, warm_up=10, repeat=3, threads=2,
    )  # fmt: skip
    with harness.Bench("side_inputs", options) as bench:
        figures = {}
        for part in options.parts:
            common = {
                "rows": options.rows if part in ("bootstrap", "swap") else min(options.rows, LOOKED_UP),
                "updates_per_s": options.updates,
                "messages": options.messages,
                "messages_per_s": options.messages_per_s,
                "seconds": options.seconds,
                "warm_up_s": options.warm_up,
                "threads": options.threads,
                "order": "ascending",
            }
            for side in bench.turns(SIDES[part], options.repeat):
                function, own = SIDES[part][side]
                bench.run(f"{part}: {side}", f"side_inputs.jobs:{function}", {**common, **own})
            figures[part] = judge(bench, part, {side: bench.runs[f"{part}: {side}"] for side in SIDES[part]})
        shown = (
            "messages_per_s",
            "took_s",
            "rows_per_s",
            "usual_gap_ms",
            "beside_gap_ms",
            "swap_gap_ms",
            "load_seconds",
        )
        sides = {
            side: {
                **{name: harness.median(runs, name) for name in shown if runs[0].get(name) is not None},
                "peak_bytes": max(run["peak_bytes"] for run in runs),
            }
            for side, runs in bench.runs.items()
        }
        harness.show("medians of the rounds", sides, **dict.fromkeys(shown, ",.0f"), peak_bytes="MB")
        return bench.finish(sides, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
