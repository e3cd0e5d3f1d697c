"""Compares every output of the demo with a plain join, and looks for outputs that mix versions.

No output mixes versions if

* each output has the whole aircraft of one edition, and a name that its airline has had;
* all outputs of a batch, in all partitions, have one edition, and no later batch has an earlier edition;
* an airline has one name in an attempt, and once a batch has seen the new name in a partition of the flights, no later
  batch sees the old name there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from examples.enrich.data import NEW_NAME, RENAMED, Plane, edition, numbered_flights
from examples.flights.data import carrier_names
from examples.windows.verify import messages


@dataclass(frozen=True, slots=True)
class Reference:
    """The values that outputs may have."""

    flights: Mapping[int, dict[str, Any]]
    """The flights with a tail number, by `id`."""
    names: Mapping[str, Sequence[str]]
    """The names of each airline, oldest first."""
    editions: Mapping[int, Mapping[str, Plane]]

    @classmethod
    def of_demo(cls, limit: int | None) -> Reference:
        """The values that the demo published."""
        names = {carrier: [name] for carrier, name in carrier_names().items()}
        names[RENAMED].append(NEW_NAME)
        numbered = {flight["id"]: flight for flight in numbered_flights(limit) if flight["tailnum"]}
        return cls(numbered, names, {number: edition(number) for number in (1, 2)})


@dataclass(frozen=True, slots=True)
class Output:
    """A flight as the job wrote it."""

    id: int
    tail: str
    flight: str
    airline: str | None
    plane: Plane | None
    source: int
    """The partition from which the flight was read."""
    batch: int
    """The time of the batch that wrote it."""
    attempt: str
    """The attempt that looked up the airline."""

    @classmethod
    def of(cls, key: str, value: dict[str, Any]) -> Output:
        """The output of a message."""
        if key != value["tail"]:
            raise ValueError(f"the key of {value} is {key}")
        return cls(**value)

    @property
    def carrier(self) -> str:
        """The code of the airline."""
        return self.flight[:2]


def differences(outputs: Sequence[Output], reference: Reference) -> list[str]:
    """Everything that is wrong."""
    missing = reference.flights.keys() - {output.id for output in outputs}
    return [
        *(f"flight {number} is missing" for number in sorted(missing)),
        *(line for output in outputs for line in wrong_join(output, reference)),
        *mixed_editions(outputs, reference),
        *mixed_names(outputs, reference),
    ]


def wrong_join(output: Output, reference: Reference) -> Iterable[str]:
    """How an output differs from the join of its flight with one edition and with a name."""
    flight = reference.flights.get(output.id)
    if flight is None:
        yield f"flight {output.id}: it was not published"
        return
    if (output.tail, output.flight) != (flight["tailnum"], f"{flight['carrier']}{flight['flight']}"):
        yield f"flight {output.id}: expected {flight}, found {output}"
    if output.airline not in reference.names[output.carrier]:
        yield f"flight {output.id}: {output.carrier} was never called {output.airline}"
    if output.plane is not None:
        expected = reference.editions[output.plane["edition"]].get(output.tail)
        if output.plane != expected:
            yield f"flight {output.id}: expected {expected}, found {output.plane}"


def mixed_editions(outputs: Iterable[Output], reference: Reference) -> Iterable[str]:
    """Batches with outputs of two editions, or of an earlier edition than the batch before."""
    batches: dict[int, list[Output]] = {}
    for output in outputs:
        batches.setdefault(output.batch, []).append(output)
    latest = min(reference.editions)
    for batch, found in sorted(batches.items()):
        seen = {output.plane["edition"] for output in found if output.plane is not None}
        if len(seen) > 1 or min(seen, default=latest) < latest:
            yield f"batch {batch} has the editions {sorted(seen)} after edition {latest}"
        latest = max(seen, default=latest)
        for output in found if seen else ():
            if output.plane is None and output.tail in reference.editions[latest]:
                yield f"flight {output.id} has no aircraft, but edition {latest} has {output.tail}"


def mixed_names(outputs: Iterable[Output], reference: Reference) -> Iterable[str]:
    """Names of airlines that changed within an attempt, or came back after a batch had seen a later name."""
    seen: dict[tuple[int, str], dict[int, set[int]]] = {}
    attempts: dict[tuple[str, str], set[int]] = {}
    for output in outputs:
        names = reference.names.get(output.carrier, ())
        if output.airline in names:
            place = names.index(output.airline)
            seen.setdefault((output.source, output.carrier), {}).setdefault(output.batch, set()).add(place)
            attempts.setdefault((output.attempt, output.carrier), set()).add(place)
    for (attempt, carrier), places in attempts.items():
        if len(places) > 1:
            yield f"attempt {attempt} has seen {[reference.names[carrier][place] for place in sorted(places)]}"
    for (source, carrier), batches in seen.items():
        latest = 0
        for batch, places in sorted(batches.items()):
            if min(places) < latest:
                name = reference.names[carrier][min(places)]
                yield f"batch {batch}, partition {source}: {carrier} is {name} again"
            latest = max(latest, *places)


def counts(outputs: Iterable[Output]) -> tuple[dict[int, int], dict[bool, int]]:
    """The numbers of outputs with each edition, and with the old and the new name of the renamed airline."""
    editions, renamed = {1: 0, 2: 0}, {False: 0, True: 0}
    for output in outputs:
        if output.plane is not None:
            editions[output.plane["edition"]] += 1
        if output.carrier == RENAMED:
            renamed[output.airline == NEW_NAME] += 1
    return editions, renamed


def main() -> None:
    """Print the verdict. Exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--flights", type=int, default=None, help="the number of published flights")
    reference = Reference.of_demo(parser.parse_args().flights)
    outputs = [Output.of(key, value) for key, value in messages("enriched-flights")]
    editions, renamed = counts(outputs)
    wrong = differences(outputs, reference)
    if not all([*editions.values(), *renamed.values()]):
        wrong.append(f"the output does not show both editions and both names: {editions}, {renamed}")
    console = Console()
    for line in wrong[:20]:
        console.print(line, style="red", highlight=False)
    if wrong:
        console.print(f"{len(wrong)} differences", style="bold red", highlight=False)
        sys.exit(1)
    repeated = len(outputs) - len(reference.flights)
    verdict = (
        f"verified: {len(reference.flights):,} flights in {len({output.batch for output in outputs}):,} batches; "
        f"{editions[1]:,} with an aircraft of the first edition, {editions[2]:,} of the second; {RENAMED} with the old "
        f"name {renamed[False]:,} times, with the new one {renamed[True]:,} times; no output mixes versions; "
        f"{repeated:,} outputs were repeated"
    )
    console.print(verdict, style="bold green", highlight=False)


if __name__ == "__main__":
    main()
