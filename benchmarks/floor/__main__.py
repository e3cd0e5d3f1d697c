"""The parts of a small batch.

Batches of 480 messages in 8 partitions go through 1, 2 and 3 exchanges with a store behind each, into no output and
into two outputs of 8 partitions each (an exchange more, and 16 synced appends). There are no commits. What counts is
the median over `--batches` batches after a warm-up. Beside each job stand

* `spark_alone`: a Spark job with as many shuffles, whose tasks are Python functions that pass nothing on;
* `appends`: what the sink tasks write in a batch, from one process, all at once as they do it;
* `end`, which the driver measures.

What is left is reading, the operators, the calls to the containers (Flight) and the driver's own work.

    python -m benchmarks.floor [--batches N] [--exchanges 1 2 3] [--threads N] [--json PATH]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks import harness
from benchmarks.floor.job import MESSAGES, WARM_UP, milliseconds

TARGET_MS = 120.0
"""The longest time for a batch through two exchanges into the outputs."""


def parts(job: Mapping[str, float], spark_alone: float, appends: float) -> dict[str, float]:
    """A batch and what it consists of, in milliseconds; `rest` is all other work."""
    rest = job["batch"] - spark_alone - appends - job["end"]
    return {**job, "spark_alone": spark_alone, "appends": appends, "rest": rest}


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options("floor", __doc__, given, batches=100, exchanges=[1, 2, 3], threads=2)
    common = {"messages": MESSAGES, "batches": options.batches + WARM_UP, "threads": options.threads}
    jobs: dict[str, dict[str, float]] = {}
    spark_alone: dict[int, float] = {}
    with harness.Bench("floor", options) as bench:
        found = bench.run("appends", "floor.job:appends", common)
        appends = {key: statistics.median(found[key][WARM_UP:]) for key in ("in_turn", "at_once")}
        for exchanges in options.exchanges:
            for outputs in (False, True):
                shuffles = exchanges + outputs
                if shuffles not in spark_alone:
                    alone = {**common, "shuffles": shuffles}
                    took = bench.run(f"Spark alone, {shuffles} shuffles", "floor.job:spark_alone", alone)["ms"]
                    spark_alone[shuffles] = statistics.median(took[WARM_UP:])
                name = f"{exchanges} exchanges, {'two outputs' if outputs else 'no output'}"
                run = bench.run(name, "floor.job:batches", {**common, "exchanges": exchanges, "outputs": outputs})
                written = appends["at_once"] if outputs else 0.0
                jobs[name] = parts(milliseconds(run["batches"]), spark_alone[shuffles], written)
        figures = ("batch", "spark_alone", "appends", "end", "rest")
        harness.show("a batch, median ms", jobs, **dict.fromkeys(figures, ".0f"))
        if (job := jobs.get("2 exchanges, two outputs")) is not None:
            bench.target("2 exchanges into two outputs, ms", job["batch"], at_most=TARGET_MS)
        return bench.finish(jobs, spark_alone_ms=spark_alone, appends_ms=appends)


if __name__ == "__main__":
    sys.exit(main())
