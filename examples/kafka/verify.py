"""Checks that a `read_committed` reader finds every message of the demo's outputs exactly once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
from rich.console import Console

from examples.flights.data import expected_totals
from examples.flights.verify import Totals, conclude, differences, show, stored_values
from examples.kafka.topics import Options, read_committed

_SHOWN = 5


def count_messages(what: str, expected: Totals, messages: Iterable[tuple[str, int]]) -> tuple[int, list[str]]:
    """The number of messages, and what is wrong with them.

    Each message has the number of its key's flights so far. The messages of a key must have 1, 2, 3 and so on, up to
    its number of flights. Otherwise a message is lost, doubled or out of order.
    """
    seen: dict[str, list[int]] = {}
    for key, number in messages:
        seen.setdefault(key, []).append(number)
    wrong = []
    for key in sorted(expected.keys() | seen.keys()):
        flights = expected[key]["flights"] if key in expected else 0
        numbers = seen.get(key, [])
        if numbers == list(range(1, flights + 1)):
            continue
        lost = sorted(set(range(1, flights + 1)) - set(numbers))
        extra = len(numbers) - (flights - len(lost))
        reason = f"lost {lost[:_SHOWN]}" if lost else f"{extra} too many" if extra else "out of order"
        wrong.append(f"{what} {key}: {len(numbers)} messages for {flights} flights ({reason})")
    return sum(map(len, seen.values())), wrong


def verify(options: Options, config: Path, limit: int | None) -> None:
    """Print the table and the verdict. Exit status 1 if a total differs, or a message does not appear exactly once.

    Args:
        options: the options of a Kafka client.
        config: the configuration of the job.
        limit: the number of flights that were written; None for all.
    """
    flights, aircraft, carriers = expected_totals(limit)
    console = Console()
    wrong: list[str] = []
    written = 0
    for topic, expected, store in (
        ("aircraft-totals", aircraft, "aircraft"),
        ("carrier-totals", carriers, "carriers"),
    ):
        numbers: list[tuple[str, int]] = []
        last: Totals = {}
        for message in read_committed(options, topic):
            key, total = (message.key() or b"").decode(), orjson.loads(message.value() or b"null")
            numbers.append((key, total["flights"]))
            last[key] = total
        count, found = count_messages(f"output {topic}", expected, numbers)
        written += count
        wrong += [*found, *differences(f"output {topic}", expected, last)]
        wrong += differences(f"store {store}", expected, stored_values(store, config))
        if store == "carriers":
            show(console, last)
    verdict = f"{flights} flights, {len(aircraft)} aircraft, {len(carriers)} carriers, {written} messages exactly once"
    conclude(console, wrong, verdict)
