"""The job of `make demo-kafka` on a few flights, without Kafka and Spark, and what its verification finds."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

from examples.flights.data import expected_totals, flights
from examples.flights.verify import differences
from examples.kafka import demo
from examples.kafka.app import app
from examples.kafka.verify import count_messages
from penstock.errors import NotFoundError
from penstock.testing import TestRunner

COUNT = 1500
CONFIG = {
    "systems.kafka.samza.factory": "kafka",  # in a test, streams are in memory
    "systems.kafka.consumer.bootstrap.servers": "127.0.0.1:1",
    **{f"streams.kafka.{output}.output.guarantee": "exactly-once" for output in demo.OUTPUTS},
}
EXPECTED = {"UA": {"flights": 3}, "B6": {"flights": 1}}
SEEN = [("UA", 1), ("B6", 1), ("UA", 2), ("UA", 3)]


def test_every_message_of_the_job_is_there_once() -> None:
    rows = [(flight["tailnum"], flight) for flight in islice(flights(), COUNT)]
    count, aircraft, carriers = expected_totals(COUNT)
    assert count == COUNT
    runner = TestRunner(app, partitions=2, config=CONFIG)
    runner.input("kafka.flights", rows[:900]).run(batch_messages=400).commit()
    runner.input("kafka.flights", rows[900:]).run(batch_messages=400).crash().restore().run().commit()
    for output, expected in (("aircraft-totals", aircraft), ("carrier-totals", carriers)):
        messages = runner.output(f"kafka.{output}")
        numbers = [(str(message.key), message.value["flights"]) for message in messages]
        written, wrong = count_messages(output, expected, numbers)
        assert wrong == []
        assert written == sum(total["flights"] for total in expected.values())
        assert differences(output, expected, {str(m.key): m.value for m in messages}) == []
    assert runner.store("carriers") == carriers
    runner.close()


def test_each_message_once_in_order_is_right() -> None:
    assert count_messages("output", EXPECTED, SEEN) == (4, [])


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (SEEN[1:], "UA: 2 messages for 3 flights (lost [1])"),
        ([*SEEN, ("UA", 3)], "UA: 4 messages for 3 flights (1 too many)"),
        ([*SEEN[1:], ("UA", 3)], "UA: 3 messages for 3 flights (lost [1])"),
        ([*SEEN[2:], *SEEN[:2]], "UA: 3 messages for 3 flights (out of order)"),
        ([*SEEN, ("DL", 1)], "DL: 1 messages for 0 flights (1 too many)"),
        ([("UA", 1), ("UA", 2), ("UA", 3)], "B6: 0 messages for 1 flights (lost [1])"),
    ],
)
def test_a_message_that_is_lost_doubled_or_out_of_order_is_found(seen: list[tuple[str, int]], found: str) -> None:
    assert count_messages("output", EXPECTED, seen)[1] == [f"output {found}"]


def test_without_a_broker_the_demo_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def require_kafka() -> None:
        raise NotFoundError("the jars of Kafka could not be fetched\nneither with `mvn` nor with Ivy")

    monkeypatch.setenv("PENSTOCK_HOME", "set by the demo")
    monkeypatch.setattr(demo, "HOME", tmp_path)
    monkeypatch.setattr(demo, "require_kafka", require_kafka)
    monkeypatch.setattr(sys, "argv", ["demo"])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == (
        "this demo needs a Kafka broker, and cannot start one: "
        "the jars of Kafka could not be fetched neither with `mvn` nor with Ivy"
    ), "a text makes the exit status 1"
