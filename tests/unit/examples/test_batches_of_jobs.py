"""The example jobs that use event time give the same results, however their messages fall into batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from examples.jobs import change_capture, fraud_rule, order_payments, sessions, top_n
from penstock.testing import TestRunner

MINUTE = 60_000
Sent = Iterator[tuple[str, Any]]


def times(rng: random.Random, number: int, step_ms: int) -> list[int]:
    """Event times that are at most a minute out of order."""
    return [step_ms * n + rng.randrange(MINUTE) for n in range(number)]


def card_events(rng: random.Random) -> Sent:
    for at in times(rng, 60, 2 * MINUTE):
        payment, kind = f"p{rng.randrange(8)}", rng.choice(["payment", "confirmation"])
        yield "local.card-events", fraud_rule.Event(payment, kind, at, "c", 60_000)  # type: ignore[arg-type]


def settled(rng: random.Random) -> Sent:
    for at in times(rng, 60, 5 * MINUTE):
        order = f"o{rng.randrange(12)}"
        if rng.random() < 0.5:
            yield "local.orders", order_payments.Order(order, 5, at)
        else:
            yield "local.payments", order_payments.Payment(order, 5, at)


def clicks(rng: random.Random) -> Sent:
    for n, at in enumerate(times(rng, 60, 7 * MINUTE)):
        yield "local.clicks", sessions.Click(rng.choice("ab"), f"page {n}", at)


def sales(rng: random.Random) -> Sent:
    for n, at in enumerate(times(rng, 60, 4 * MINUTE)):
        yield "local.sales", top_n.Sale(rng.choice("ab"), f"product {n % 5}", 1 << n % 30, at)


def changes(rng: random.Random) -> Sent:
    for n, at in enumerate(times(rng, 60, 2 * MINUTE)):
        if rng.random() < 0.5:
            product = change_capture.Product(rng.choice("ab"), "x", n)
            yield "local.product-changes", change_capture.Change(change_capture.Source(at), after=product)
        else:
            yield "local.product-orders", change_capture.Order(f"o{n}", rng.choice("ab"), 1, at)


@pytest.mark.parametrize(
    ("job", "messages"),
    [
        (fraud_rule, card_events),
        (order_payments, settled),
        (sessions, clicks),
        (top_n, sales),
        (change_capture, changes),
    ],
)
def test_results_do_not_depend_on_batches(job: Any, messages: Callable[[random.Random], Sent]) -> None:
    rng = random.Random(1)
    with closing(TestRunner(job.app, cuts=4)) as runner:
        for stream, value in messages(rng):
            runner.input(stream, [value], partition=rng.randrange(2))
        runner.run().end_inputs()
        found = [message for spec in job.app.graph().outputs for message in runner.output(str(spec.stream))]
        assert len(found) > 5
