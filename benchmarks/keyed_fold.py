"""The keyed fold: running count and sum per key, with a durable commit every batch, through Penstock and Spark.

The same 2,000,000 events (10 batches of 200,000 over 100,000 keys) go through

* Penstock: JSON messages of a local stream, an ordinary Python function per message, state as JSON dicts in RocksDB;
* Spark's own `groupBy().agg` with RocksDB and changelog checkpointing, from files of JSON lines and of Parquet;
* PySpark's `transformWithState` (row form), likewise with RocksDB and changelog checkpointing.

Every side runs in a process of its own, in turn, over `--repeat` rounds. Rows per second are those of the batches
after the second, the median over batches and rounds. Of Spark's inputs the faster one counts in the ratio. After each
run the state is read back from the checkpoint and compared, key by key, with a plain computation; a side that differs
makes the exit status 1. Penstock's commit of a batch is uploaded while the next batch runs, and complete before the
commit of that one begins. `batch floor` is the time a batch of 10 messages takes in Penstock, a shuffle included.

    python -m benchmarks.keyed_fold [--events N] [--batches N] [--keys N] [--sides ...] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import (
    DRIVER_MEMORY,
    RESULTS,
    SideRun,
    console,
    contention,
    describe_machine,
    end_on_sigterm,
    machine,
    megabytes,
    print_table,
    run_facts,
    run_side,
    warn_of_contention,
    write_json,
)
from benchmarks.workload import Inputs, Workload, write_inputs

Form = Literal["stream", "json", "parquet"]
SIDES = ("penstock", "aggregation", "transformWithState")
WARM_UP_BATCHES = 2
FLOOR_MESSAGES = 10
FLOOR_BATCHES = 20
FLOOR_WARM_UP = 5
TARGETS = {"transformWithState": 15.0, "aggregation": 1.2}
"""What Penstock's rows per second divided by the side's should at least be."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way through which the events go."""

    kind: str
    """One of SIDES."""
    form: Form

    @property
    def name(self) -> str:
        """As it stands in the table."""
        return "penstock" if self.kind == "penstock" else f"{self.kind}, {self.form}"

    @property
    def module(self) -> str:
        """Where its functions `fold` and `verify` are."""
        return "benchmarks.side_penstock" if self.kind == "penstock" else "benchmarks.side_spark"


@dataclass(slots=True)
class Outcome:
    """What was measured of one side."""

    side: Side
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Rows per second of every batch that counts, of all rounds."""
        return [rate(batch) for one in self.rounds for batch in counted(one["batches"])]

    @property
    def rows_per_second(self) -> float:
        """The median."""
        return float(statistics.median(self.rates()))

    @property
    def cpu_us_per_row(self) -> float:
        """Processor microseconds of all its processes for a row, of the batches that count; the median of the rounds.

        Other work on the machine hardly changes it, unlike the rows per second.
        """
        return float(statistics.median(sum(one["cpu_us_per_row"].values()) for one in self.rounds))

    @property
    def peak_bytes(self) -> int:
        """Of the round that took the most."""
        return max(int(one["peak"]["total_bytes"]) for one in self.rounds)

    @property
    def verified(self) -> bool:
        """Whether every round ended with the right totals."""
        return all(one["verified"]["equal"] for one in self.rounds)

    def summary(self) -> dict[str, Any]:
        """For the JSON."""
        rates = self.rates()
        return {
            **asdict(self.side),
            "rows_per_second": round(self.rows_per_second),
            "slowest_batch_rows_per_second": round(min(rates)),
            "fastest_batch_rows_per_second": round(max(rates)),
            "cpu_us_per_row": round(self.cpu_us_per_row, 2),
            "peak_bytes": self.peak_bytes,
            "verified": self.verified,
            "rounds": self.rounds,
        }


def counted(batches: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The batches after the warm-up."""
    return batches[WARM_UP_BATCHES:] or batches


def rate(batch: dict[str, Any]) -> float:
    """Rows per second of a batch, by the time of its whole execution, the commit included.

    Penstock's is counted by the time between two reports where that is longer: what it does between two batches is
    in no duration of its own.
    """
    spent_ms: int = max(batch["duration_ms"]["triggerExecution"], batch.get("interval_ms", 0), 1)
    return float(batch["rows"] / spent_ms * 1000)


def chosen_sides(kinds: Sequence[str], spark_input: str) -> list[Side]:
    """Spark's aggregation once per input; `transformWithState`, where the input hardly counts, once."""
    forms: list[Form] = [f for f in ("json", "parquet") if spark_input in (f, "both")]
    sides: list[Side] = []
    for kind in kinds:
        match kind:
            case "penstock":
                sides.append(Side(kind, "stream"))
            case "aggregation":
                sides += [Side(kind, form) for form in forms]
            case _:
                sides.append(Side(kind, forms[-1]))
    return sides


def measure(side: Side, workload: Workload, inputs: Inputs, work: Path, threads: int) -> dict[str, Any]:
    """Run a side once, then check what it left."""
    partitions = threads
    parameters: dict[str, Any] = {
        "work": str(work),
        "workload": asdict(workload),
        "threads": threads,
        "partitions": partitions,
        "batch_messages": workload.batch_events,
        "streams": str(inputs.streams),
        "operator": side.kind,
        "form": side.form,
        "files": str(inputs.files(side.form)),
    }
    run = run_side(f"{side.module}:fold", parameters, work)
    verified = run_side(f"{side.module}:verify", parameters, work / "verify").result
    batches = run.result["batches"]
    return {"batches": batches, "verified": verified, "cpu_us_per_row": cpu_per_row(run, batches), **run_facts(run)}


def cpu_per_row(run: SideRun, batches: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Processor microseconds for a row by kind of process, from the end of the warm-up to the end of the last batch."""
    counts = counted(batches)
    before = batches[len(batches) - len(counts) - 1] if len(counts) < len(batches) else None
    started = before["ended"] if before else batches[0]["ended"] - batches[0]["duration_ms"]["triggerExecution"] / 1000
    spent = run.usage.cpu_between(started, batches[-1]["ended"])
    rows = sum(batch["rows"] for batch in counts)
    return {kind: round(seconds / rows * 1e6, 2) for kind, seconds in spent.items()}


def batch_floor(work: Path, threads: int) -> dict[str, Any]:
    """The median time of a batch of a few messages, with and without its commit."""
    run: SideRun = run_side(
        "benchmarks.side_penstock:floor",
        {
            "work": str(work),
            "threads": threads,
            "messages": FLOOR_MESSAGES,
            "batches": FLOOR_WARM_UP + FLOOR_BATCHES,
        },
        work,
    )
    batches = run.result["batches"][FLOOR_WARM_UP:]
    durations = [batch["duration_ms"] for batch in batches]
    return {
        "messages": FLOOR_MESSAGES,
        "batches": len(batches),
        "p50_ms": statistics.median(
            d["triggerExecution"] - d.get("commitWait", 0) - d.get("walCommit", 0) for d in durations
        ),
        "p50_with_commit_ms": statistics.median(d["triggerExecution"] for d in durations),
        "p50_between_reports_ms": statistics.median(batch["interval_ms"] for batch in batches),
        "durations_ms": durations,
    }


def ratios(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Penstock's rows per second over those of each of Spark's operators, of which the fastest input counts."""
    own = next((o.rows_per_second for o in outcomes if o.side.kind == "penstock"), None)
    found: dict[str, float] = {}
    for kind in TARGETS:
        theirs = [o.rows_per_second for o in outcomes if o.side.kind == kind]
        if own is not None and theirs:
            found[kind] = round(own / max(theirs), 2)
    return found


def report(outcomes: Sequence[Outcome], floor: dict[str, Any] | None, workload: Workload) -> None:
    """The tables."""
    found = ratios(outcomes)
    own = next((o for o in outcomes if o.side.kind == "penstock"), None)
    print_table(
        f"keyed fold: {workload.events:,} events, {workload.batches} batches, {workload.keys:,} keys",
        ("side", "rows/s", "slowest", "fastest", "penstock is", "CPU µs/row", "peak PSS", "totals"),
        [
            (
                o.side.name,
                f"{o.rows_per_second:,.0f}",
                f"{min(o.rates()):,.0f}",
                f"{max(o.rates()):,.0f}",
                "" if own is None or o is own else f"{own.rows_per_second / o.rows_per_second:.2f} x",
                f"{o.cpu_us_per_row:.1f}",
                megabytes(o.peak_bytes),
                "verified" if o.verified else "WRONG",
            )
            for o in outcomes
        ],
    )
    for kind, ratio in found.items():
        console.print(f"penstock / {kind} (its fastest input): {ratio:.2f}, to be at least {TARGETS[kind]}")
    if floor is not None:
        console.print(
            f"batch floor: {floor['p50_ms']:.0f} ms without, {floor['p50_with_commit_ms']:.0f} ms with the commit "
            f"(p50 of {floor['batches']} batches of {floor['messages']} messages)"
        )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    default = Workload()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keyed_fold", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--events", type=int, default=default.events)
    parser.add_argument("--batches", type=int, default=default.batches)
    parser.add_argument("--keys", type=int, default=default.keys)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--spark-input", choices=("json", "parquet", "both"), default="both")
    parser.add_argument("--repeat", type=int, default=2, help="rounds; every side runs once in each")
    parser.add_argument("--threads", type=int, default=2, help="local[N], tasks, partitions, shuffle partitions")
    parser.add_argument("--no-floor", action="store_true", help="leave the batch floor out")
    parser.add_argument("--json", type=Path, default=RESULTS / "keyed_fold.json")
    options = parser.parse_args(given)
    if options.events % (options.batches * options.threads):
        parser.error("--events must be a multiple of --batches times --threads, so that all batches are equal")
    if min(options.events, options.repeat, options.keys) < 1:
        parser.error("--events, --keys and --repeat must be at least 1")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the tables, write the JSON. Returns the exit status."""
    options = arguments(given)
    workload = Workload(options.events, options.batches, options.keys, options.seed)
    outcomes = [Outcome(side) for side in chosen_sides(options.sides, options.spark_input)]
    end_on_sigterm()
    facts = machine()
    console.print(describe_machine(facts))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name)
        with console.status("writing the events"):
            inputs = write_inputs(workload, work / "inputs", options.threads)
        for number in range(options.repeat):
            for outcome in outcomes:
                with console.status(f"round {number + 1} of {options.repeat}: {outcome.side.name}"):
                    outcome.rounds.append(measure(outcome.side, workload, inputs, work / "side", options.threads))
                shutil.rmtree(work / "side")
        floor = None
        if not options.no_floor and "penstock" in options.sides:
            with console.status("batch floor"):
                floor = batch_floor(work / "floor", options.threads)
    report(outcomes, floor, workload)
    contended = contention({outcome.side.name: outcome.rounds for outcome in outcomes}, facts["cores"])
    warn_of_contention(contended)
    result = {
        "benchmark": "keyed_fold",
        "machine": facts,
        "parameters": {
            **asdict(workload),
            "rounds": options.repeat,
            "warm_up_batches": WARM_UP_BATCHES,
            "threads": options.threads,
            "driver_memory": DRIVER_MEMORY,
        },
        "sides": {outcome.side.name: outcome.summary() for outcome in outcomes},
        "ratios": ratios(outcomes),
        "batch_floor": floor,
        "contention": contended,
    }
    write_json(options.json, result)
    return 0 if all(outcome.verified for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
