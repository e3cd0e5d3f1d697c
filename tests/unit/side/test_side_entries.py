"""Entries of messages, the code of processors, and the partitions that fill each store."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.graph.stores import SideInputs, SideStream, StoreSpec
from penstock.metrics.registry import MetricsRegistry
from penstock.side.entries import (
    CopiedEntries,
    MessageFailedError,
    ProcessedEntries,
    SideEntries,
    SidePart,
    StoppedError,
    entries_of,
)
from penstock.side.replica import groups_of, partitions_for, parts_of, streams_of
from penstock.side.start import code_text
from penstock.system.base import RawMessage

SSP = SystemStreamPartition("m", "planes", 0)


class Held:
    """Content in a dict."""

    def __init__(self, **entries: bytes) -> None:
        self.entries = {key.encode(): value for key, value in entries.items()}

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self.entries.items()))


def made(content: Held, processor: Any = None, stop: threading.Event | None = None, **serdes: Any) -> SideEntries:
    key, value = serdes.get("keys", ps.String()), ps.Json()
    stream = SideStream(SystemStream("m", "planes"), serdes.get("key", key), serdes.get("value", value))
    side = SideInputs((stream,), processor)
    part = SidePart(StoreSpec("planes", key, value, side=side), side, 0, (SSP,))
    return entries_of(part, content, {}, MetricsRegistry("Partition 0"), stop or threading.Event())


def message(offset: int, key: bytes | None, value: bytes | None) -> RawMessage:
    return offset, 7, key, value


def test_messages_are_copied_as_they_are() -> None:
    entries = made(Held())
    assert isinstance(entries, CopiedEntries)
    entries.add(SSP, [message(0, b"a", b'{"x": 1}'), message(1, None, b"1"), message(2, b"b", None)])
    entries.add(SSP, [message(3, b"c", b"null"), message(4, b"a", b" 2")])
    assert entries.changes == {b"a": b" 2", b"b": None, b"c": None}
    assert entries.size_bytes > 4 * 100
    entries.begin(Held(), written=True)
    assert (entries.changes, entries.size_bytes) == ({}, 0)


@pytest.mark.parametrize(("key", "value"), [(b"a", b"{"), (b"\xff", b"1")])
def test_a_copied_message_that_does_not_decode_is_named(key: bytes, value: bytes) -> None:
    entries = made(Held())
    with pytest.raises(MessageFailedError) as raised:
        entries.add(
            SSP, [message(0, b"a", b"1"), message(1, None, b"{"), message(2, key, value), message(3, b"a", b"{")]
        )
    # A message without a key is no entry: what it holds is not decoded. With a processor it is.
    assert raised.value.message[0] == 2


def test_other_serdes_are_converted() -> None:
    entries = made(Held(), value=ps.String())
    assert isinstance(entries, ProcessedEntries)
    entries.add(SSP, [message(0, b"a", b"x"), message(1, b"b", None)])
    assert entries.changes == {b"a": b'"x"', b"b": None}


def test_the_processor_reads_the_content_and_what_it_returned() -> None:
    content = Held(a=b"1")

    def add(envelope: ps.IncomingMessageEnvelope, store: ps.KeyValueStore[Any, Any]) -> list[tuple[Any, Any]]:
        assert (envelope.ssp, envelope.timestamp) == (SSP, 7)
        return [
            (envelope.key, (store.get(envelope.key) or 0) + envelope.value),
            ("keys", [key for key, _ in store.all()]),
        ]

    entries = made(content, add)
    entries.add(SSP, [message(0, b"a", b"10"), message(1, b"b", b"100")])
    assert entries.changes == {b"a": b"11", b"b": b"100", b"keys": b'["a","keys"]'}
    entries.begin(content, written=False)  # they are given up
    entries.add(SSP, [message(0, b"a", b"20")])
    assert entries.changes[b"a"] == b"21"
    content.entries[b"a"] = b"21"
    entries.begin(content, written=True)
    entries.add(SSP, [message(2, b"a", b"1")])
    assert entries.changes[b"a"] == b"22"


def test_no_message_is_processed_once_it_is_to_stop() -> None:
    stop, seen = threading.Event(), []

    def stops(envelope: ps.IncomingMessageEnvelope, store: Any) -> list[tuple[Any, Any]]:
        seen.append(envelope.offset)
        stop.set()
        return []

    entries = made(Held(), stops, stop)
    with pytest.raises(StoppedError):
        entries.add(SSP, [message(0, b"a", b"1"), message(1, b"a", b"1")])
    assert seen == [0]


@pytest.mark.parametrize("processor", [None, lambda message, store: [(message.key, message.value)]])
def test_a_reserved_key_is_named_with_its_message(processor: Any) -> None:
    entries = made(Held(), processor, keys=ps.Bytes())
    with pytest.raises(MessageFailedError) as raised:
        entries.add(SSP, [message(7, b"a", b"1"), message(8, b"\xff" * 17, b"2"), message(9, b"c", b"3")])
    assert (raised.value.message[0], raised.value.index) == (8, 1)
    assert "reserved" in str(raised.value.cause)


SEATS = {"A320": 180}


def seats(message: Any, store: Any) -> list[tuple[Any, Any]]:
    return [(message.key, SEATS.get(message.value))] if message.key not in {"none", "unknown", "other"} else []


def prefixed(prefix: str) -> Callable[[Any, Any], list[tuple[Any, Any]]]:
    return lambda message, store: [(prefix + message.key, message.value)]


def one(prefix: str, message: Any, store: Any) -> list[tuple[Any, Any]]:
    return [(prefix, message.value)]


def two(prefix: str, message: Any, store: Any) -> list[tuple[Any, Any]]:
    return [(prefix, None)]


class Named:
    def __init__(self, name: str) -> None:
        self.name = name
        self.itself = {"me": self, "kinds": {Named, str}}

    def process(self, message: Any, store: Any) -> list[tuple[Any, Any]]:
        return one(self.name, message, store)


class Factory:
    def get_side_inputs_processor(self, config: Any, metrics: Any) -> Named:
        return Named("planes")


ALL = [seats, prefixed("a"), prefixed("b"), functools.partial(one, "a"), functools.partial(one, "b")]
ALL += [functools.partial(two, "a"), Named("a"), Named("b"), Named("a").process, Factory(), None]


def test_each_processor_has_another_text() -> None:
    assert len({code_text(each) for each in ALL}) == len(ALL)


@pytest.mark.parametrize("processor", ALL)
def test_a_processor_has_the_same_text_wherever_it_is_sent(processor: Any) -> None:
    assert code_text(cloudpickle.loads(cloudpickle.dumps(processor))) == code_text(processor)


def test_the_text_does_not_depend_on_the_process() -> None:
    code = "from tests.unit.side.test_side_entries import *; print([code_text(each) for each in ALL])"
    found = {
        subprocess.check_output([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_what_a_processor_uses_of_its_package_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [code_text(each) for each in (seats, Factory())]
    monkeypatch.setitem(SEATS, "A320", 190)
    monkeypatch.setattr(Named, "process", lambda self, message, store: [])
    after = [code_text(each) for each in (seats, Factory())]
    assert all(old != new for old, new in zip(before, after, strict=True))


def spec(name: str, *streams: str, broadcast: bool = False) -> StoreSpec:
    key, value = ps.String(), ps.Json()
    side = tuple(SideStream(SystemStream("m", stream), key, value) for stream in streams)
    return StoreSpec(name, key, value, side=SideInputs(side, broadcast=broadcast))


def ssp(stream: str, partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("m", stream, partition)


COUNTS = {SystemStream("m", stream): 3 for stream in "abcd"}


def test_a_task_has_its_partition_of_every_stream() -> None:
    found = parts_of([spec("one", "a", "b"), StoreSpec("own", ps.String(), ps.Json())], [0, 2], COUNTS, 3)
    assert [(part.spec.name, part.task, part.ssps) for part in found] == [
        ("one", task, (ssp("a", task), ssp("b", task))) for task in (0, 2)
    ]


def test_a_broadcast_store_has_everything_once() -> None:
    (part,) = parts_of([spec("all", "a", broadcast=True)], [0, 2], COUNTS, 3)
    assert part.task is None
    assert part.ssps == tuple(ssp("a", number) for number in range(3))


def test_streams_are_those_of_all_stores() -> None:
    assert streams_of([spec("one", "a", "b"), spec("two", "b")]) == {SystemStream("m", "a"), SystemStream("m", "b")}


def test_a_broadcast_store_brings_the_parts_of_all_tasks_together() -> None:
    parts = parts_of([spec("one", "a"), spec("all", "a", broadcast=True), spec("other", "b")], [0, 1], COUNTS, 3)
    groups = {frozenset((part.spec.name, part.task) for part in group) for group in groups_of(parts)}
    assert groups == {
        frozenset({("one", 0), ("one", 1), ("all", None)}),
        frozenset({("other", 0)}),
        frozenset({("other", 1)}),
    }


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.booleans()), max_size=6))
def test_groups_share_no_partition_and_leave_nothing_out(declared: list[tuple[set[str], bool]]) -> None:
    specs = [spec(f"s{n}", *sorted(streams), broadcast=wide) for n, (streams, wide) in enumerate(declared)]
    parts = parts_of(specs, [0, 1], COUNTS, 3)
    groups = groups_of(parts)
    assert sorted(map(_place, parts)) == sorted(_place(part) for group in groups for part in group)
    owners: dict[SystemStreamPartition, int] = {}
    for number, group in enumerate(groups):
        for part in group:
            for each in part.ssps:
                assert owners.setdefault(each, number) == number
    for group in groups:  # each is connected: it cannot be cut in two
        reached, left = set(group[0].ssps), list(group[1:])
        while near := [part for part in left if reached.intersection(part.ssps)]:
            reached.update(each for part in near for each in part.ssps)
            left = [part for part in left if part not in near]
        assert left == []


def _place(part: SidePart) -> tuple[str, int]:
    return part.spec.name, -1 if part.task is None else part.task


@given(st.integers(0, 2**31 - 1), st.integers(1, 12), st.integers(1, 12))
def test_a_task_reads_exactly_the_partitions_that_may_have_its_keys(hashed: int, partitions: int, tasks: int) -> None:
    assert hashed % partitions in partitions_for(hashed % tasks, partitions, tasks)
    for task in range(tasks):
        possible = {h % partitions for h in range(partitions * tasks) if h % tasks == task}
        assert set(partitions_for(task, partitions, tasks)) == possible
