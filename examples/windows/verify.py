"""Compares every pane of the demo with a plain computation over the same departures and arrivals."""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

import orjson
from rich.console import Console
from rich.table import Table

from examples.windows.app import app
from examples.windows.data import HOUR_MS, Movement, movements
from penstock import admin
from penstock.api.ssp import SystemStreamPartition
from penstock.config.load import load_config
from penstock.system.base import OffsetRange
from penstock.system.registry import open_system

Panes: TypeAlias = dict[tuple[str, int], Any]
"""(key, beginning of the window) -> content of the pane."""


def expected_hours(departures: Iterable[Movement]) -> Panes:
    """(airport, hour) -> departures and their mean delay."""
    delays: dict[tuple[str, int], list[int]] = {}
    for each in departures:
        hour = each["scheduled_ms"] - each["scheduled_ms"] % HOUR_MS
        delays.setdefault((each["airport"], hour), []).append(each["delay"])
    return {of: {"departures": len(found), "delay": sum(found) / len(found)} for of, found in delays.items()}


def expected_sessions(departures: Iterable[Movement]) -> Panes:
    """(aircraft, first departure) -> flights and miles until no departure followed for six hours."""
    sessions: Panes = {}
    last: dict[str, tuple[int, dict[str, int]]] = {}
    for each in sorted(departures, key=lambda departure: departure["scheduled_ms"]):
        tail, at = each["tailnum"], each["scheduled_ms"]
        before, session = last.get(tail, (None, {}))
        if before is None or at - before >= 6 * HOUR_MS:
            session = sessions[tail, at] = {"flights": 0, "miles": 0}
        session["flights"] += 1
        session["miles"] += each["miles"]
        last[tail] = at, session
    return sessions


def expected_next(departures: Iterable[Movement], arrivals: Iterable[Movement]) -> Panes:
    """(arrival, the aircraft's first departure in the 24 hours after it) -> that departure."""
    by_aircraft: dict[str, list[list[Any]]] = {}
    for each in departures:
        by_aircraft.setdefault(each["tailnum"], []).append([each["scheduled_ms"], each["flight"]])
    for found in by_aircraft.values():
        found.sort()
    panes: Panes = {}
    for each in arrivals:
        at, own = each["scheduled_ms"], by_aircraft.get(each["tailnum"], [])
        after = bisect_left(own, [at, ""])
        if after < len(own) and own[after][0] <= at + 24 * HOUR_MS:
            panes[f"{each['tailnum']} {each['flight']} {at}", own[after][0]] = {"next": own[after]}
    return panes


class Found:
    """The panes of an output. A pane may come more than once, but only with equal content."""

    def __init__(self, name: str, messages: Iterable[tuple[str, dict[str, Any]]], start: str) -> None:
        """
        Args:
            name: the output's name.
            messages: its keys and values.
            start: the field of the value that identifies the window.
        """
        self.name, self.panes, self.repeated = name, Panes(), 0
        self.wrong: list[str] = []
        for key, value in messages:
            firing, of = value.pop("firing", "on-time"), (key, value.pop(start))
            if firing != "on-time":
                self.wrong.append(f"{name} {of}: the pane is {firing}")
            if self.panes.setdefault(of, value) != value:
                self.wrong.append(f"{name} {of}: first {self.panes[of]}, then {value}")
            self.repeated += 1
        self.repeated -= len(self.panes)

    def differences(self, expected: Panes) -> list[str]:
        """Every pane that differs, is missing, or should not be there."""
        return self.wrong + [
            f"{self.name} {of}: expected {expected.get(of)}, found {self.panes.get(of)}"
            for of in [*expected, *(self.panes.keys() - expected.keys())]
            if expected.get(of) != self.panes.get(of)
        ]


def messages(stream: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keys and values of an output stream."""
    system = open_system(load_config(default_job_name=app.name).system("local"))
    for partition, ends in system.admin().offsets(stream).items():
        ssp = SystemStreamPartition("local", stream, partition)
        for chunk in system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 10_000):
            yield from (((key or b"").decode(), orjson.loads(value or b"null")) for _, _, key, value, *_ in chunk)


def left_over() -> list[str]:
    """The stores of operators in the last checkpoint. A checkpoint at the end of the streams has none, because nothing
    waits any more."""
    with admin.open_job(app.name) as job:
        last = admin.read_checkpoint(job)
    return [f"checkpoint {last.id} still has the store {store}" for store in last.stores]


def show(console: Console, hours: Panes) -> None:
    """Print a table of the airports."""
    table = Table("airport", "hours with departures", "departures", "mean delay, minutes", "worst hour")
    by_airport: dict[str, dict[int, Any]] = {}
    for (airport, hour), pane in hours.items():
        by_airport.setdefault(airport, {})[hour] = pane
    for airport, panes in sorted(by_airport.items()):
        departures = sum(pane["departures"] for pane in panes.values())
        delay = sum(pane["delay"] * pane["departures"] for pane in panes.values()) / departures
        worst = max(panes, key=lambda hour: panes[hour]["delay"])
        at = f"{datetime.fromtimestamp(worst / 1000, UTC):%Y-%m-%d %H:%M} UTC: {panes[worst]['delay']:.0f} minutes"
        table.add_row(airport, f"{len(panes):,}", f"{departures:,}", f"{delay:.1f}", at)
    console.print(table)


def main() -> None:
    """Print the table and the verdict. Exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=None, help="the number of published flights")
    departures, arrivals = movements(parser.parse_args().flights)
    hours = Found("airport-hours", messages("airport-hours"), "hour")
    sessions = Found("aircraft-sessions", messages("aircraft-sessions"), "from")
    following = Found("next-departures", messages("next-departures"), "from")
    console = Console()
    show(console, hours.panes)
    wrong = [
        *hours.differences(expected_hours(departures)),
        *sessions.differences(expected_sessions(departures)),
        *following.differences(expected_next(departures, arrivals)),
        *left_over(),
    ]
    for line in wrong[:20]:
        console.print(line, style="red", highlight=False)
    if wrong:
        console.print(f"{len(wrong)} differences", style="bold red", highlight=False)
        sys.exit(1)
    repeated = hours.repeated + sessions.repeated + following.repeated
    verdict = (
        f"verified: {len(hours.panes):,} airport hours, {len(sessions.panes):,} aircraft sessions, "
        f"{len(following.panes):,} arrivals with the next departure; {repeated:,} panes were repeated, with "
        "equal content; no operator has a store left"
    )
    console.print(verdict, style="bold green", highlight=False)


if __name__ == "__main__":
    main()
