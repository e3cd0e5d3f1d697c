"""The messages of durable intermediate streams: the user's, and Samza's control messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, TypeAlias

import msgspec
import orjson

from penstock.api.serdes.base import Serde

VERSION = 1
"""The version of control messages."""


class MessageType(IntEnum):
    """The type of a message in a durable intermediate stream, which is its first byte. As Samza's MessageType.

    Example:
        >>> [f"{kind.name} {kind.value}" for kind in ps.MessageType]
        ['USER_MESSAGE 0', 'WATERMARK 1', 'END_OF_STREAM 2', 'DRAIN 3']
    """

    USER_MESSAGE = 0
    """The rest of the bytes is the value."""
    WATERMARK = 1
    """The rest is a `WatermarkMessage`."""
    END_OF_STREAM = 2
    """The rest is an `EndOfStreamMessage`."""
    DRAIN = 3
    """The rest is a `DrainMessage`."""


@dataclass(frozen=True, slots=True)
class WatermarkMessage:
    """No message with an earlier event time follows, except late ones. As Samza's WatermarkMessage.

    Args:
        timestamp: the watermark, in epoch milliseconds.
        task_name: the task that it counts for; None: it counts for all that write the stream.

    Example:
        >>> ps.WatermarkMessage(60_000).task_name is None
        True
    """

    timestamp: int
    task_name: str | None = None


@dataclass(frozen=True, slots=True)
class EndOfStreamMessage:
    """No message follows. As Samza's EndOfStreamMessage.

    Args:
        task_name: the task that it counts for; None: it counts for all that write the stream.

    Example:
        >>> ps.EndOfStreamMessage()
        EndOfStreamMessage(task_name=None)
    """

    task_name: str | None = None


@dataclass(frozen=True, slots=True)
class DrainMessage:
    """No message of a run follows, because it drains. As Samza's DrainMessage.

    Args:
        run_id: the run that drains.
        task_name: the task that it counts for; None: it counts for all that write the stream.

    Example:
        >>> ps.DrainMessage("3f2a").run_id
        '3f2a'
    """

    run_id: str
    task_name: str | None = None


ControlMessage: TypeAlias = WatermarkMessage | EndOfStreamMessage | DrainMessage


class IntermediateMessageSerde(Serde[Any]):
    """The values of a durable intermediate stream, as Samza's IntermediateMessageSerde: one byte with the message's
    type, and then the value, or the JSON of a control message.

    A program that reads such a stream without Penstock uses it to distinguish the application's messages from the
    others. It may read some twice, and some that belong to no batch: only the driver knows which ones the application
    reads.

    Example:
        >>> serde = ps.IntermediateMessageSerde(ps.String())
        >>> serde.to_bytes("N14228")
        b'\\x00N14228'
        >>> serde.from_bytes(serde.to_bytes(ps.WatermarkMessage(60_000)))
        WatermarkMessage(timestamp=60000, task_name=None)
    """

    def __init__(self, value_serde: Serde[Any]) -> None:
        """
        Args:
            value_serde: the serde of the application's values.
        """
        self.value_serde = value_serde

    @property
    def name(self) -> str:
        return f"intermediate-{self.value_serde.name}"

    def mapped(self, change: Callable[[Serde[Any]], Serde[Any]]) -> Serde[Any]:
        return IntermediateMessageSerde(self.value_serde.mapped(change))

    def to_bytes(self, obj: Any) -> bytes:
        if isinstance(obj, ControlMessage):
            return encode_control(obj)
        return b"\x00" + self.value_serde.to_bytes(obj)

    def from_bytes(self, data: bytes) -> Any:
        if data[:1] == b"\x00":
            return self.value_serde.from_bytes(data[1:])
        return decode_control(data)


def encode_control(message: ControlMessage) -> bytes:
    """The bytes of a control message as the value of a message."""
    fields: dict[str, object] = {"version": VERSION, "task-name": message.task_name}
    match message:
        case WatermarkMessage():
            kind = MessageType.WATERMARK
            fields["timestamp"] = message.timestamp
        case EndOfStreamMessage():
            kind = MessageType.END_OF_STREAM
        case DrainMessage():
            kind = MessageType.DRAIN
            fields["run-id"] = message.run_id
    return bytes([kind]) + orjson.dumps(fields)


def decode_control(data: bytes) -> ControlMessage:
    """Raises ValueError if the bytes are not a control message, or one of a newer version."""
    decoder = _DECODERS.get(data[0]) if data else None
    if decoder is None:
        what = f"its first byte is {data[0]}, known are 0 to {max(MessageType)}" if data else "it has no bytes"
        raise ValueError(f"this is no message of a durable intermediate stream: {what}")
    return decoder.decode(memoryview(data)[1:]).message()


class _Control(msgspec.Struct, rename="kebab"):
    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION)]
    task_name: str | None = None


class _Watermark(_Control, rename="kebab", kw_only=True):
    timestamp: int

    def message(self) -> ControlMessage:
        return WatermarkMessage(self.timestamp, self.task_name)


class _EndOfStream(_Control, rename="kebab"):
    def message(self) -> ControlMessage:
        return EndOfStreamMessage(self.task_name)


class _Drain(_Control, rename="kebab", kw_only=True):
    run_id: str

    def message(self) -> ControlMessage:
        return DrainMessage(self.run_id, self.task_name)


_DECODERS: dict[int, msgspec.json.Decoder[_Watermark | _EndOfStream | _Drain]] = {
    MessageType.WATERMARK: msgspec.json.Decoder(_Watermark),
    MessageType.END_OF_STREAM: msgspec.json.Decoder(_EndOfStream),
    MessageType.DRAIN: msgspec.json.Decoder(_Drain),
}
