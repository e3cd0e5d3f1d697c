"""The messages that wait for their turn, as entries of a store.

| part of the key | bytes |
|---|---|
| event time | 8, which sort as times do |
| key | 00 without one; otherwise 01, its bytes with each 00 written as 00 FF, and 00 01 |
| stream | the first 8 of the hash of its name |
| partition, offset | 4 and 8 |
| number | 16: batch time, and a number that grows; no two messages have the same |

A value has the number of the source, flags, the name of the stream, the headers, and the message's value. So entries
sort by time and key, and by their offsets within these.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import CorruptError
from penstock.runtime.timers import time_bytes, time_of

TIME_BYTES = 8
STREAM_BYTES = 8
_PARTITION_BYTES = 4
PLACE_BYTES = STREAM_BYTES + _PARTITION_BYTES + 8
NUMBER_BYTES = 16
_TAIL = PLACE_BYTES + NUMBER_BYTES
_HEAD = Struct(">BBHI")
"""Source, flags, the length of the stream's name, and that of the headers."""
_HAS_VALUE = 1
_NO_KEY, _KEY = b"\x00", b"\x01"
_ZERO, _ESCAPED_ZERO, _END = b"\x00", b"\x00\xff", b"\x00\x01"


class WaitingMessage(NamedTuple):
    """The content of an entry's value."""

    source: int
    stream: str
    """`system.stream`."""
    headers: bytes
    """As `pack_headers` makes them."""
    value: bytes | None


def stream_part(stream: str) -> bytes:
    """The part of an entry that stands for the stream."""
    return blake2b(stream.encode(), digest_size=STREAM_BYTES).digest()


def partition_part(ssp: SystemStreamPartition) -> bytes:
    return stream_part(str(ssp.system_stream)) + ssp.partition.to_bytes(_PARTITION_BYTES, "big")


def number_part(place: tuple[int, int]) -> bytes:
    """The part of an entry that makes it unique: a place as `StageContext.next_list_place` gives them."""
    return time_bytes(place[0]) + place[1].to_bytes(8, "big")


def key_part(key: bytes | None) -> bytes:
    """A key as a part of an entry, which sorts as keys do and marks its own end."""
    if key is None:
        return _NO_KEY
    return _KEY + (key.replace(_ZERO, _ESCAPED_ZERO) if _ZERO in key else key) + _END


def entry_of(time_ms: int, key: bytes | None, partition: bytes, offset: int, number: bytes) -> bytes:
    """The key of an entry. `partition` and `number` are parts that the functions above make."""
    return time_bytes(time_ms) + key_part(key) + partition + time_bytes(offset) + number


def time_in(entry: bytes) -> int:
    return time_of(entry[:TIME_BYTES])


def time_and_key(entry: bytes) -> bytes:
    """The first two parts, by which entries are in order."""
    return entry[:-_TAIL]


def key_in(entry: bytes) -> bytes | None:
    part = entry[TIME_BYTES:-_TAIL]
    return None if part == _NO_KEY else part[1 : -len(_END)].replace(_ESCAPED_ZERO, _ZERO)


def place_in(entry: bytes) -> bytes:
    """Stream, partition and offset, as they sort."""
    return entry[-_TAIL:-NUMBER_BYTES]


def partition_and_offset(entry: bytes) -> tuple[int, int]:
    place = place_in(entry)[STREAM_BYTES:]
    return int.from_bytes(place[:_PARTITION_BYTES], "big"), time_of(place[_PARTITION_BYTES:])


def pack(waiting: WaitingMessage) -> bytes:
    """The value of an entry."""
    stream, value = waiting.stream.encode(), waiting.value
    flags = 0 if value is None else _HAS_VALUE
    head = _HEAD.pack(waiting.source, flags, len(stream), len(waiting.headers))
    return b"".join((head, stream, waiting.headers, value or b""))


def unpack(data: bytes) -> WaitingMessage:
    """The content of a value. Raises CorruptError if it breaks off."""
    source, flags, stream_length, headers_length = _HEAD.unpack_from(data)
    headers_at = _HEAD.size + stream_length
    value_at = headers_at + headers_length
    if value_at > len(data):
        raise CorruptError(
            f"a message that waits for its turn is damaged: its value begins at {value_at} of {len(data)}"
        )
    value = data[value_at:] if flags & _HAS_VALUE else None
    return WaitingMessage(source, data[_HEAD.size : headers_at].decode(), data[headers_at:value_at], value)
