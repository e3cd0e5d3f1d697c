"""The job of `make demo-enrich` on a few flights, without Spark, and what its verification finds in outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from examples.enrich import verify
from examples.enrich.app import app
from examples.enrich.data import NEW_NAME, RENAMED, edition, push
from examples.enrich.verify import Output, Reference
from penstock.testing import TestRunner

OLD_NAME = "United Air Lines Inc."


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference.of_demo(400)


def outputs(reference: Reference, *, swap: int = 200, rename: int = 100) -> list[Output]:
    """Fifty flights a batch, in two partitions; the editions and the name change at a flight's number."""
    found = []
    for number, flight in reference.flights.items():
        name = reference.names[flight["carrier"]][-1 if number >= rename else 0]
        plane = reference.editions[2 if number >= swap else 1].get(flight["tailnum"])
        tail = flight["tailnum"]
        text = f"{flight['carrier']}{flight['flight']}"
        found.append(
            Output(number, tail, text, name, plane, source=number % 2, batch=1000 + number // 50, attempt=str(number))
        )
    return found


def test_a_swap_between_two_batches_is_no_mixture(reference: Reference) -> None:
    found = outputs(reference)
    assert verify.differences(found, reference) == []
    editions, renamed = verify.counts(found)
    assert all([*editions.values(), *renamed.values()])
    assert verify.differences([*found, replace(found[0], batch=900)], reference) == [], (
        "it came before, in a lost batch"
    )


def test_what_is_missing_or_not_joined_right_is_found(reference: Reference) -> None:
    found = outputs(reference)
    assert len(verify.differences(found[1:], reference)) == 1
    place = next(n for n, output in enumerate(found) if output.plane is not None)
    plane = found[place].plane
    assert plane is not None
    for wrong in ({"plane": {**plane, "seats": -1}}, {"airline": "Nobody"}, {"flight": "UA0"}, {"plane": None}):
        changed = [*found]
        changed[place] = replace(found[place], **wrong)
        assert verify.differences(changed, reference), wrong


def test_a_swap_within_a_batch_is_a_mixture(reference: Reference) -> None:
    assert any(
        "has the editions [1, 2]" in line for line in verify.differences(outputs(reference, swap=210), reference)
    )


def test_an_edition_that_comes_back_is_found(reference: Reference) -> None:
    found = outputs(reference)
    again = [replace(output, batch=2000) for output in found if output.batch == 1000]
    assert any("has the editions [1] after edition 2" in line for line in verify.differences(found + again, reference))


def test_a_name_is_one_in_an_attempt_and_does_not_come_back(reference: Reference) -> None:
    seen = ((1, "a", OLD_NAME), (2, "b", OLD_NAME), (2, "c", NEW_NAME), (3, "d", NEW_NAME))
    found = [
        Output(number, "N1", "UA1", name, None, source=0, batch=batch, attempt=attempt)
        for number, (batch, attempt, name) in enumerate(seen)
    ]
    assert list(verify.mixed_names(found, reference)) == [], "a batch may run again, and see more"
    (line,) = verify.mixed_names([replace(output, attempt="a") for output in found[:3]], reference)
    assert line == f"attempt a has seen {[OLD_NAME, NEW_NAME]}"
    later = replace(found[0], batch=4, attempt="e")
    (line,) = verify.mixed_names([*found, later], reference)
    assert line == f"batch 4, partition 0: UA is {OLD_NAME} again"
    assert list(verify.mixed_names([*found, replace(later, source=1)], reference)) == []


def test_the_editions_differ_in_every_way(tmp_path: Path) -> None:
    first, second = edition(1), edition(2)
    assert first.keys() - second.keys()
    assert second.keys() - first.keys()
    assert all(first[tail] != second[tail] for tail in first.keys() & second.keys())
    push(tmp_path, 2)
    (folder,) = tmp_path.iterdir()
    assert (folder / "_SUCCESS").exists()
    lines = [line for file in folder.glob("*.csv") for line in file.read_text().splitlines()[1:]]
    assert len(lines) == len(second)


def test_the_job_of_the_demo_joins_both_tables_and_mixes_nothing(reference: Reference) -> None:
    flights = [(flight["carrier"], flight) for flight in reference.flights.values()]
    names = [(carrier, {"carrier": carrier, "name": known[0]}) for carrier, known in reference.names.items()]
    runner = TestRunner(app, partitions=2).side_input("local.airlines", names)
    runner.push("planes", list(edition(1).values())).input("local.flights", flights[:200]).run(batch_messages=50)
    runner.side_input("local.airlines", [(RENAMED, {"carrier": RENAMED, "name": NEW_NAME})]).commit().crash().restore()
    runner.advance_time(1000).push("planes", list(edition(2).values())).input("local.flights", flights[200:]).run(
        batch_messages=50
    )
    found = [Output.of(str(m.key), m.value) for m in runner.output("local.enriched-flights")]
    assert verify.differences(found, reference) == []
    editions, renamed = verify.counts(found)
    assert all([*editions.values(), *renamed.values()])
