"""The messages of durable intermediate streams."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.intermediate import ControlMessage
from penstock.runtime.messages.stored import read_user_messages

SSP = ps.SystemStreamPartition("local", "between", 3)
SERDE = ps.IntermediateMessageSerde(ps.Json())


@pytest.mark.parametrize(
    "message",
    [
        ps.WatermarkMessage(-5),
        ps.WatermarkMessage(60_000, "Partition 1"),
        ps.EndOfStreamMessage(),
        ps.EndOfStreamMessage("Partition 1"),
        ps.DrainMessage("3f2a"),
        ps.DrainMessage("3f2a", "Partition 1"),
    ],
)
def test_control_messages_survive_the_round_trip(message: ControlMessage) -> None:
    assert SERDE.from_bytes(SERDE.to_bytes(message)) == message


def test_values_have_a_byte_in_front() -> None:
    assert SERDE.to_bytes({"a": 1}) == b'\x00{"a":1}'
    assert SERDE.from_bytes(b'\x00{"a":1}') == {"a": 1}
    assert SERDE.name == "intermediate-json"


def test_readers_see_only_what_the_application_sent() -> None:
    control = SERDE.to_bytes(ps.WatermarkMessage(7))
    messages = [(4, 1, b"k", b"\x00v"), (5, 2, None, control), (6, 3, b"k", None), (7, 4, None, b"\x00")]
    assert read_user_messages(messages) == ([(4, 1, b"k", b"v"), (6, 3, b"k", None), (7, 4, None, b"")], 0)


@pytest.mark.attack
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x04{}",
        b"{}",
        b"\x01",
        b"\x01{}",
        b'\x01{"version":1}',
        b'\x01{"version":2,"timestamp":1}',
        b'\x02{"version":"1"}',
        b'\x03{"version":1,"task-name":null}',
        b"\x03[1]",
        b"\x02" + b"[" * 100_000,
    ],
)
def test_what_is_neither_a_value_nor_a_control_message_is_left_out(value: bytes) -> None:
    with pytest.raises(ValueError):
        SERDE.from_bytes(value)
    assert read_user_messages([(8, 0, None, b"\x00"), (9, 0, None, value)]) == ([(8, 0, None, b"")], 1)
