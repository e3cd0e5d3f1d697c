"""Messages in streams that the job itself writes: dead letters, and durable intermediate streams.

A dead letter is a message that failed, with its place and the reason, as JSON. A durable intermediate stream is read
by stage 0, and written by the sink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from msgspec import Struct

from penstock.api.intermediate import DrainMessage, EndOfStreamMessage, WatermarkMessage, decode_control, encode_control
from penstock.api.messages import UNREADABLE, Headers
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import decode, decoding, text_or_hex
from penstock.batch.batch import Batch
from penstock.checkpoint.streams import Ranges
from penstock.errors import FailedMessage
from penstock.system.base import RawMessage, RawRecord, headers_in
from penstock.system.contract.messages import unreadable_row


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A failed message, with all that is needed to process it again."""

    ssp: SystemStreamPartition
    """The partition of the input message that failed, or that led to the one that failed."""
    offset: int
    """Negative if there is none, as for a timer."""
    identity: str | None
    """Tells its stream from a later one of that name; None if unknown."""
    operator: str
    repartitioned: bool
    """Key and value are those that a `partition_by` made, not those of the input message."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    unreadable: bool = False
    """The message was a row that its system could not read, and of which there is no text."""


def encode_dead_letter(
    failed: FailedMessage,
    key: bytes | None,
    value: bytes | None,
    *,
    repartitioned: bool,
    identity: str | None = None,
    fired: Mapping[str, object] | None = None,
    headers: Headers = (),
) -> bytes:
    """The value of a dead letter. A row that its system could not read is there as it is in the file.

    Args:
        fired: name and time of a firing at the end of input.

    Example:
        >>> failed = FailedMessage("local.trips", 0, 7, "k", "task", "ValueError: no", "")
        >>> letter = decode_dead_letter(encode_dead_letter(failed, b"k", bytes([255]), repartitioned=False))
        >>> letter.offset, letter.key, letter.value
        (7, b'k', b'\\xff')
    """
    reason, lost = failed.reason, False
    if (row := unreadable_row(value)) is not None:
        reason = reason if row.reason in reason else f"{row.reason}. {reason}"
        value, lost = row.data, row.data is None
    return orjson.dumps(
        {
            "stream": failed.stream,
            "partition": failed.partition,
            "offset": failed.offset,
            **({} if identity is None else {"identity": identity}),
            "operator": failed.operator,
            **({"sender": failed.sender} if failed.sender else {}),
            "reason": reason,
            "traceback": failed.traceback,
            "repartitioned": repartitioned,
            **text_or_hex("key", key),
            **text_or_hex("value", value),
            **({"headers": [{"name": n, **text_or_hex("value", v)} for n, v in headers]} if headers else {}),
            **({"unreadable": True} if lost else {}),
            **(fired or {}),
        }
    )


def decode_dead_letter(data: bytes | None) -> DeadLetter:
    """Raises CorruptError if the value is not a dead letter, or lacks `repartitioned`: the first versions of Penstock
    wrote it without."""
    what = "it is not a dead letter of this version of Penstock"
    with decoding(what):
        written = decode(_StoredLetter, data or b"", what)
        stream = SystemStream.parse(written.stream)
        return DeadLetter(
            SystemStreamPartition(stream.system, stream.stream, written.partition),
            written.offset,
            written.identity,
            written.operator,
            written.repartitioned,
            _bytes(written.key, written.keyHex),
            _bytes(written.value, written.valueHex),
            tuple((each.name, _bytes(each.value, each.valueHex)) for each in written.headers),
            written.unreadable,
        )


class _StoredHeader(Struct):
    name: str
    value: str | None = None
    valueHex: str | None = None  # noqa: N815 - as it is written


class _StoredLetter(Struct):
    stream: str
    partition: int
    offset: int
    operator: str
    repartitioned: bool
    identity: str | None = None
    key: str | None = None
    value: str | None = None
    keyHex: str | None = None  # noqa: N815 - as it is written
    valueHex: str | None = None  # noqa: N815
    headers: list[_StoredHeader] = []
    unreadable: bool = False


def _bytes(text: str | None, digits: str | None) -> bytes | None:
    if digits is not None:
        return bytes.fromhex(digits)
    return None if text is None else text.encode()


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
