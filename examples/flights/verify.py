"""Checks every total of the demo against a plain computation over the same file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from examples.flights.data import carrier_names, expected_totals
from penstock.api.ssp import SystemStreamPartition
from penstock.config.load import load_config
from penstock.state.reading.reader import read_store
from penstock.system.base import OffsetRange
from penstock.system.registry import open_system

Totals = dict[str, dict[str, Any]]


def last_values(stream: str) -> Totals:
    """The last message of every key of an output stream."""
    system = open_system(load_config(default_job_name="flights").system("local"))
    totals: Totals = {}
    for partition, ends in system.admin().offsets(stream).items():
        ssp = SystemStreamPartition("local", stream, partition)
        for messages in system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 10_000):
            totals.update({(key or b"").decode(): orjson.loads(value or b"null") for _, _, key, value, *_ in messages})
    return totals


def stored_values(store: str, file: Path | None = None) -> Totals:
    """Every entry of a store, as of the last checkpoint. `file` has the job's configuration."""
    config = load_config(file, default_job_name="flights")
    return {key.decode(): orjson.loads(value) for _, key, value in read_store(config, store)}


def differences(what: str, expected: Totals, found: Totals) -> list[str]:
    """Every total that differs, is missing, or should not be there."""
    keys = sorted(expected.keys() | found.keys())
    return [
        f"{what} {key}: expected {expected.get(key)}, found {found.get(key)}"
        for key in keys
        if expected.get(key) != found.get(key)
    ]


def show(console: Console, carriers: Totals) -> None:
    """Print the table of carriers."""
    table = Table("carrier", "flights", "miles", "hours in the air", "worst delay, minutes")
    names = carrier_names()
    for code, total in sorted(carriers.items(), key=lambda item: -item[1]["flights"]):
        row = (total["flights"], total["miles"], total["air_time"] // 60, total["worst_delay"])
        table.add_row(names.get(code, code), *(f"{n:,}" if n is not None else "" for n in row))
    if carriers:
        console.print(table)
    else:
        console.print("the stream `carrier-totals` is empty: no run has written to it, or it was deleted since")


def conclude(console: Console, wrong: list[str], verdict: str) -> None:
    """Print the verdict. Exit status 1 if anything is wrong."""
    for line in wrong[:20]:
        console.print(line, style="red", highlight=False)
    if wrong:
        console.print(f"{len(wrong)} differences", style="bold red", highlight=False)
        sys.exit(1)
    console.print(f"verified: {verdict}", style="bold green", highlight=False, soft_wrap=True)


def main() -> None:
    """Print the table and the verdict. Exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=None, help="only this many flights were published")
    flights, aircraft, carriers = expected_totals(parser.parse_args().flights)
    found = last_values("carrier-totals")
    console = Console()
    show(console, found)
    wrong = [
        *differences("output carrier-totals", carriers, found),
        *differences("output aircraft-totals", aircraft, last_values("aircraft-totals")),
        *differences("store carriers", carriers, stored_values("carriers")),
        *differences("store aircraft", aircraft, stored_values("aircraft")),
    ]
    conclude(
        console,
        wrong,
        f"the totals of {flights:,} flights, {len(aircraft):,} aircraft and {len(carriers)} carriers are right",
    )


if __name__ == "__main__":
    main()
