"""Compares the output of both versions of the job together with a plain computation over all departures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, TypeAlias

from rich.console import Console

from examples.drain.before import HOUR_MS, app
from examples.windows.data import Movement, movements
from examples.windows.verify import Panes, expected_sessions, messages
from penstock import admin

Emitted: TypeAlias = Iterable[tuple[str, dict[str, Any]]]
"""Keys and values of an output."""
Aircraft: TypeAlias = dict[str, dict[str, int]]
"""Tail number -> departures and miles."""


def expected_hours(departures: Iterable[Movement]) -> Panes:
    """(airport, hour) -> number of departures, and their total delay in minutes."""
    hours: Panes = {}
    for each in departures:
        hour = each["scheduled_ms"] - each["scheduled_ms"] % HOUR_MS
        pane = hours.setdefault((each["airport"], hour), {"departures": 0, "minutes": 0})
        pane["departures"] += 1
        pane["minutes"] += each["delay"]
    return hours


def expected_aircraft(departures: Iterable[Movement]) -> Aircraft:
    """The departures and miles of each aircraft."""
    totals: Aircraft = {}
    for each in departures:
        total = totals.setdefault(each["tailnum"], {"departures": 0, "miles": 0})
        total["departures"] += 1
        total["miles"] += each["miles"]
    return totals


def merged_hours(emitted: Emitted) -> Panes:
    """The panes of each hour, added up over both versions, and over the airlines of the second."""
    hours: Panes = {}
    for airport, value in emitted:
        pane = hours.setdefault((airport, value["hour"]), {"departures": 0, "minutes": 0})
        delays = value["delays"]
        departures, minutes = (
            (delays["departures"], delays["minutes"])
            if "departures" in delays
            else (sum(of for of, _ in delays.values()), sum(late for _, late in delays.values()))
        )
        pane["departures"] += departures
        pane["minutes"] += minutes
    return hours


def merged_sessions(emitted: Emitted) -> Panes:
    """The sessions of each aircraft. Overlapping sessions are one session, which the drain has cut."""
    in_order = sorted(((tail, value) for tail, value in emitted), key=lambda each: (each[0], each[1]["from"]))
    sessions: Panes = {}
    for tail, own in groupby(in_order, key=lambda each: each[0]):
        until, session = -1, {"flights": 0, "miles": 0}
        for _, value in own:
            if value["from"] >= until:
                session = sessions[tail, value["from"]] = {"flights": 0, "miles": 0}
            session["flights"] += value["flights"]
            session["miles"] += value["miles"]
            until = max(until, value["to"])
    return sessions


def differences(name: str, expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> list[str]:
    """Everything that differs, is missing, or should not be there."""
    return [
        f"{name} {of}: expected {expected.get(of)}, found {found.get(of)}"
        for of in [*expected, *(found.keys() - expected.keys())]
        if expected.get(of) != found.get(of)
    ]


def stored_aircraft() -> Aircraft:
    """The store `aircraft` as of the last checkpoint."""
    with admin.open_job(app.name) as job, admin.open_state(job, "aircraft") as store:
        return {entry.key: entry.value for entry in store.scan()}


def cut(emitted: Emitted) -> int:
    """The number of panes that fired because the job was drained."""
    return sum(value["firing"] == "drain" for _, value in emitted)


def main() -> None:
    """Print the verdict. Exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=None, help="the number of published flights")
    departures, _ = movements(parser.parse_args().flights)
    hours, sessions = list(messages("airport-delays")), list(messages("aircraft-sessions"))
    wrong = [
        *differences("hour", expected_hours(departures), merged_hours(hours)),
        *differences("session", expected_sessions(departures), merged_sessions(sessions)),
        *differences("aircraft", expected_aircraft(departures), stored_aircraft()),
    ]
    if not cut(hours) or not cut(sessions):
        wrong.append("the drain closed no window: the job had nothing in flight")
    console = Console()
    for line in wrong[:20]:
        console.print(line, style="red", highlight=False)
    if wrong:
        console.print(f"{len(wrong)} differences", style="bold red", highlight=False)
        sys.exit(1)
    verdict = (
        f"verified: {len(departures):,} departures, each counted once by the two versions together, in "
        f"{len(merged_hours(hours)):,} airport hours (the drain closed {cut(hours):,} early) and "
        f"{len(merged_sessions(sessions)):,} aircraft sessions ({cut(sessions):,} early); the store `aircraft` has "
        "the totals of both"
    )
    console.print(verdict, style="bold green", highlight=False)


if __name__ == "__main__":
    main()
