"""A durable intermediate stream, as stage 0 reads it and the sink writes it."""

from __future__ import annotations

from penstock.api.intermediate import (
    DrainMessage,
    EndOfStreamMessage,
    WatermarkMessage,
    decode_control,
    encode_control,
)
from penstock.batch.batch import Batch
from penstock.checkpoint.intermediate import Ranges
from penstock.system.base import RawMessage, RawRecord


def read_user_messages(messages: list[RawMessage]) -> tuple[list[RawMessage], int]:
    """The application's messages, without the byte that says what they are. Control messages are left out: the driver
    knows the watermark, and what has ended. So are messages that are neither: whoever may write to the stream can put
    them between those of a batch. Their number is the second value.
    """
    found: list[RawMessage] = []
    foreign = 0
    for message in messages:
        offset, timestamp, key, value = message
        if value is None:
            found.append(message)
        elif value[:1] == b"\x00":
            found.append((offset, timestamp, key, value[1:]))
        else:
            try:
                decode_control(value)
            except (ValueError, RecursionError):
                foreign += 1
    return found, foreign


def first_offsets(ranges: Ranges, count: int) -> Ranges:
    """The first `count` offsets of these: control messages behind them are for other readers, and are not read."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        if count > 0:
            found.append((start, min(end, start + count)))
            count -= end - start
    return tuple(found)


def control_messages(batch: Batch, writer: str, run_id: str) -> tuple[RawRecord, ...]:
    """What a batch says to the readers of an intermediate stream, behind its messages: how far event time has come, and
    that nothing follows. Penstock's own reading knows it from the driver; other readers know it by these."""
    found: list[RawRecord] = []
    watermark = batch.output_watermark(writer)
    if watermark > batch.late_watermark(writer):
        found.append((batch.time_ms, None, encode_control(WatermarkMessage(watermark))))
    if writer in batch.closed or batch.seen_by(writer).control == "none":
        return tuple(found)
    end = EndOfStreamMessage() if batch.control == "end-of-stream" else DrainMessage(run_id)
    return (*found, (batch.time_ms, None, encode_control(end)))
