"""Startpoints as Samza writes them: the JSON of a startpoint and a fan-out, and keys of its coordinator stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from penstock.api.ssp import SystemStreamPartition
from penstock.api.startpoint import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
    StartpointVisitor,
)
from penstock.documents import decoding, fields, integer, text
from penstock.errors import CorruptError

NAMESPACE = "samza-startpoint-v1"
"""Where requests lie in the metadata store; their type in Samza's coordinator stream."""
NAMESPACE_FAN_OUT = "samza-startpoint-v1-fan-out"
"""Where Samza keeps what it has given to a task and the task has not yet committed."""

_COORDINATOR_VERSION = 1
_EARLIEST = -(1 << 63)

_READERS: Mapping[str, Callable[[Mapping[str, Any], int], Startpoint]] = {
    "StartpointSpecific": lambda d, at: StartpointSpecific(d["specificOffset"], creation_timestamp=at),
    "StartpointTimestamp": lambda d, at: StartpointTimestamp(
        integer(d["timestampOffset"], _EARLIEST), creation_timestamp=at
    ),
    "StartpointOldest": lambda _, at: StartpointOldest(creation_timestamp=at),
    "StartpointUpcoming": lambda _, at: StartpointUpcoming(creation_timestamp=at),
}


class _Own(StartpointVisitor[None, dict[str, object]]):
    """The fields of each kind, besides those that all have."""

    def visit_specific(self, given: None, startpoint: StartpointSpecific) -> dict[str, object]:
        return {"specificOffset": startpoint.specific_offset}

    def visit_timestamp(self, given: None, startpoint: StartpointTimestamp) -> dict[str, object]:
        return {"timestampOffset": startpoint.timestamp_offset}

    def visit_oldest(self, given: None, startpoint: StartpointOldest) -> dict[str, object]:
        return {}

    def visit_upcoming(self, given: None, startpoint: StartpointUpcoming) -> dict[str, object]:
        return {}


def to_document(startpoint: Startpoint) -> dict[str, object]:
    """The startpoint as a JSON object, its fields in Samza's order."""
    common = {"@type": type(startpoint).__name__, "creationTimestamp": startpoint.creation_timestamp}
    return common | startpoint.apply(None, _Own())


def from_document(document: Any) -> Startpoint:
    """The inverse; unknown fields are ignored.

    Raises:
        CorruptError: it is no startpoint.
    """
    with decoding("not a startpoint"):
        read = _READERS[text(document["@type"])]
        return read(document, integer(document["creationTimestamp"], _EARLIEST))


def encode_startpoint(startpoint: Startpoint) -> str:
    """The bytes Samza writes, as a text."""
    return orjson.dumps(to_document(startpoint)).decode()


def decode_startpoint(data: str | bytes) -> Startpoint:
    """Read what Samza or Penstock wrote. Raises CorruptError if it is no startpoint."""
    return from_document(parse(data))


def decode_fan_out(data: str | bytes) -> dict[SystemStreamPartition, Startpoint]:
    """What Samza has given to one task. Stream names with dots come back whole. Raises CorruptError."""
    document = parse(data)
    with decoding("not a fan-out of startpoints"):
        given = fields(fields(document)["fanOuts"])
        return {SystemStreamPartition.parse(ssp): from_document(own) for ssp, own in given.items()}


def coordinator_key(namespace: str, key: str) -> str:
    """The key of a message in Samza's coordinator stream, which is compacted by these bytes."""
    return orjson.dumps([_COORDINATOR_VERSION, namespace, key]).decode()


def parse_coordinator_key(data: str) -> tuple[str, str]:
    """Namespace and key of a message of the coordinator stream. Raises CorruptError if it is no such key."""
    document = parse(data)
    fits = isinstance(document, list) and len(document) == 3 and all(isinstance(part, str) for part in document[1:])
    if not fits:
        raise CorruptError(f"not a key of a coordinator stream: {data[:200]!r}")
    return document[1], document[2]


def parse(data: str | bytes) -> Any:
    """Any JSON. Raises CorruptError if it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CorruptError(f"not JSON ({error}): {data[:200]!r}") from error
