"""The changelog files backend (Spark's changelog checkpointing): one `.delta` per store and commit that changed it.

A version is (number, epoch). Version j is rebuilt from the deltas of its lineage, which the marker holds as runs
[(epoch, first, last), ...]: a discarded version of another epoch is never picked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.state.backends.base import (
    BackendContext,
    RestoreProgress,
    StateBackendFactory,
    TaskBackupManager,
    TaskRestoreManager,
)
from penstock.state.backends.delta import DeltaHeader, decode_delta, encode_delta
from penstock.state.engine import Changes, Engine

NAME = "changelog-files"
_MARKER_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ChangelogMarker:
    """Names one version of a store. Version 0, with an empty lineage, is the empty store."""

    version: int = 0
    lineage: tuple[tuple[int, int, int], ...] = ()

    @property
    def epoch(self) -> int:
        """The epoch that wrote the version; 0 for the empty store."""
        return self.lineage[-1][0] if self.lineage else 0

    def next(self, epoch: int) -> ChangelogMarker:
        """The version after this one, written in `epoch`."""
        version = self.version + 1
        if self.lineage and self.lineage[-1][0] == epoch:
            last = self.lineage[-1]
            return ChangelogMarker(version, (*self.lineage[:-1], (epoch, last[1], version)))
        return ChangelogMarker(version, (*self.lineage, (epoch, version, version)))

    def deltas(self) -> Iterator[tuple[int, int]]:
        """(version, epoch) of every delta the version is made of, oldest first."""
        for epoch, first, last in self.lineage:
            for version in range(first, last + 1):
                yield version, epoch

    def serialize(self) -> str:
        """The marker as it stands in a checkpoint."""
        fields = {"format": _MARKER_FORMAT, "version": self.version, "epoch": self.epoch, "lineage": self.lineage}
        return orjson.dumps(fields).decode()

    @classmethod
    def deserialize(cls, text: str) -> ChangelogMarker:
        """Read a marker. Raises CorruptError if it is not one, or its lineage does not lead to its version."""
        try:
            fields = orjson.loads(text)
            if fields["format"] > _MARKER_FORMAT:
                raise IncompatibleError(
                    f"marker `{text}` has format {fields['format']}; this Penstock reads up to {_MARKER_FORMAT}"
                )
            lineage = tuple((int(e), int(first), int(last)) for e, first, last in fields["lineage"])
            marker = cls(int(fields["version"]), lineage)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"`{text}` is not a marker of the {NAME} backend") from error
        expected = 1
        for _, first, last in lineage:
            if first != expected or last < first:
                raise CorruptError(f"the lineage of marker `{text}` has a gap before version {first}")
            expected = last + 1
        if marker.version != expected - 1:
            raise CorruptError(f"the lineage of marker `{text}` ends at version {expected - 1}")
        return marker


class ChangelogFilesBackup(TaskBackupManager):
    """Writes deltas."""

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._markers: dict[str, ChangelogMarker] = {}
        self._taken: dict[str, Changes] = {}

    def init(self, markers: Mapping[str, str]) -> None:
        self._markers = {
            store: ChangelogMarker.deserialize(markers[store]) if store in markers else ChangelogMarker()
            for store in self._context.stores
        }

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        self._taken = dict(changes)

    def upload(self, checkpoint_id: CheckpointId) -> Mapping[str, str]:
        after = {store: self._upload_store(store, self._taken.get(store, {})) for store in self._context.stores}
        self._markers, self._taken = after, {}
        return {store: marker.serialize() for store, marker in after.items()}

    def close(self) -> None:
        self._taken = {}

    def _upload_store(self, store: str, changes: Changes) -> ChangelogMarker:
        before = self._markers[store]
        if not changes:
            return before
        marker = before.next(self._context.epoch)
        key = self._context.paths.delta(store, self._context.task, marker.version, marker.epoch)
        data = encode_delta(DeltaHeader(marker.version, marker.epoch, marker.lineage), changes)
        if not self._context.objects.put_if_absent(key, data) and self._context.objects.get(key) != data:
            raise PenstockError(
                f"`{key}` exists with other content: two containers write as epoch {self._context.epoch}. Nothing "
                "was overwritten; stop every copy of the job and start one"
            )
        return marker


class ChangelogFilesRestore(TaskRestoreManager):
    """Replays deltas."""

    def __init__(self, context: BackendContext) -> None:
        self._context = context

    def restore(self, marker: str, store: str, engine: Engine, progress: RestoreProgress) -> None:
        target = ChangelogMarker.deserialize(marker)
        for version, epoch in target.deltas():
            if progress.cancelled.is_set():
                raise RetryableError(f"the restore of store `{store}` of task {self._context.task} was cancelled")
            key = self._context.paths.delta(store, self._context.task, version, epoch)
            try:
                data = self._context.objects.get(key)
            except NotFoundError as error:
                raise NotFoundError(
                    f"delta `{key}` is missing: version {target.version} of store `{store}` of task "
                    f"{self._context.task} cannot be rebuilt"
                ) from error
            header, changes = decode_delta(data, key)
            if (header.version, header.epoch) != (version, epoch):
                raise CorruptError(f"`{key}` holds version {header.version} of epoch {header.epoch}")
            engine.apply(changes)
            progress.report(len(data))

    def close(self) -> None:
        """Nothing is open."""


class ChangelogFilesFactory(StateBackendFactory):
    """`changelog-files`."""

    @property
    def name(self) -> str:
        return NAME

    def backup_manager(self, context: BackendContext) -> ChangelogFilesBackup:
        return ChangelogFilesBackup(context)

    def restore_manager(self, context: BackendContext) -> ChangelogFilesRestore:
        return ChangelogFilesRestore(context)
