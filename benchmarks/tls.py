"""What TLS between driver, Spark workers and containers costs.

The keyed fold (large batches) and the job of `floor` with two exchanges into the outputs (small ones) run with
containers that are reached

* `socket`: by their Unix sockets, as on one machine;
* `clear`: by their ports without TLS, as between hosts with `job.container.tls.enabled: false`;
* `tls`: by their ports over TLS, as between hosts by default.

Everything else is equal, and the network is the loopback interface. Every side runs in a process of its own, in turn
over `--repeat` rounds, every other round in the opposite order. Each side is compared with `clear` of the same round,
and the median of the rounds counts. The fold's totals are compared with a plain computation, and each output of the
floor with its input; a side that differs makes the exit status 1.

    python -m benchmarks.tls [--events N] [--batches N] [--keys N] [--floor-batches N] [--repeat N] [--json PATH]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import floor
from benchmarks.common import (
    DRIVER_MEMORY,
    SideFailedError,
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
from benchmarks.keyed_fold import counted, cpu_per_row, rate
from benchmarks.workload import Inputs, Workload, write_inputs

SCHEMES = {"socket": "grpc+unix", "clear": "grpc", "tls": "grpc+tls"}
"""By way, how containers are reached."""
EXCHANGES = 2
TARGETS = {"fold": 0.05, "floor": 0.10}
"""What TLS may cost at most: of the rows per second, and of the time of a batch."""
Rounds = Mapping[str, Sequence[Mapping[str, Any]]]
"""By way."""


def measure(kind: str, way: str, parameters: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """Run a side once, and check what it left."""
    given = {
        **parameters,
        "way": way,
        "work": str(work),
        "config": {"job.container.tls.enabled": str(way == "tls").lower()},
    }
    run = run_side(f"benchmarks.side_tls:{kind}", given, work)
    if run.result["schemes"] != [SCHEMES[way]]:
        raise SideFailedError(f"`{way}` reached its containers by {run.result['schemes']}, not by {SCHEMES[way]}")
    batches = run.result["batches"]
    if kind == "fold":
        verified = run_side("benchmarks.side_penstock:verify", given, work / "verify").result
        cpu = sum(cpu_per_row(run, batches).values())
        figures = {"rows_per_second": statistics.median(map(rate, counted(batches))), "cpu_us_per_row": cpu}
    else:
        verified = run.result["verified"]
        measured = batches[floor.WARM_UP :]
        spent = run.usage.cpu_between(batches[floor.WARM_UP - 1]["ended"], batches[-1]["ended"])
        figures = {**floor.summarise(batches), "cpu_ms": sum(spent.values()) / len(measured) * 1000}
    return {**figures, "verified": verified, **run_facts(run)}


def costs(fold: Rounds, small: Rounds) -> dict[str, dict[str, float]]:
    """By kind and way, the share of the rows per second that is lost, or of a batch's time that is added, against
    `clear` of the same round: the median of the rounds."""
    return {
        "fold": {
            way: _median(1 - own["rows_per_second"] / clear["rows_per_second"] for own, clear in _pairs(fold, way))
            for way in fold
        },
        "floor": {
            way: _median(own["batch"] / clear["batch"] - 1 for own, clear in _pairs(small, way)) for way in small
        },
    }


def _pairs(rounds: Rounds, way: str) -> zip[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return zip(rounds[way], rounds["clear"], strict=True)


def _median(values: Any) -> float:
    return round(float(statistics.median(values)), 4)


def report(fold: Rounds, small: Rounds) -> None:
    """The tables."""
    found = costs(fold, small)
    print_table(
        "keyed fold, medians of the rounds",
        ("containers reached by", "rows/s", "costs", "CPU µs/row", "peak PSS", "totals"),
        [_row(fold, way, found["fold"], "rows_per_second", "cpu_us_per_row") for way in fold],
    )
    print_table(
        f"{floor.job_name(EXCHANGES, True)}, {floor.MESSAGES} messages a batch, medians of the rounds",
        ("containers reached by", "batch ms", "costs", "CPU ms/batch", "peak PSS", "outputs"),
        [_row(small, way, found["floor"], "batch", "cpu_ms") for way in small],
    )
    for kind, target in TARGETS.items():
        console.print(f"TLS costs {found[kind]['tls']:.1%} of the {kind}, to be at most {target:.0%}")


def _row(rounds: Rounds, way: str, cost: Mapping[str, float], figure: str, cpu: str) -> tuple[str, ...]:
    own = rounds[way]
    return (
        way,
        f"{statistics.median(one[figure] for one in own):,.0f}",
        "" if way == "clear" else f"{cost[way]:+.1%}",
        f"{statistics.median(one[cpu] for one in own):.1f}",
        megabytes(max(one["peak"]["total_bytes"] for one in own)),
        "verified" if all(one["verified"]["equal"] for one in own) else "WRONG",
    )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("tls", __doc__)
    default = Workload()
    parser.add_argument("--events", type=int, default=default.events)
    parser.add_argument("--batches", type=int, default=default.batches)
    parser.add_argument("--keys", type=int, default=default.keys)
    parser.add_argument("--floor-batches", type=int, default=100, help="measured batches of the floor")
    parser.add_argument("--repeat", type=int, default=3, help="rounds; every side runs once in each")
    parser.add_argument("--threads", type=int, default=2, help="local[N], tasks, containers")
    options = positive_options(parser, given, "events", "batches", "keys", "floor_batches", "repeat", "threads")
    if options.events % (options.batches * options.threads):
        parser.error("--events must be a multiple of --batches times --threads, so that all batches are equal")
    return options


def parameters_of(options: argparse.Namespace, workload: Workload, inputs: Inputs) -> dict[str, dict[str, Any]]:
    """By kind."""
    return {
        "fold": {
            "workload": asdict(workload),
            "threads": options.threads,
            "batch_messages": workload.batch_events,
            "streams": str(inputs.streams),
        },
        "floor": {
            "messages": floor.MESSAGES,
            "batches": options.floor_batches + floor.WARM_UP,
            "threads": options.threads,
            "exchanges": EXCHANGES,
            "outputs": True,
        },
    }


def main(given: Sequence[str] | None = None) -> int:
    """Run it all, print the tables, write the JSON. Returns the exit status."""
    options = arguments(given)
    facts = begin()
    workload = Workload(options.events, options.batches, options.keys)
    rounds: dict[str, dict[str, list[dict[str, Any]]]] = {kind: {way: [] for way in SCHEMES} for kind in TARGETS}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name)
        with console.status("writing the events"):
            parameters = parameters_of(options, workload, write_inputs(workload, work / "inputs", options.threads))
        for number in range(options.repeat):
            for kind, ways in rounds.items():
                for way in ways if number % 2 == 0 else reversed(ways):
                    with console.status(f"round {number + 1} of {options.repeat}: {kind}, {way}"):
                        ways[way].append(measure(kind, way, parameters[kind], work / "side"))
                    shutil.rmtree(work / "side")
    report(rounds["fold"], rounds["floor"])
    finish(
        options.json,
        "tls",
        facts,
        {f"{kind}, {way}": own for kind, ways in rounds.items() for way, own in ways.items()},
        parameters={"rounds": options.repeat, "driver_memory": DRIVER_MEMORY, **parameters},
        rounds=rounds,
        costs=costs(rounds["fold"], rounds["floor"]),
    )
    every = [one for ways in rounds.values() for own in ways.values() for one in own]
    return 0 if all(one["verified"]["equal"] for one in every) else 1


if __name__ == "__main__":
    sys.exit(main())
