"""Reading and writing of a durable intermediate stream, by stage 0 and by the sink."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.intermediate import (
    DrainMessage,
    EndOfStreamMessage,
    WatermarkMessage,
    decode_control,
    encode_control,
)
from penstock.api.messages.headers import UNREADABLE
from penstock.batch.batch import Batch
from penstock.checkpoint.intermediate import Ranges
from penstock.system.base import RawMessage, RawRecord, headers_in


def read_user_messages(messages: Sequence[RawMessage]) -> tuple[list[RawMessage], int]:
    """Returns the application's messages, without the byte that marks them, and the number of foreign messages.

    Control messages are left out, because the driver knows the watermark and the ended writers. Foreign messages are
    left out too: anybody who may write to the stream can put them between those of a batch.
    """
    found: list[RawMessage] = []
    foreign = 0
    for message in messages:
        value = message[3]
        if headers_in(message) == UNREADABLE:
            foreign += 1
        elif value is None:
            found.append(message)
        elif value[:1] == b"\x00":
            found.append((*message[:3], value[1:], *message[4:]))
        else:
            try:
                decode_control(value)
            except (ValueError, RecursionError):
                foreign += 1
    return found, foreign


def first_offsets(ranges: Ranges, count: int) -> Ranges:
    """The first `count` offsets of the ranges. Control messages follow them; those are for other readers, and are not
    read."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        if count > 0:
            found.append((start, min(end, start + count)))
            count -= end - start
    return tuple(found)


def control_messages(batch: Batch, writer: str, run_id: str) -> tuple[RawRecord, ...]:
    """The control messages that follow a batch's messages: the watermark, and the end of the stream or of the run.
    Penstock gets both from the driver when it reads; other readers get them from here."""
    found: list[RawRecord] = []
    watermark = batch.output_watermark(writer)
    if watermark > batch.late_watermark(writer):
        found.append((batch.time_ms, None, encode_control(WatermarkMessage(watermark))))
    if writer in batch.closed or batch.seen_by(writer).control == "none":
        return tuple(found)
    end = EndOfStreamMessage() if batch.control == "end-of-stream" else DrainMessage(run_id)
    return (*found, (batch.time_ms, None, encode_control(end)))
