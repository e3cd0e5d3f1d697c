"""Where a store's changelog stream stood at a checkpoint, in Samza's two written forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from msgspec import UNSET, Struct, UnsetType, structs

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import Count, decode
from penstock.checkpoint.id import CheckpointId
from penstock.errors import ConfigError, CorruptError, IncompatibleError

VERSION = 1

BACKEND = "changelog-stream"
"""The backend whose markers these are, by Penstock's name."""

SAMZA_BACKEND = "org.apache.samza.storage.KafkaChangelogStateBackendFactory"
"""The same backend by Samza's name, which checkpoints carry so that Samza finds the markers."""


@dataclass(frozen=True, slots=True)
class ChangelogStreamMarker:
    """A position in a changelog stream (Samza's `KafkaStateCheckpointMarker`, the marker in a V2 checkpoint).

    `offset` is that of the store's last record, None while there is none. `generation_offset` is the first offset of
    the store's present generation, which Samza does not have; None means that the stream is read from its beginning.
    `stream_identity` is that of the stream (`SystemAdmin.stream_identity`), None if Samza wrote the marker or the
    system has none.
    """

    ssp: SystemStreamPartition
    offset: str | None
    generation_offset: str | None = None
    stream_identity: str | None = None

    def serialize(self) -> str:
        """The JSON Samza writes, fields in its order; those that it does not have follow where there is a value."""
        document: dict[str, object] = {
            "version": VERSION,
            "changelog-ssp": {
                "system": self.ssp.system,
                "partition": self.ssp.partition,
                "stream": self.ssp.stream,
                "keyBucket": -1,
            },
            "changelog-offset": self.offset,
        }
        if self.generation_offset is not None:
            document["generation-offset"] = self.generation_offset
        if self.stream_identity is not None:
            document["stream-identity"] = self.stream_identity
        return orjson.dumps(document).decode()

    @classmethod
    def parse(cls, text: str) -> ChangelogStreamMarker:
        """Read what Samza or Penstock wrote; unknown fields and the key bucket are ignored.

        Raises:
            CorruptError: this is no such marker.
            IncompatibleError: it is of a newer version.
        """
        what = f"not a changelog stream marker, {text[:200]!r}"
        version = decode(_Version, text, what).version
        if version > VERSION:
            raise IncompatibleError(
                f"marker `{text}` has version {version}; this Penstock reads versions up to {VERSION}"
            )
        own = decode(_Fields, text, what)
        generation, identity = (
            None if each is UNSET else each for each in (own.generation_offset, own.stream_identity)
        )
        ssp = SystemStreamPartition(*structs.astuple(own.changelog_ssp))
        return cls(ssp, own.changelog_offset, generation, identity)


def changelog_markers(markers: Mapping[str, Mapping[str, str]]) -> dict[str, ChangelogStreamMarker]:
    """Store -> marker, of the markers of a task by backend and store. Raises as `ChangelogStreamMarker.parse`."""
    return {store: ChangelogStreamMarker.parse(text) for store, text in markers.get(BACKEND, {}).items()}


class _Version(Struct):
    version: Count


class _Ssp(Struct):
    system: str
    stream: str
    partition: Count


class _Fields(Struct, rename="kebab"):
    """The fields of a marker, the last two as Penstock writes them."""

    changelog_ssp: _Ssp
    changelog_offset: str | None
    generation_offset: str | UnsetType = UNSET
    stream_identity: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ChangelogOffset:
    """The same position in a V1 checkpoint, among the input offsets (Samza's `KafkaChangelogSSPOffset`)."""

    id: CheckpointId
    offset: str | None

    def __str__(self) -> str:
        return f"{self.id}:{'null' if self.offset is None else self.offset}"

    @classmethod
    def is_one(cls, text: str) -> bool:
        """True if the text has this form, which no offset of an input of Penstock has."""
        try:
            cls.parse(text)
        except CorruptError:
            return False
        return True

    @classmethod
    def parse(cls, text: str) -> ChangelogOffset:
        """Read `<checkpoint id>:<offset or null>`. Raises CorruptError for anything else."""
        checkpoint_id, _, offset = text.partition(":")
        if not offset or ":" in offset:
            raise CorruptError(f"`{text}` is not a changelog's position, which looks like `1614147487244-33577:17`")
        try:
            return cls(CheckpointId.parse(checkpoint_id), None if offset == "null" else offset)
        except ConfigError as error:
            raise CorruptError(f"`{text}` is not a changelog's position: {error}") from error
