"""What an application sees of a durable intermediate stream."""

from __future__ import annotations

from penstock.api.intermediate import decode_control
from penstock.api.ssp import SystemStreamPartition
from penstock.documents import decoding
from penstock.system.base import RawMessage


def read_user_messages(ssp: SystemStreamPartition, messages: list[RawMessage]) -> list[RawMessage]:
    """The application's messages, without the byte that says what they are. Control messages are left out: the driver
    knows the watermark, and what has ended.

    Raises:
        CorruptError: a message is neither; names the partition and the offset.
    """
    found: list[RawMessage] = []
    for message in messages:
        offset, timestamp, key, value = message
        if value is None:
            found.append(message)
        elif value[:1] == b"\x00":
            found.append((offset, timestamp, key, value[1:]))
        else:
            with decoding(f"`{ssp}` is damaged at offset {offset}"):
                decode_control(value)
    return found
