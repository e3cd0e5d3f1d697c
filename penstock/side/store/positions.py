"""What the content of a side store is made from: up to which offset of each partition, and of which streams.

It is kept beside the entries, under one reserved key behind all others, as JSON with the number of its format. It is
written together with the entries, in one step, therefore it never disagrees with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.documents import Count, decode_format, decoding

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Positions:
    """How far each partition has been read into the content."""

    next_offsets: Mapping[SystemStreamPartition, int] = field(default_factory=dict)
    """The next offset to read, of every partition that fills the store, including those that never had a message."""
    identities: Mapping[SystemStream, str | None] = field(default_factory=dict)
    """What distinguishes a stream from an earlier one of its name (`SystemAdmin.stream_identity`)."""
    fingerprint: str = ""
    """What else made the content: streams, serdes, processor. Another one means other content."""
    complete: bool = False
    """Whether the content was caught up once."""
    updated_ms: int = 0
    """When it was known to be up to date, in epoch milliseconds."""

    def moved(self, next_offsets: Mapping[SystemStreamPartition, int], updated_ms: int) -> Positions:
        """After more was read.

        Args:
            next_offsets: those that moved; the others stay.
            updated_ms: when, in epoch milliseconds.
        """
        return replace(self, next_offsets={**self.next_offsets, **next_offsets}, updated_ms=updated_ms)


class _Written(Struct):
    """The fields as they are written."""

    format: Count
    next: dict[str, Count]
    identities: dict[str, str | None]
    fingerprint: str
    complete: bool
    updated_ms: Count


def encode_positions(positions: Positions) -> bytes:
    """As bytes."""
    return orjson.dumps(
        {
            "format": _FORMAT,
            "next": {str(ssp): offset for ssp, offset in positions.next_offsets.items()},
            "identities": {str(stream): identity for stream, identity in positions.identities.items()},
            "fingerprint": positions.fingerprint,
            "complete": positions.complete,
            "updated_ms": positions.updated_ms,
        }
    )


def decode_positions(data: bytes, place: str) -> Positions:
    """What `encode_positions` wrote.

    Args:
        data: the bytes.
        place: where they were found, for the error.

    Raises:
        CorruptError: they are damaged.
        IncompatibleError: a newer Penstock wrote them.
    """
    what = f"the positions of the side store in `{place}` are damaged"
    written = decode_format(_Written, data, what, f"the side store in `{place}`", _FORMAT)
    with decoding(what):
        return Positions(
            {SystemStreamPartition.parse(ssp): offset for ssp, offset in written.next.items()},
            {SystemStream.parse(stream): identity for stream, identity in written.identities.items()},
            written.fingerprint,
            written.complete,
            written.updated_ms,
        )
