"""Entries of messages: copied as they are, or made by a processor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.graph.stores import SideInputs, SideStream, StoreSpec
from penstock.metrics.registry import MetricsRegistry
from penstock.side.fill.entries import (
    CopiedEntries,
    MessageFailedError,
    ProcessedEntries,
    SideEntries,
    StoppedError,
    entries_of,
)
from penstock.side.fill.parts import SidePart
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
