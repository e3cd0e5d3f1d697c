"""Large payments that nobody confirms in time."""

from __future__ import annotations

import random

from examples.jobs.fraud_rule import Event, app
from penstock.testing import TestRunner

MINUTE_MS = 60_000


def test_alarms_are_the_payments_without_a_confirmation_in_time() -> None:
    chance = random.Random(3)
    events = card_events(chance)
    read = sorted(events, key=lambda event: event.at_ms + chance.randrange(MINUTE_MS))
    assert any(a.kind == "confirmation" and b.payment == a.payment for i, a in enumerate(read) for b in read[i + 1 :])
    runner = TestRunner(app, partitions=3)
    runner.input("local.card-events", read[:400]).run(batch_messages=60).commit().crash().restore()
    runner.input("local.card-events", read[400:]).run(batch_messages=60).advance_watermark(24 * 60 * MINUTE_MS)
    found = [(m.key, m.value["card"], m.value["cents"], m.timestamp) for m in runner.output("local.alarms")]
    assert sorted(found) == alarms(events)
    assert {m.value["firing"] for m in runner.output("local.alarms")} == {"due"}
    assert 50 < len(found) < 200
    assert (runner.store("payment"), runner.store("unconfirmed.in-order")) == ({}, {})


def test_the_end_of_the_stream_decides_payments_that_still_wait() -> None:
    runner = TestRunner(app).input("local.card-events", [Event("p1", "payment", 0, "c7", 90_000)]).end_inputs()
    (alarm,) = runner.output("local.alarms")
    assert (alarm.key, alarm.value) == ("p1", {"card": "c7", "cents": 90_000, "firing": "end-of-stream"})


def card_events(chance: random.Random) -> list[Event]:
    """Payments of ten hours, half of them large, with no confirmation, one in time, one too late, or two."""
    waits = [[], [(0, 30_000)], [(600_000, 600_001)], [(600_001, 600_002)], [(0, 900_000)] * 2]
    events = []
    for number in range(400):
        at_ms = chance.randrange(600 * MINUTE_MS)
        cents = chance.choice([1_000, 49_999, 50_000, 90_000])
        events.append(Event(f"p{number}", "payment", at_ms, f"c{number % 50}", cents))
        for least, most in chance.choice(waits):
            events.append(Event(f"p{number}", "confirmation", at_ms + chance.randrange(least, most)))
    return events


def alarms(events: list[Event]) -> list[tuple[str, str, int, int]]:
    """The alarms, each with the time until which the payment waited."""
    confirmed = {(event.payment, event.at_ms) for event in events if event.kind == "confirmation"}
    large = [event for event in events if event.kind == "payment" and event.cents >= 50_000]
    return sorted(
        (each.payment, each.card, each.cents, each.at_ms + 600_000)
        for each in large
        if not any(payment == each.payment and at_ms - each.at_ms < 600_000 for payment, at_ms in confirmed)
    )
