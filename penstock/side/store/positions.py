"""The origin of a side store's content: how far each partition was read, and from which streams.

It is JSON with a format number, under one reserved key after all others. It is written in one step with the entries,
so it never disagrees with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import Count, decode_format, decoding

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SidePositions:
    """The offsets that a side store's content was read up to."""

    next_offsets: Mapping[SystemStreamPartition, int] = field(default_factory=dict)
    """Includes the partitions that never had a message."""
    identities: Mapping[SystemStream, str | None] = field(default_factory=dict)
    """Distinguishes a stream from an earlier one of its name (`SystemAdmin.stream_identity`)."""
    fingerprint: str = ""
    """The fingerprint of everything else that made the content: streams, serdes, processor."""
    complete: bool = False
    """True if the content was caught up once."""
    updated_ms: int = 0
    """The latest time at which it was known to be up to date, in epoch milliseconds."""

    def moved(self, next_offsets: Mapping[SystemStreamPartition, int], updated_ms: int) -> SidePositions:
        """The positions after more was read. Partitions that are not in `next_offsets` stay."""
        return replace(self, next_offsets={**self.next_offsets, **next_offsets}, updated_ms=updated_ms)


class _WrittenPositions(Struct):
    format: Count
    next: dict[str, Count]
    identities: dict[str, str | None]
    fingerprint: str
    complete: bool
    updated_ms: Count


def encode_positions(positions: SidePositions) -> bytes:
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


def decode_positions(data: bytes, place: str) -> SidePositions:
    """Decode positions.

    Raises:
        CorruptError: they are damaged.
        IncompatibleError: a newer Penstock wrote them.
    """
    what = f"the positions of the side store in `{place}` are damaged"
    written = decode_format(_WrittenPositions, data, what, f"the side store in `{place}`", _FORMAT)
    with decoding(what):
        return SidePositions(
            {SystemStreamPartition.parse(ssp): offset for ssp, offset in written.next.items()},
            {SystemStream.parse(stream): identity for stream, identity in written.identities.items()},
            written.fingerprint,
            written.complete,
            written.updated_ms,
        )
