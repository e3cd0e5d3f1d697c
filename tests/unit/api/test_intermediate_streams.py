"""Durable intermediate streams: their declarations and their messages."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.intermediate import ControlMessage
from penstock.errors import ConfigError
from penstock.runtime.messages.stored import read_user_messages


def keyed(app: ps.StreamApplication, through: str) -> ps.MessageStream[object]:
    return app.input("m.in").partition_by(str, through=through, id="by")


def test_it_parts_the_application() -> None:
    app = ps.StreamApplication("a")
    behind = keyed(app, "m.first").map(str, id="behind")
    app.input("m.other").merge(behind.partition_by(str, through="m.second", id="again"), id="both")
    graph = app.graph()
    assert [(each.id, each.writer, str(each.stream)) for each in graph.intermediates] == [
        ("by.through", "by", "m.first"),
        ("again.through", "again", "m.second"),
    ]
    assert [str(each.stream) for each in graph.sources] == ["m.in", "m.other", "m.first", "m.second"]
    parts = [{"input-1", "by", "input-2"}, {"by.through", "behind", "again"}, {"again.through", "both"}]
    assert [set(part) for part in graph.parts()] == parts


@pytest.mark.parametrize(
    ("taken", "what"), [("m.in", "the input `input-1`"), ("m.out", "an output"), ("m.first", "the intermediate stream")]
)
def test_a_stream_that_something_else_uses_is_refused(taken: str, what: str) -> None:
    app = ps.StreamApplication("a")
    stream = keyed(app, "m.first")
    stream.send_to(app.output("m.out"))
    stream.partition_by(str, through=taken, id="again")
    with pytest.raises(ConfigError, match=f"intermediate stream `{taken}` of `again` is {what}"):
        app.graph()


def test_the_reader_has_an_id_that_nothing_else_may_have() -> None:
    app = ps.StreamApplication("a")
    app.input("m.other", id="by.through")
    with pytest.raises(ConfigError, match=r"`by\.through` is used twice"):
        keyed(app, "m.first")


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
