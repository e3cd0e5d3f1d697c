"""Samza's Checkpoint V2 value, one per task (SEP-28; Samza's `CheckpointV2`, `JsonCheckpointV2Mixin`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import decode, decoding
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.versions import changelog_marker
from penstock.checkpoint.versions.value import CheckpointFormat, Markers, StoresOfChangelogs, TaskCheckpoint
from penstock.errors import ConfigError, CorruptError

VERSION = 2

_NO_KEY_BUCKET = ".-1"


@dataclass(frozen=True, slots=True)
class CheckpointV2:
    """One task's progress: the last processed offset of every input, and the marker of every store.

    `markers` maps the state backend factory's name to store to marker. A marker means that this backend alone can
    rebuild the store.
    """

    id: CheckpointId
    input_offsets: Mapping[SystemStreamPartition, str]
    markers: Mapping[str, Mapping[str, str]]

    def __post_init__(self) -> None:
        markers = {backend: MappingProxyType(dict(stores)) for backend, stores in self.markers.items()}
        object.__setattr__(self, "input_offsets", MappingProxyType(dict(self.input_offsets)))
        object.__setattr__(self, "markers", MappingProxyType(markers))

    @property
    def version(self) -> int:
        """2."""
        return VERSION

    @property
    def offsets(self) -> Mapping[SystemStreamPartition, str]:
        """The last processed offsets of inputs."""
        return self.input_offsets

    def encode(self) -> str:
        """The JSON Samza's `CheckpointV2Serde` writes, its maps in ascending order.

        Raises:
            ConfigError: an offset or marker is not a string; Samza's own type refuses null here too.
        """
        for what, value in (*self.input_offsets.items(), *_flat(self.markers)):
            if not isinstance(value, str):
                raise ConfigError(f"checkpoint {self.id}: the value of `{what}` is {value!r}, a string is needed")
        offsets = sorted(self.input_offsets.items())
        document = {
            "checkpoint-id": str(self.id),
            "input-offsets": {str(ssp): offset for ssp, offset in offsets},
            "state-checkpoint-markers": {
                factory: dict(sorted(stores.items())) for factory, stores in sorted(self.markers.items())
            },
            "version": VERSION,
        }
        return orjson.dumps(document).decode()

    @classmethod
    def decode(cls, text: str | bytes) -> CheckpointV2:
        """Read what Samza or Penstock wrote; unknown properties are ignored, as Samza does.

        Stream names with dots come back whole (Samza itself loses them): the first and the last dot of
        `system.stream.partition` separate. The key bucket `-1` that some Samza versions append is dropped.

        Args:
            text: the JSON.

        Raises:
            CorruptError: this is not a V2 value, or one of its maps or values is null.
        """
        what = f"not a V2 checkpoint value, {text[:200]!r}"
        with decoding(what):
            own = decode(_Fields, text, what)
            offsets, markers = own.input_offsets, own.state_checkpoint_markers
            for what, value in (*offsets.items(), *_flat(markers)):
                if not isinstance(value, str):
                    raise CorruptError(f"a V2 checkpoint's value of `{what}` is {value!r}, expected a string")
            return cls(
                CheckpointId.parse(own.checkpoint_id),
                {
                    SystemStreamPartition.parse(key.removesuffix(_NO_KEY_BUCKET)): value
                    for key, value in offsets.items()
                },
                markers,
            )


class _Fields(Struct, rename="kebab"):
    """The fields of a value. Errors about an offset or a marker name its key, so their types are looked at later."""

    checkpoint_id: str
    input_offsets: dict[str, Any]
    state_checkpoint_markers: dict[str, dict[str, Any]]


def _flat(markers: Mapping[str, Mapping[str, str]]) -> list[tuple[str, object]]:
    return [(f"{factory}/{store}", marker) for factory, stores in markers.items() for store, marker in stores.items()]


class FormatV2(CheckpointFormat):
    """Has every marker. Those of `changelog-stream` are under Samza's name of it."""

    version = VERSION

    def read(self, text: str | bytes, changelogs: StoresOfChangelogs) -> TaskCheckpoint:
        value = CheckpointV2.decode(text)
        markers: dict[str, dict[str, str]] = {}
        for name, stores in value.markers.items():
            backend = changelog_marker.BACKEND if name == changelog_marker.SAMZA_BACKEND else name
            markers.setdefault(backend, {}).update(stores)
        return TaskCheckpoint(value.input_offsets, markers, value.id)

    def write(self, checkpoint_id: CheckpointId, offsets: Mapping[SystemStreamPartition, str], markers: Markers) -> str:
        named = {
            changelog_marker.SAMZA_BACKEND if backend == changelog_marker.BACKEND else backend: stores
            for backend, stores in markers.items()
        }
        return CheckpointV2(checkpoint_id, offsets, named).encode()
