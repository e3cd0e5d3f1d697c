"""Compares the rows of both jobs, and the totals of the second, with a plain computation over all departures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

import orjson
from rich.console import Console

from examples.deploy import after, before
from examples.drain.verify import differences, expected_aircraft
from examples.windows.data import HOUR_MS, Movement, movements
from penstock import admin
from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange

OUTPUT = "airport-delays"
Rows: TypeAlias = dict[tuple[str, int, int], dict[str, int]]
"""(airport, from, to) -> departures, and the minutes by which they were late."""


class Sent(NamedTuple):
    """A message of the output."""

    partition: int
    offset: int
    airport: str
    value: dict[str, int]

    @property
    def of(self) -> tuple[str, int, int]:
        """The row that it is."""
        return self.airport, self.value["from"], self.value["to"]

    @property
    def hours(self) -> int:
        """The hours of its window."""
        return (self.value["to"] - self.value["from"]) // HOUR_MS


def expected_rows(departures: Iterable[Movement], hours: int, late: Any) -> Rows:
    """The rows of windows of so many hours. `late`: the minutes by which a departure is late."""
    rows: Rows = {}
    size = hours * HOUR_MS
    for each in departures:
        start = each["scheduled_ms"] - each["scheduled_ms"] % size
        row = rows.setdefault((each["airport"], start, start + size), {"departures": 0, "late": 0})
        row["departures"] += 1
        row["late"] += late(each)
    return rows


def wrong_rows(rows: Iterable[Sent], departures: Iterable[Movement]) -> list[str]:
    """Everything that differs: the old job must have sent every row up to some time, and the new one every row behind
    it, each once.

    Args:
        rows: the messages of the output.
        departures: all departures.
    """
    found: tuple[Rows, Rows] = ({}, {})
    wrong = []
    for row in rows:
        own = found[row.hours - 1]
        if row.of in own:
            wrong.append(f"row {row.of} was sent twice")
        own[row.of] = {"departures": row.value["departures"], "late": row.value["late"]}
    old, new = found
    hours, pairs = expected_rows(departures, 1, before.late), expected_rows(departures, 2, after.late)
    last = max((to for _, _, to in old), default=0)
    following = min((to for _, _, to in hours if to > last), default=last + 1)
    wrong += differences("row of an hour", {of: row for of, row in hours.items() if of[2] <= last}, old)
    # Event time stood between the two when the new job took over: a row in between may have been due or not.
    either = {of for of in pairs if last < of[2] < following}
    due_after = {of: row for of, row in pairs.items() if of[2] >= following or of in either & new.keys()}
    wrong += differences("row of two hours", due_after, new)
    if not old or not new:
        wrong.append("one of the jobs has sent no row")
    return wrong


def sent() -> list[Sent]:
    """The messages of the output."""
    stream = admin.open_stream(OUTPUT)
    found = []
    with closing(stream.system.reader()) as reader:
        for partition, ends in sorted(stream.system.admin().offsets(OUTPUT).items()):
            ssp = SystemStreamPartition("local", OUTPUT, partition)
            for chunk in reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), 10_000):
                found += [
                    Sent(partition, offset, (key or b"").decode(), orjson.loads(value or b"{}"))
                    for offset, _, key, value, *_ in chunk
                ]
    return found


def newest_wrong_row(departures: Iterable[Movement]) -> Sent | None:
    """The newest row of the first job in a partition that counts a departure before its time as late."""
    right = expected_rows(departures, 1, after.late)
    wrong = (row for row in sent() if right[row.of]["late"] != row.value["late"])
    return max(wrong, key=lambda row: row.offset, default=None)


def main() -> None:
    """Print the verdict. Exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=None, help="the number of published flights")
    departures, _ = movements(parser.parse_args().flights)
    rows = sent()
    totals = {}
    with admin.open_job(f"{before.app.name}-2") as job, admin.open_state(job, "aircraft") as store:
        totals = {entry.key: entry.value for entry in store.scan()}
    wrong = [*wrong_rows(rows, departures), *differences("aircraft", expected_aircraft(departures), totals)]
    console = Console()
    for line in wrong[:20]:
        console.print(line, style="red", highlight=False)
    if wrong:
        console.print(f"{len(wrong)} differences", style="bold red", highlight=False)
        sys.exit(1)
    hours = sum(row.hours == 1 for row in rows)
    verdict = (
        f"verified: {hours:,} rows of an hour by the old job, and {len(rows) - hours:,} of two hours by the new one, "
        f"none lost or sent twice; the store `aircraft` has the totals of {len(departures):,} departures"
    )
    console.print(verdict, style="bold green", highlight=False)


if __name__ == "__main__":
    main()
