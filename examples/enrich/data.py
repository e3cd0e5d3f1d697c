"""The input of the demo: the flights, the names of the airlines, and two editions of the planes."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from examples.flights.data import data_file, flights

PLANES = Path(os.environ.get("PENSTOCK_HOME", ".penstock"), "planes").absolute()
"""The folder of the pushed editions, a subfolder each."""
SCHEMA = "tailnum STRING, year INT, manufacturer STRING, model STRING, seats INT, edition INT"
RENAMED = "UA"
"""The airline that changes its name while the job runs."""
NEW_NAME = "United Airlines"

Plane: TypeAlias = dict[str, Any]


def numbered_flights(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The flights of the file, or its first `limit`, each with its position in the file as `id`."""
    for number, flight in enumerate(islice(flights(), limit)):
        yield {"id": number, **flight}


def edition(number: int) -> dict[str, Plane]:
    """Tail number -> the aircraft, in the first or the second edition.

    The first edition lacks every tenth aircraft. The second has these, lacks every fiftieth aircraft, and has one seat
    more in each.
    """
    planes: dict[str, Plane] = {}
    with data_file("planes.csv").open(newline="", encoding="utf-8") as file:
        for position, row in enumerate(csv.DictReader(file)):
            is_new, is_retired = position % 10 == 0, position % 50 == 1
            if is_new if number == 1 else is_retired:
                continue
            planes[row["tailnum"]] = {
                "tailnum": row["tailnum"],
                "year": None if row["year"] == "NA" else int(row["year"]),
                "manufacturer": row["manufacturer"],
                "model": row["model"],
                "seats": int(row["seats"]) + number - 1,
                "edition": number,
            }
    return planes


def push(folder: Path, number: int, files: int = 3) -> None:
    """Write an edition as a subfolder of CSV files, and `_SUCCESS` last, as Spark does."""
    subfolder = folder / f"edition-{number}"
    subfolder.mkdir(parents=True)
    planes = list(edition(number).values())
    for part in range(files):
        with (subfolder / f"part-{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, planes[0].keys())
            writer.writeheader()
            writer.writerows(
                {name: "NA" if value is None else value for name, value in plane.items()}
                for plane in planes[part::files]
            )
    (subfolder / "_SUCCESS").touch()
