"""partition_by: a new key, and the task that owns it."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.testing import TestRunner

TASKS = 5


def kafka_partition(key: bytes, partitions: int) -> int:
    """`toPositive(murmur2(key)) % partitions`, transcribed from Kafka's Java."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for i in range(len(key) // 4):
        k = int.from_bytes(key[4 * i : 4 * i + 4], "little")
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = ((h * m) & mask) ^ k
    rest = key[len(key) & ~3 :]
    if len(rest) == 3:
        h ^= rest[2] << 16
    if len(rest) >= 2:
        h ^= rest[1] << 8
    if len(rest) >= 1:
        h = ((h ^ rest[0]) * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    h ^= h >> 15
    return (h & 0x7FFFFFFF) % partitions


class Where(ps.StreamTask):
    """Emits the task each message came to."""

    def init(self, context: ps.TaskContext) -> None:
        self.task = context.partition

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, _: Any) -> None:
        collector.emit(key="same", value=[envelope.key, self.task, str(envelope.ssp), envelope.offset])


def tasks_of(values: list[Any], function: Any, key: Any = None) -> list[list[Any]]:
    app = ps.StreamApplication("a")
    app.input("m.in").partition_by(function, key=key).process(Where).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=TASKS).input("m.in", values).run()
    return [m.value for m in runner.output("m.out")]


def test_a_key_goes_where_kafka_puts_it() -> None:
    keys = ["N14228", "UA", "", "é", "abc", *(f"key {n}" for n in range(200))]
    found = {key: task for key, task, _, _ in tasks_of(keys, lambda v: v)}
    assert found == {key: kafka_partition(key.encode(), TASKS) for key in keys}


def test_other_key_serdes_place_by_their_bytes() -> None:
    found = {key: task for key, task, _, _ in tasks_of(list(range(50)), lambda v: v, ps.Long())}
    assert found == {n: kafka_partition(n.to_bytes(8, "big"), TASKS) for n in range(50)}


def test_without_a_key_all_go_to_task_0() -> None:
    found = tasks_of(list(range(12)), lambda v: None)
    assert [(key, task) for key, task, _, _ in found] == [(None, 0)] * 12


def test_the_envelope_still_names_the_input_message() -> None:
    found = tasks_of([f"k{n}" for n in range(10)], lambda v: v)
    assert {(key, ssp, offset) for key, _, ssp, offset in found} == {
        (f"k{n}", f"m.in.{n % TASKS}", n // TASKS) for n in range(10)
    }


def test_messages_of_one_source_and_key_stay_in_order() -> None:
    app = ps.StreamApplication("a")
    seen: dict[str, list[int]] = {}
    stream = app.input("m.in").partition_by(lambda v: str(v % 7))
    stream.sink(lambda envelope, _, __: seen.setdefault(envelope.key, []).append(envelope.value))
    TestRunner(app, partitions=3).input("m.in", range(20_000), partition=1).run()
    assert seen == {str(k): list(range(k, 20_000, 7)) for k in range(7)}


def test_a_key_function_that_raises_and_a_key_that_does_not_serialise() -> None:
    for function, reason in ((lambda v: v["x"], "TypeError"), (lambda v: object(), "SerdeError: ")):
        with pytest.raises(ps.UserCodeError) as caught:
            tasks_of([1], function)
        assert caught.value.failed.operator == "partition_by-1"
        assert caught.value.failed.reason.startswith(reason)


def test_equal_json_keys_are_one_key() -> None:
    """However the dicts were made: partitioning and state look at bytes only."""
    for n in range(10):
        found = tasks_of([[["a", n], ["b", 2]], [["b", 2], ["a", n]]], dict, ps.Json())
        assert len({task for _, task, _, _ in found}) == 1
