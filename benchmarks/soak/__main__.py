"""The soak: one job runs many small batches, and nothing that its processes hold may grow.

The job has two stages with a store each, two exchanges and an output. It commits after every batch, or at most every
`--commit-ms`. With `--latency-ms`, that target makes its batches go directly to the containers. After every
`--step-batches` batches it is idle for a moment, and a sample is taken of all its processes (memory, threads, open
files) and folders (temporary files, log, job root, local state). Growth is what the median of the later half of the
samples has more than that of the earlier half, the first sample left out. More than is allowed makes the exit status 1.

    python -m benchmarks.soak [--steps N] [--step-batches N] [--batch-messages N] [--message-bytes N]
        [--latency-ms N] [--commit-ms N] [--json PATH]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks import harness
from benchmarks.soak.growth import growth


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options(
        "soak",
        __doc__,
        given,
        steps=40,
        step_batches=100,
        batch_messages=200,
        message_bytes=4000,
        latency_ms=0,
        commit_ms=1,
    )
    if options.steps < 3:
        raise SystemExit("growth needs at least 3 steps")
    with harness.Bench("soak", options) as bench:
        parameters = {name: value for name, value in vars(options).items() if name != "json"}
        found = growth(bench.run("soak", "soak.job:soak", parameters, timeout_s=86_400)["samples"])
        for each in found:
            harness.console.print(f"{each}{' GREW' if each.too_much else ''}")
        grown = [{**asdict(each), "allowed": each.allowed, "too_much": each.too_much} for each in found]
        return bench.finish(growth=grown) or int(any(each.too_much for each in found))


if __name__ == "__main__":
    sys.exit(main())
