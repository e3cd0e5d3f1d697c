"""Samza's Checkpoint V1 value, one per task (Samza's `CheckpointV1Serde`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import convert, decoding, number
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.versions import changelog_marker
from penstock.checkpoint.versions.changelog_marker import ChangelogOffset, ChangelogStreamMarker, changelog_markers
from penstock.checkpoint.versions.value import CheckpointFormat, Markers, StoresOfChangelogs, TaskCheckpoint
from penstock.errors import CorruptError

VERSION = 1

_MIN_FIELDS = 4


@dataclass(frozen=True, slots=True)
class CheckpointV1:
    """Last processed offsets of inputs and, mixed among them, positions of changelogs (`<id>:<offset>`).

    An offset may be None, for example that of an empty changelog.
    """

    offsets: Mapping[SystemStreamPartition, str | None]

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", MappingProxyType(dict(self.offsets)))

    @property
    def version(self) -> int:
        """1."""
        return VERSION

    def encode(self) -> str:
        """The JSON Samza writes; inner fields in Samza's order, the outer map in ascending order."""
        document = {
            f"SystemStreamPartition [{ssp.system}, {ssp.stream}, {ssp.partition}]": {
                "system": ssp.system,
                "partition": str(ssp.partition),
                "offset": offset,
                "stream": ssp.stream,
            }
            for ssp, offset in sorted(self.offsets.items(), key=lambda item: item[0])
        }
        return orjson.dumps(document).decode()

    @classmethod
    def decode(cls, text: str | bytes) -> CheckpointV1:
        """Read what Samza or Penstock wrote. The outer keys say nothing; every inner object has at least four fields.

        Args:
            text: the JSON.

        Raises:
            CorruptError: this is not a V1 value. (Samza logs and goes on without a checkpoint.)
        """
        with decoding(f"not a V1 checkpoint value, {text[:200]!r}"):
            return cls(dict(_entry(entry) for entry in convert(dict[str, dict[str, Any]], orjson.loads(text)).values()))


class _Entry(Struct):
    system: str
    stream: str
    partition: str
    offset: str | None = None


def _entry(own: Mapping[str, object]) -> tuple[SystemStreamPartition, str | None]:
    entry = convert(_Entry, own)
    if len(own) < _MIN_FIELDS:
        raise CorruptError(f"a V1 checkpoint has fewer than {_MIN_FIELDS} fields in {dict(own)!r}")
    return SystemStreamPartition(entry.system, entry.stream, number(entry.partition)), entry.offset


class FormatV1(CheckpointFormat):
    """Has no markers. Those of `changelog-stream` are positions among the offsets."""

    version = VERSION

    def read(self, text: str | bytes, changelogs: StoresOfChangelogs) -> TaskCheckpoint:
        offsets: dict[SystemStreamPartition, str | None] = {}
        found: dict[str, str] = {}
        for ssp, offset in CheckpointV1.decode(text).offsets.items():
            if ssp not in changelogs:
                offsets[ssp] = offset
            elif offset is not None:
                found[changelogs[ssp]] = _marker(ssp, offset)
        return TaskCheckpoint(offsets, {changelog_marker.BACKEND: found} if found else {})

    def write(self, checkpoint_id: CheckpointId, offsets: Mapping[SystemStreamPartition, str], markers: Markers) -> str:
        positions = {m.ssp: str(ChangelogOffset(checkpoint_id, m.offset)) for m in _sayable(markers).values()}
        return CheckpointV1({**offsets, **positions}).encode()

    def restorable(self, markers: Markers) -> frozenset[str]:
        return frozenset(_sayable(markers))

    def holds(self, backend: str) -> bool:
        return backend == changelog_marker.BACKEND

    def with_streams(
        self, markers: Markers, better: Callable[[], Markers], identities: Mapping[SystemStream, str]
    ) -> Markers:
        """A position does not say which stream it is of, if one was deleted and created again."""
        if not (own := changelog_markers(markers)):
            return markers
        known = {each.ssp: each.stream_identity for each in changelog_markers(better()).values()}
        found = {
            store: replace(each, stream_identity=known.get(each.ssp, identities.get(each.ssp.system_stream)))
            for store, each in own.items()
        }
        return {**markers, changelog_marker.BACKEND: {store: each.serialize() for store, each in found.items()}}

    def needed(self, text: str | bytes, changelogs: StoresOfChangelogs) -> Iterator[tuple[str, str, str]]:
        """A position has a separate form, by which it is found where no configuration names its stream. Its store is
        then called by the stream's name."""
        for ssp, offset in CheckpointV1.decode(text).offsets.items():
            if offset is not None and (ssp in changelogs or ChangelogOffset.is_one(offset)):
                yield changelog_marker.BACKEND, changelogs.get(ssp, ssp.stream), _marker(ssp, offset)


def _marker(ssp: SystemStreamPartition, position: str) -> str:
    return ChangelogStreamMarker(ssp, ChangelogOffset.parse(position).offset).serialize()


def _sayable(markers: Markers) -> dict[str, ChangelogStreamMarker]:
    """Store -> marker that version 1 can say. It has no generation: read back, one that does not begin with the
    stream would take in what came before it."""
    found = changelog_markers(markers).items()
    return {store: marker for store, marker in found if marker.generation_offset in {None, "0"}}
