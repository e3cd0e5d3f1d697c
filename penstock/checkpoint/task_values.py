"""The checkpoint of a task, and its written values.

All versions have a common interface (SEP-28, `Checkpoint`). The values are Samza's, one per task: V1 (Samza's
`CheckpointV1Serde`), and V2 (SEP-28; Samza's `CheckpointV2`, `JsonCheckpointV2Mixin`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import convert, decode, decoding, number
from penstock.checkpoint import streams
from penstock.checkpoint.record import CheckpointId
from penstock.errors import ConfigError, CorruptError

Markers: TypeAlias = Mapping[str, Mapping[str, str]]
"""Backend -> store -> marker."""
StoresOfChangelogs: TypeAlias = Mapping[SystemStreamPartition, str]
"""Each changelog partition of a task -> its store."""


class Checkpoint(Protocol):
    """One task's checkpoint, as Samza writes it. `CheckpointV1` and `CheckpointV2` are the versions there are; their
    `decode` reads what `export_checkpoint` gives. Nothing in it can be changed.

    Example:
        >>> from penstock.admin import Checkpoint, CheckpointV2
        >>> written = '{"checkpoint-id":"1614147487244-33577","input-offsets":{"local.trips.0":"2"},'
        >>> written += '"state-checkpoint-markers":{"blob":{"totals":"index-9"}},"version":2}'
        >>> checkpoint: Checkpoint = CheckpointV2.decode(written)
        >>> checkpoint.version, {str(ssp): offset for ssp, offset in checkpoint.offsets.items()}
        (2, {'local.trips.0': '2'})
    """

    @property
    def version(self) -> int:
        """1 or 2."""

    @property
    def offsets(self) -> Mapping[SystemStreamPartition, str | None]:
        """The last processed offsets. In version 1 the positions of changelogs are among them; version 2 has those of
        inputs only, and keeps the stores' markers apart."""

    def encode(self) -> str:
        """The JSON that Samza writes."""


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """The content of one task's checkpoint in any version: the last processed offset of each input (None: there is none
    yet), its markers under Penstock's names of the backends, and its id, which version 1 does not have."""

    offsets: Mapping[SystemStreamPartition, str | None]
    markers: Markers
    id: CheckpointId | None = None


class CheckpointFormat(ABC):
    """The written form of one version, and its limits. Pure."""

    version: int

    @abstractmethod
    def read(self, text: str | bytes, changelogs: StoresOfChangelogs) -> TaskCheckpoint:
        """The value's content. Raises CorruptError if it is none of this version."""

    @abstractmethod
    def write(self, checkpoint_id: CheckpointId, offsets: Mapping[SystemStreamPartition, str], markers: Markers) -> str:
        """The value that says this, as far as this version can.

        Raises:
            ConfigError: an offset or marker is not a text.
            CorruptError: a marker of the `changelog-stream` backend is not one.
        """

    def restorable(self, markers: Markers) -> frozenset[str]:
        """The stores of which a value of this version keeps a marker. Raises CorruptError as `write`."""
        return frozenset(store for stores in markers.values() for store in stores)

    def holds(self, backend: str) -> bool:
        """True if a value of this version can keep markers of the backend."""
        return True

    def with_streams(
        self, markers: Markers, better: Callable[[], Markers], identities: Mapping[SystemStream, str]
    ) -> Markers:
        """The markers of a value, with the identities of the streams that they are of, where a value of this version
        cannot say them.

        Args:
            markers: what `read` found.
            better: reads the markers of the same task in a version that can say more; empty if there is none.
            identities: those of streams in the rest of the checkpoint.
        """
        return markers

    def needed(self, text: str | bytes, changelogs: StoresOfChangelogs) -> Iterator[tuple[str, str, str]]:
        """Backend, store and marker: every marker of the value, and so all that must stay for it, whether or not the
        configuration still names its store's changelog. Raises CorruptError if the value is none of this version."""
        for backend, stores in self.read(text, changelogs).markers.items():
            yield from ((backend, store, marker) for store, marker in stores.items())


V1 = 1

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
        return V1

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

    version = V1

    def read(self, text: str | bytes, changelogs: StoresOfChangelogs) -> TaskCheckpoint:
        offsets: dict[SystemStreamPartition, str | None] = {}
        found: dict[str, str] = {}
        for ssp, offset in CheckpointV1.decode(text).offsets.items():
            if ssp not in changelogs:
                offsets[ssp] = offset
            elif offset is not None:
                found[changelogs[ssp]] = _marker(ssp, offset)
        return TaskCheckpoint(offsets, {streams.CHANGELOG_STREAM: found} if found else {})

    def write(self, checkpoint_id: CheckpointId, offsets: Mapping[SystemStreamPartition, str], markers: Markers) -> str:
        positions = {m.ssp: str(streams.ChangelogOffset(checkpoint_id, m.offset)) for m in _sayable(markers).values()}
        return CheckpointV1({**offsets, **positions}).encode()

    def restorable(self, markers: Markers) -> frozenset[str]:
        return frozenset(_sayable(markers))

    def holds(self, backend: str) -> bool:
        return backend == streams.CHANGELOG_STREAM

    def with_streams(
        self, markers: Markers, better: Callable[[], Markers], identities: Mapping[SystemStream, str]
    ) -> Markers:
        """A position does not say which stream it is of, if one was deleted and created again."""
        if not (own := streams.changelog_markers(markers)):
            return markers
        known = {each.ssp: each.stream_identity for each in streams.changelog_markers(better()).values()}
        found = {
            store: replace(each, stream_identity=known.get(each.ssp, identities.get(each.ssp.system_stream)))
            for store, each in own.items()
        }
        return {**markers, streams.CHANGELOG_STREAM: {store: each.serialize() for store, each in found.items()}}

    def needed(self, text: str | bytes, changelogs: StoresOfChangelogs) -> Iterator[tuple[str, str, str]]:
        """A position has a separate form, by which it is found where no configuration names its stream. Its store is
        then called by the stream's name."""
        for ssp, offset in CheckpointV1.decode(text).offsets.items():
            if offset is not None and (ssp in changelogs or streams.ChangelogOffset.is_one(offset)):
                yield streams.CHANGELOG_STREAM, changelogs.get(ssp, ssp.stream), _marker(ssp, offset)


def _marker(ssp: SystemStreamPartition, position: str) -> str:
    return streams.ChangelogStreamMarker(ssp, streams.ChangelogOffset.parse(position).offset).serialize()


def _sayable(markers: Markers) -> dict[str, streams.ChangelogStreamMarker]:
    """Store -> marker that version 1 can say. It has no generation: read back, one that does not begin with the
    stream would take in what came before it."""
    found = streams.changelog_markers(markers).items()
    return {store: marker for store, marker in found if marker.generation_offset in {None, "0"}}


V2 = 2

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
        return V2

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
            "version": V2,
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

    version = V2

    def read(self, text: str | bytes, changelogs: StoresOfChangelogs) -> TaskCheckpoint:
        value = CheckpointV2.decode(text)
        markers: dict[str, dict[str, str]] = {}
        for name, stores in value.markers.items():
            backend = streams.CHANGELOG_STREAM if name == streams.SAMZA_BACKEND else name
            markers.setdefault(backend, {}).update(stores)
        return TaskCheckpoint(value.input_offsets, markers, value.id)

    def write(self, checkpoint_id: CheckpointId, offsets: Mapping[SystemStreamPartition, str], markers: Markers) -> str:
        named = {
            streams.SAMZA_BACKEND if backend == streams.CHANGELOG_STREAM else backend: stores
            for backend, stores in markers.items()
        }
        return CheckpointV2(checkpoint_id, offsets, named).encode()
