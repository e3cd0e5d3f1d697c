"""The changelog files backend (Spark's changelog checkpointing): one `.delta` per store and commit that changed it.

A version is (number, epoch). Version j is rebuilt from the deltas of its lineage, which the marker holds as runs
[(epoch, first, last), ...]: a discarded version of another epoch is never picked up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import orjson

from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, RetryableError
from penstock.metadata.paths import versioned_name
from penstock.state.backends.base import (
    AdminContext,
    BackendContext,
    Garbage,
    RestoreProgress,
    RestoreTarget,
    Retention,
    StateBackendAdmin,
    StateBackendFactory,
    StoreCopy,
    StoreMarker,
    TaskBackupManager,
    TaskRestoreManager,
)
from penstock.state.backends.bases import BaseBackup, Bases
from penstock.state.backends.delta import DeltaHeader, decode_delta, encode_delta
from penstock.state.backends.objects import put_once
from penstock.state.records import Changes

logger = logging.getLogger(__name__)

NAME = "changelog-files"
_MARKER_FORMAT = 1
_BASE_DELTA_BYTES = 16 << 20
"""Keys and values in one delta of a base."""
_BASE_RETRY_SECONDS = 1.0


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
        self._bases = Bases[ChangelogMarker]()
        self._taken: dict[str, Changes] = {}

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        for store in self._context.stores:
            if store in markers and self._is_whole(store, marker := ChangelogMarker.deserialize(markers[store])):
                self._markers[store] = marker
            elif checkpoint_id is None:
                self._markers[store] = ChangelogMarker()
            else:
                self._bases.need(store, BaseBackup(partial(self._upload_base, store), f"{store}-{self._context.task}"))

    def _is_whole(self, store: str, marker: ChangelogMarker) -> bool:
        """Whether every delta is there. Another backend may have restored the store: what is continued from a marker
        that lost a delta could never be restored."""
        context = self._context
        there = set(context.objects.list(context.paths.state_folder(store, context.task)))
        for version, epoch in marker.deltas():
            key = context.paths.delta(store, context.task, version, epoch)
            if key not in there:
                logger.warning("delta `%s` is missing: store `%s` is backed up from the ground", key, store)
                return False
        return True

    def wants_copy(self, store: str) -> bool:
        return self._bases.needs_copy(store)

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        self._taken = dict(changes)
        self._bases.add(changes)

    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        for store, marker, since in self._bases.advance(copies):
            self._markers[store], self._taken[store] = marker, since
        after = {
            store: self._upload_delta(store, marker, self._taken.get(store, {}))
            for store, marker in self._markers.items()
        }
        self._markers, self._taken = after, {}
        return {store: marker.serialize() for store, marker in after.items()}

    def close(self) -> None:
        self._bases.cancel()

    def _upload_base(self, store: str, copy: StoreCopy, cancelled: threading.Event) -> ChangelogMarker:
        """Everything in the copy as deltas that begin a history of their own."""
        marker, part, size = ChangelogMarker(), dict[bytes, bytes | None](), 0
        with closing(copy.entries()) as entries:
            for key, value in entries:
                part[key] = value
                size += len(key) + len(value)
                if size >= _BASE_DELTA_BYTES:
                    if cancelled.is_set():
                        raise RetryableError(f"the base of store `{store}` was cancelled")
                    marker, part, size = self._upload_base_delta(store, marker, part, cancelled), {}, 0
        return self._upload_base_delta(store, marker, part, cancelled)

    def _upload_base_delta(
        self, store: str, before: ChangelogMarker, part: Changes, cancelled: threading.Event
    ) -> ChangelogMarker:
        """Tries again here: a base that began anew, from a later copy, would find its names taken by other content."""
        while True:
            try:
                return self._upload_delta(store, before, part)
            except RetryableError as error:
                logger.warning("the base of store `%s` of task %d waits: %s", store, self._context.task, error)
                if cancelled.wait(_BASE_RETRY_SECONDS):
                    raise

    def _upload_delta(self, store: str, before: ChangelogMarker, changes: Changes) -> ChangelogMarker:
        if not changes:
            return before
        marker = before.next(self._context.epoch)
        key = self._context.paths.delta(store, self._context.task, marker.version, marker.epoch)
        data = encode_delta(DeltaHeader(marker.version, marker.epoch, marker.lineage), changes)
        put_once(self._context.objects, key, data, self._context.epoch)
        return marker


class ChangelogFilesRestore(TaskRestoreManager):
    """Replays deltas."""

    def __init__(self, context: BackendContext) -> None:
        self._context = context

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        wanted, engine = ChangelogMarker.deserialize(marker), target.engine()
        for version, epoch in wanted.deltas():
            if progress.cancelled.is_set():
                raise RetryableError(f"the restore of store `{store}` of task {self._context.task} was cancelled")
            key = self._context.paths.delta(store, self._context.task, version, epoch)
            try:
                data = self._context.objects.get(key)
            except NotFoundError as error:
                raise NotFoundError(
                    f"delta `{key}` is missing: version {wanted.version} of store `{store}` of task "
                    f"{self._context.task} cannot be rebuilt"
                ) from error
            header, changes = decode_delta(data, key)
            if (header.version, header.epoch) != (version, epoch):
                raise CorruptError(f"`{key}` holds version {header.version} of epoch {header.epoch}")
            engine.apply(changes)
            progress.report(len(data))


class ChangelogFilesAdmin(StateBackendAdmin):
    """Deletes deltas that no retained lineage has. Counts in runs of versions: lineages are long, and mostly alike."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        kept = _Runs(retention.retained)
        gone: dict[str, tuple[int, int]] = {}
        for (store, task, epoch), runs in _Runs(retention.left).runs.items():
            for first, last in runs:
                for version in kept.uncovered((store, task, epoch), first, last):
                    gone[self._context.paths.delta(store, task, version, epoch)] = (epoch, version)
        if retention.sweep:
            gone |= self._dead(kept, retention.epoch)
        names = tuple(sorted(gone, key=lambda name: (gone[name], name)))
        if not dry_run:
            for name in names:
                self._context.objects.delete(name)
        return Garbage(names)

    def _dead(self, kept: _Runs, before: int) -> dict[str, tuple[int, int]]:
        """Deltas of dead epochs that no retained lineage has: nobody writes them any more."""
        found = {}
        for store in self._context.stores:
            for name in self._context.objects.list(self._context.paths.store_folder(store)):
                versioned, task = versioned_name(name), name.split("/")[-2]
                if versioned is None or versioned[1] >= before or not task.isdigit():
                    continue
                version, epoch, _ = versioned
                if any(True for _ in kept.uncovered((store, int(task), epoch), version, version)):
                    found[name] = (epoch, version)
        return found


class _Runs:
    """The versions that markers are made of: (store, task, epoch) -> runs (first, last), in order and apart."""

    def __init__(self, markers: Sequence[StoreMarker]) -> None:
        self.runs: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        for own in markers:
            for epoch, first, last in ChangelogMarker.deserialize(own.marker).lineage:
                self.runs.setdefault((own.store, own.task, epoch), []).append((first, last))
        for place, runs in self.runs.items():
            merged: list[tuple[int, int]] = []
            for first, last in sorted(set(runs)):
                if merged and first <= merged[-1][1] + 1:
                    merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
                else:
                    merged.append((first, last))
            self.runs[place] = merged

    def uncovered(self, place: tuple[str, int, int], first: int, last: int) -> Iterator[int]:
        """The versions from `first` to `last` that are in none of the runs."""
        for start, end in self.runs.get(place, ()):
            yield from range(first, min(last + 1, start))
            first = max(first, end + 1)
        yield from range(first, last + 1)


class ChangelogFilesFactory(StateBackendFactory):
    """`changelog-files`."""

    @property
    def name(self) -> str:
        return NAME

    def backup_manager(self, context: BackendContext) -> ChangelogFilesBackup:
        return ChangelogFilesBackup(context)

    def restore_manager(self, context: BackendContext) -> ChangelogFilesRestore:
        return ChangelogFilesRestore(context)

    def admin(self, context: AdminContext) -> ChangelogFilesAdmin:
        return ChangelogFilesAdmin(context)
