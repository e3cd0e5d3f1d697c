"""The admin of the changelog files backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.errors import CorruptError
from penstock.job.paths import versioned_name
from penstock.state.backends.base import Retention, StoreMarker
from penstock.state.backends.changelog_files.history import StoredVersions
from penstock.state.backends.changelog_files.marker import ChangelogMarker
from penstock.state.backends.changelog_files.runs import Runs
from penstock.state.backends.changelog_files.snapshot import SHARED_FOLDER, StoreSnapshot, shared_names
from penstock.state.backends.content.names import epoch_of
from penstock.state.backends.objects import ObjectBackendAdmin


class ChangelogFilesAdmin(ObjectBackendAdmin):
    """Deletes deltas and snapshots that no retained marker needs. Deltas are counted in runs of versions, because
    lineages may be long, and are mostly alike."""

    def plan(self, retention: Retention) -> set[str]:
        kept = Runs(retention.retained)
        gone = {
            self.context.paths.delta(store, task, version, epoch)
            for (store, task, epoch), runs in Runs(retention.left).runs.items()
            for first, last in runs
            for version in kept.uncovered((store, task, epoch), first, last)
        }
        if retention.sweep:
            listing = list(self._listing())
            retention = replace(retention, retained=tuple(self._with_found(retention.retained, listing)))
            gone |= self._dead_deltas(listing, kept, retention.epoch)
        return gone | super().plan(replace(retention, left=tuple(_one_by_one(retention.left))))

    def _with_found(self, retained: Sequence[StoreMarker], listing: Sequence[str]) -> Iterator[StoreMarker]:
        """The markers, extended by later snapshots of their own versions."""
        by_folder: dict[str, list[str]] = {}
        for key in listing:
            by_folder.setdefault(key.rpartition("/")[0], []).append(key)
        for own in retained:
            marker = ChangelogMarker.parse(own.marker)
            found = StoredVersions.among(by_folder.get(self.context.paths.state_folder(own.store, own.task), ()))
            later = {each for each in found.snapshots if marker.has(each)} - set(marker.snapshots)
            named = sorted({*marker.snapshots, *(each for each in later if self._is_whole(own, each))}, reverse=True)
            yield replace(own, marker=replace(marker, snapshots=tuple(named)).serialize())

    def _is_whole(self, own: StoreMarker, version: tuple[int, int]) -> bool:
        """False for a damaged snapshot, which restores nothing. Only for a snapshot that no marker names: a collection
        does not wait until it is repaired."""
        try:
            self._reach_one(own, *version)
        except CorruptError:
            return False
        return True

    def _dead_deltas(self, listing: Sequence[str], kept: Runs, before: int) -> set[str]:
        """Deltas of dead epochs that no retained lineage has. Nobody writes them any more."""
        found = set()
        for key in listing:
            named, (*_, store, task, _name) = versioned_name(key), key.split("/")
            if named is None or named[2] != "delta" or named[1] >= before or not task.isdigit():
                continue
            if any(True for _ in kept.uncovered((store, int(task), named[1]), named[0], named[0])):
                found.add(key)
        return found

    def reach(self, markers: Sequence[StoreMarker]) -> set[str]:
        """The snapshots and their files. Deltas are counted elsewhere."""
        found: set[str] = set()
        for own in markers:
            for version in ChangelogMarker.parse(own.marker).snapshots:
                found |= self._reach_one(own, *version)
        return found

    def _reach_one(self, own: StoreMarker, version: int, epoch: int) -> frozenset[str]:
        key = self.context.paths.snapshot(own.store, own.task, version, epoch)
        names = shared_names(self.context.paths, own.store, own.task)

        def read() -> Iterator[str]:
            return map(names.key, StoreSnapshot.decode(self.context.objects.get(key), key).shared.objects())

        return self.reach_of_index(key, read)

    def epoch_of(self, key: str) -> int | None:
        """None for a delta: `Runs` decides if that is dead."""
        named = versioned_name(key)
        if named is not None:
            return named[1] if named[2] == "zip" else None
        return epoch_of(key, SHARED_FOLDER)

    def order(self, key: str) -> tuple[int, ...]:
        """Deltas first, oldest first; then files; then snapshots: as long as a snapshot exists its files can be
        found."""
        named = versioned_name(key)
        if named is None:
            return (1, epoch_of(key, SHARED_FOLDER) or 0)
        version, epoch, kind = named
        return (0 if kind == "delta" else 2, epoch, version)


def _one_by_one(markers: Sequence[StoreMarker]) -> Iterator[StoreMarker]:
    """Split each marker into one for each snapshot: the others are found if one of them is gone."""
    for own in markers:
        for version, epoch in ChangelogMarker.parse(own.marker).snapshots:
            yield replace(own, marker=ChangelogMarker.of_snapshot(version, epoch).serialize())
