"""The totals of `app.py` by column, and the time that both take: `python -m examples.flights.columns`.

Each application runs over all published flights in a separate process. The totals of both are compared with a plain
computation, and the time that their batches took is shown, without the first batch, in which everything is opened.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import penstock as ps
from examples.flights.app import application as rows_application
from examples.flights.data import expected_totals
from examples.flights.verify import conclude, differences, last_values
from penstock.config.load import load_config
from penstock.system.registry import open_system

FLIGHT = ps.Columns(
    pa.schema(
        {
            "tailnum": pa.string(),
            "carrier": pa.string(),
            "distance": pa.int64(),
            "air_time": pa.int64(),
            "arr_delay": pa.int64(),
        }
    )
)
TOTALS = {
    "flights": ps.Count(),
    "miles": ps.Sum(ps.col("distance")),
    "air_time": ps.Sum(ps.col("air_time")),
    "worst_delay": ps.Max(ps.col("arr_delay")),
}
OUTPUTS = ("aircraft-totals", "carrier-totals")
CONFIG = {"job.batch.max.messages": 40_000, "task.commit.ms": 2_000}


def application(system: str) -> ps.StreamApplication:
    """The running totals of every aircraft and every carrier, after each batch that changed them."""
    app = ps.StreamApplication("flights-columns")
    flights = app.input(f"{system}.flights", value=FLIGHT).filter(ps.col("tailnum").fill_null("") != "")
    for name, column in (("aircraft", "tailnum"), ("carrier", "carrier")):
        totals = flights.partition_by(ps.col(column), id=f"by-{name}").aggregate(TOTALS, id=f"{name}-totals")
        totals.send_to(app.output(f"{system}.{name}-totals"))
    return app


app = application("local")
APPLICATIONS = {"rows": rows_application("local"), "columns": app}


def run(kind: str) -> dict[str, float]:
    """Run an application over all flights: the messages and the seconds of its batches, without the first."""
    job = APPLICATIONS[kind].run({**CONFIG, "job.name": f"flights-{kind}"}, until="latest")
    batches: dict[int, tuple[int, float]] = {}
    while job.is_active:
        if (last := job.progress) is not None:
            batches[last.batch_id] = last.num_input_rows, last.duration_ms["triggerExecution"] / 1000
        time.sleep(0.005)
    job.await_termination()
    first = min(batches)
    counted = [batch for number, batch in batches.items() if number != first]
    return {"messages": sum(messages for messages, _ in counted), "seconds": sum(seconds for _, seconds in counted)}


def measure(kind: str) -> dict[str, float]:
    """As `run`, in a separate process, from the first flight on, into new outputs."""
    config = load_config(default_job_name=f"flights-{kind}")
    shutil.rmtree(Path(config.job.root.removeprefix("file://")) / f"flights-{kind}-1", ignore_errors=True)
    admin = open_system(config.system("local")).admin()
    for stream in OUTPUTS:
        if stream in admin.streams():
            admin.delete_stream(stream)
    command = [sys.executable, "-m", "examples.flights.columns", "--run", kind]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def check(kind: str, expected: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """The totals in the outputs that differ from the expected ones."""
    return [
        line
        for stream, totals in expected.items()
        for line in differences(f"{kind}: output {stream}", totals, last_values(stream))
    ]


def main() -> None:
    """Run both, and print the verdict and the times. Exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", choices=list(APPLICATIONS), help="run only this one, and print its time as JSON")
    parser.add_argument("--flights", type=int, default=None, help="only this many flights were published")
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(arguments.run)))
        return
    count, aircraft, carriers = expected_totals(arguments.flights)
    expected: dict[str, dict[str, dict[str, Any]]] = dict(zip(OUTPUTS, (aircraft, carriers), strict=True))
    table, wrong, rates = Table("", "flights", "seconds in batches", "flights/s"), list[str](), list[float]()
    for kind in APPLICATIONS:
        found = measure(kind)
        wrong += check(kind, expected)
        rates.append(found["messages"] / found["seconds"])
        table.add_row(kind, f"{found['messages']:,.0f}", f"{found['seconds']:.2f}", f"{rates[-1]:,.0f}")
    console = Console()
    console.print(table)
    console.print(f"by column: {rates[1] / rates[0]:.1f} times the flights a second", highlight=False)
    conclude(console, wrong, f"{count} flights, {len(aircraft)} aircraft, {len(carriers)} carriers, in both forms")


if __name__ == "__main__":
    main()
