"""Startpoints as Samza writes them: the JSON of a startpoint and a fan-out."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import orjson
from msgspec import Meta, Struct, field

from penstock.api.ssp import SystemStreamPartition
from penstock.api.startpoint import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)
from penstock.base.documents import decode, decoding
from penstock.errors import CorruptError

NAMESPACE = "samza-startpoint-v1"
"""The namespace of requests in the metadata store; their type in Samza's coordinator stream."""
NAMESPACE_FAN_OUT = "samza-startpoint-v1-fan-out"
"""Where Samza keeps what it has given to a task and the task has not yet committed."""

_Millis: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class WrittenStartpoint(Struct, rename="camel"):
    """The fields of all kinds."""

    kind: Literal["StartpointSpecific", "StartpointTimestamp", "StartpointOldest", "StartpointUpcoming"] = field(
        name="@type"
    )
    creation_timestamp: _Millis
    specific_offset: str | None = None
    timestamp_offset: _Millis | None = None

    def startpoint(self) -> Startpoint:
        """The startpoint. Raises CorruptError if the field of its kind is missing, ConfigError for an empty offset."""
        at = self.creation_timestamp
        match self.kind, self.specific_offset, self.timestamp_offset:
            case "StartpointSpecific", str(offset), _:
                return StartpointSpecific(offset, creation_timestamp=at)
            case "StartpointTimestamp", _, int(timestamp):
                return StartpointTimestamp(timestamp, creation_timestamp=at)
            case "StartpointOldest", _, _:
                return StartpointOldest(creation_timestamp=at)
            case "StartpointUpcoming", _, _:
                return StartpointUpcoming(creation_timestamp=at)
        raise CorruptError(f"a {self.kind} lacks the field that names its position")


class _FanOut(Struct, rename="camel"):
    fan_outs: dict[str, WrittenStartpoint]


def to_document(startpoint: Startpoint) -> dict[str, object]:
    """The startpoint as a JSON object, its fields in Samza's order."""
    common = {"@type": type(startpoint).__name__, "creationTimestamp": startpoint.creation_timestamp}
    match startpoint:
        case StartpointSpecific():
            return common | {"specificOffset": startpoint.specific_offset}
        case StartpointTimestamp():
            return common | {"timestampOffset": startpoint.timestamp_offset}
    return common


def encode_startpoint(startpoint: Startpoint) -> str:
    """The bytes Samza writes, as a text."""
    return orjson.dumps(to_document(startpoint)).decode()


def decode_startpoint(data: str | bytes) -> Startpoint:
    """Read what Samza or Penstock wrote. Raises CorruptError if it is no startpoint."""
    what = f"not a startpoint, {data[:200]!r}"
    with decoding(what):
        return decode(WrittenStartpoint, data, what).startpoint()


def decode_fan_out(data: str | bytes) -> dict[SystemStreamPartition, Startpoint]:
    """The startpoints that Samza has given to one task. Stream names with dots come back whole. Raises CorruptError."""
    what = f"not a fan-out of startpoints, {data[:200]!r}"
    with decoding(what):
        given = decode(_FanOut, data, what).fan_outs
        return {SystemStreamPartition.parse(ssp): own.startpoint() for ssp, own in given.items()}
