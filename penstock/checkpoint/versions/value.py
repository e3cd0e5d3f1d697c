"""The common interface of the versions of a task's checkpoint (SEP-28, `Checkpoint`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.id import CheckpointId

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
