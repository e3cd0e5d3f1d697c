"""The input of the demo: the departures and arrivals of 2013, each in the order in which they happened."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from examples.flights.data import data_file, flights

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NEW_YORK_HOURS = -5
"""New York's standard time, in hours from UTC."""
CARIBBEAN = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), (-4, "N"))
"""The airports that the package's file leaves out."""

Movement: TypeAlias = dict[str, Any]
"""A departure or an arrival: airport, tail number, flight, scheduled time, miles, and the delay in minutes."""


def movements(limit: int | None = None) -> tuple[list[Movement], list[Movement]]:
    """(departures, arrivals) of the file's flights, or of its first `limit`, in the order of their actual times.

    A cancelled flight has neither. A diverted flight has no arrival.
    """
    zones = time_zones()
    departures, arrivals = [], []
    for flight in islice(flights(), limit):
        about = {
            "tailnum": flight["tailnum"],
            "flight": f"{flight['carrier']}{flight['flight']}",
            "miles": flight["distance"],
        }
        departure_ms = scheduled_departure_ms(flight)
        if flight["dep_delay"] is not None:
            at = {"airport": flight["origin"], "scheduled_ms": departure_ms, "delay": flight["dep_delay"]}
            departures.append(at | about)
        if flight["arr_delay"] is not None:
            arrival_ms = departure_ms + scheduled_minutes(flight, zones) * MINUTE_MS
            arrivals.append(
                {"airport": flight["dest"], "scheduled_ms": arrival_ms, "delay": flight["arr_delay"]} | about
            )
    return sorted(departures, key=actual_ms), sorted(arrivals, key=actual_ms)


def actual_ms(movement: Movement) -> int:
    """When it happened, in epoch milliseconds."""
    at: int = movement["scheduled_ms"] + movement["delay"] * MINUTE_MS
    return at


def scheduled_departure_ms(flight: dict[str, Any]) -> int:
    """In epoch milliseconds. The file has the hour in UTC."""
    hour = datetime.fromisoformat(flight["time_hour"])
    return int(hour.timestamp()) * 1000 + int(flight["minute"]) * MINUTE_MS


def scheduled_minutes(flight: dict[str, Any], zones: dict[str, tuple[int, str]]) -> int:
    """From the scheduled departure to the scheduled arrival. The file has both as local times, such as 1530."""
    offset = (flight["hour"] - datetime.fromisoformat(flight["time_hour"]).hour) % -24
    saving = offset - NEW_YORK_HOURS
    standard, kept = zones[flight["dest"]]
    there = standard + (saving if kept == "A" else 0)
    departure, arrival = (
        hours * 60 + minutes for hours, minutes in (divmod(flight[f"sched_{at}_time"], 100) for at in ("dep", "arr"))
    )
    return int(arrival - departure - (there - offset) * 60) % (24 * 60)


def time_zones() -> dict[str, tuple[int, str]]:
    """Airport -> its standard time in hours from UTC, and `A` if it has New York's daylight saving time."""
    with data_file("airports.csv").open(newline="", encoding="utf-8") as file:
        return CARIBBEAN | {row["faa"]: (int(float(row["tz"])), row["dst"]) for row in csv.DictReader(file)}


def write(file: Path, movements: Iterable[Movement]) -> None:
    """Write one JSON object a line."""
    with file.open("wb") as out:
        out.writelines(orjson.dumps(movement) + b"\n" for movement in movements)


def main() -> None:
    """Write `departures.jsonl` and `arrivals.jsonl` to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flights", type=int, default=None, help="use only this many flights")
    arguments = parser.parse_args()
    departures, arrivals = movements(arguments.flights)
    write(arguments.folder / "departures.jsonl", departures)
    write(arguments.folder / "arrivals.jsonl", arrivals)


if __name__ == "__main__":
    main()
