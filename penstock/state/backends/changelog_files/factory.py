"""The changelog files backend (Spark's changelog checkpointing): one `.delta` per store and commit that changed it,
and now and then a snapshot in the background.

A restore takes a snapshot, and the deltas after it. The admin finds garbage among the versions, which it holds as
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from penstock.base.parallel import ByteBudget
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.job.paths import versioned_name
from penstock.state.backends import base
from penstock.state.backends.changelog_files import versions
from penstock.state.backends.changelog_files.backup import SMALL_FILE_BYTES, ChangelogFilesBackup, Limits
from penstock.state.backends.content import MAX_PART_BYTES, fetch_files
from penstock.state.backends.objects import ObjectBackendAdmin, content_of, epoch_of
from penstock.state.engines.engine import Changes, Engine, changes_bytes
from penstock.state.engines.open import make_empty


class Runs:
    """The versions that markers are made of: (store, task, epoch) -> runs (first, last), in order and disjoint."""

    def __init__(self, markers: Sequence[base.StoreMarker]) -> None:
        self.runs: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        for own in markers:
            for epoch, first, last in versions.ChangelogMarker.parse(own.marker).lineage:
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
        for start, end in self.runs.get(place, ()):
            yield from range(first, min(last + 1, start))
            first = max(first, end + 1)
        yield from range(first, last + 1)


class ChangelogFilesAdmin(ObjectBackendAdmin):
    """Deletes deltas and snapshots that no retained marker needs. Deltas are counted in runs of versions, because
    lineages may be long, and are mostly alike."""

    def plan(self, retention: base.Retention) -> set[str]:
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
            gone = gone.intersection(listing) | self._dead_deltas(listing, kept, retention.epoch)
        return gone | super().plan(replace(retention, left=tuple(_one_by_one(retention.left))))

    def _with_found(self, retained: Sequence[base.StoreMarker], listing: Sequence[str]) -> Iterator[base.StoreMarker]:
        """The markers, extended by later snapshots of their own versions."""
        by_folder: dict[str, list[str]] = {}
        for key in listing:
            by_folder.setdefault(key.rpartition("/")[0], []).append(key)
        for own in retained:
            marker = versions.ChangelogMarker.parse(own.marker)
            found = versions.StoredVersions.among(
                by_folder.get(self.context.paths.state_folder(own.store, own.task), ())
            )
            later = {each for each in found.snapshots if marker.has(each)} - set(marker.snapshots)
            named = sorted({*marker.snapshots, *(each for each in later if self._is_whole(own, each))}, reverse=True)
            yield replace(own, marker=replace(marker, snapshots=tuple(named)).serialize())

    def _is_whole(self, own: base.StoreMarker, version: tuple[int, int]) -> bool:
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

    def reach(self, markers: Sequence[base.StoreMarker]) -> set[str]:
        """The snapshots and their files. Deltas are counted elsewhere."""
        found: set[str] = set()
        for own in markers:
            for version in versions.ChangelogMarker.parse(own.marker).snapshots:
                found |= self._reach_one(own, *version)
        return found

    def needed(self, markers: Sequence[base.StoreMarker]) -> Collection[str]:
        deltas = (
            self.context.paths.delta(store, task, version, epoch)
            for (store, task, epoch), runs in Runs(markers).runs.items()
            for first, last in runs
            for version in range(first, last + 1)
        )
        return self.reach(markers).union(deltas)

    def _reach_one(self, own: base.StoreMarker, version: int, epoch: int) -> frozenset[str]:
        key = self.context.paths.snapshot(own.store, own.task, version, epoch)
        names = versions.shared_names(self.context.paths, own.store, own.task)

        def read() -> Iterator[str]:
            return map(names.key, versions.StoreSnapshot.decode(self.context.objects.get(key), key).shared.objects())

        return self.reach_of_index(key, read)

    def epoch_of(self, key: str) -> int | None:
        """None for a delta: `Runs` decides if that is dead."""
        named = versioned_name(key)
        if named is not None:
            return named[1] if named[2] == "zip" else None
        return epoch_of(key, versions.SHARED_FOLDER)

    def order(self, key: str) -> tuple[int, ...]:
        """Deltas first, oldest first; then files; then snapshots: as long as a snapshot exists its files can be
        found."""
        named = versioned_name(key)
        if named is None:
            return (1, epoch_of(key, versions.SHARED_FOLDER) or 0)
        version, epoch, kind = named
        return (0 if kind == "delta" else 2, epoch, version)


def _one_by_one(markers: Sequence[base.StoreMarker]) -> Iterator[base.StoreMarker]:
    """Split each marker into one for each snapshot: the others are found if one of them is gone."""
    for own in markers:
        for version, epoch in versions.ChangelogMarker.parse(own.marker).snapshots:
            yield replace(own, marker=versions.ChangelogMarker.of_snapshot(version, epoch).serialize())


_LOAD_BYTES = 64 << 20
"""Net changes of several deltas are gathered up to this size and loaded at once."""


class ChangelogFilesRestore(base.TaskRestoreManager):
    """Takes the newest snapshot that is whole, and replays exactly the deltas of the lineage after it."""

    advances_open = True

    def __init__(self, context: base.BackendContext, budget: ByteBudget) -> None:
        self._context = context
        self._budget = budget

    def restore(self, store: str, marker: str, target: base.RestoreTarget, progress: base.RestoreProgress) -> None:
        wanted = versions.ChangelogMarker.parse(marker)
        folder = self._context.paths.state_folder(store, self._context.task)
        # A snapshot that is not listed yet costs deltas; those it would save are there as long as it is named.
        known = versions.ways(wanted, versions.StoredVersions.among(self._context.objects.list(folder)))
        broken: list[PenstockError] = []
        for way in known:
            self._check(progress, store)
            try:
                engine = self._begin(store, way, target, progress)
            except (CorruptError, NotFoundError) as error:
                broken.append(error)
                if way.snapshot is not None:
                    self._context.damaged.add(self._context.paths.snapshot(store, self._context.task, *way.snapshot))
                if way is not known[-1]:
                    progress.note(f"{error}; an older one and more deltas were used instead")
                make_empty(target.directory)
                continue
            refused = partial(self._beyond_repair, store, wanted, way, broken)
            self._load(store, way.deltas(), engine, progress, refused)
            return
        lost = all(isinstance(error, NotFoundError) for error in broken)
        raise (NotFoundError if lost else CorruptError)(
            f"version {wanted.version} of store `{store}` of task {self._context.task} cannot be rebuilt: "
            f"{'; '.join(map(str, broken))}"
        )

    def advance(
        self, store: str, held: str, marker: str, target: base.RestoreTarget, progress: base.RestoreProgress
    ) -> bool:
        wanted = versions.ChangelogMarker.parse(marker)
        since = wanted.since(versions.ChangelogMarker.parse(held))
        if since is None:
            return False
        if since:
            self._load(store, since, target.engine(), progress)
        return True

    def _check(self, progress: base.RestoreProgress, store: str) -> None:
        if progress.cancelled.is_set():
            raise RetryableError(f"the restore of store `{store}` of task {self._context.task} was cancelled")

    def _begin(
        self, store: str, way: versions.Way, target: base.RestoreTarget, progress: base.RestoreProgress
    ) -> Engine:
        """The engine as of the way's snapshot. Raises CorruptError or NotFoundError if the snapshot is not whole."""
        if way.snapshot is None:
            return target.engine()
        context = self._context
        key = context.paths.snapshot(store, context.task, *way.snapshot)
        try:
            data = context.objects.get(key)
        except NotFoundError as error:
            raise NotFoundError(f"snapshot `{key}` is missing") from error
        snapshot = versions.StoreSnapshot.decode(data, key)
        if (snapshot.version, snapshot.store, snapshot.task) != (way.snapshot, store, context.task):
            raise CorruptError(f"`{key}` is a snapshot of version {snapshot.version} of store `{snapshot.store}`")
        for path, content in snapshot.small.items():
            local = target.directory / path
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(content)
        progress.report(len(data))
        names = versions.shared_names(context.paths, store, context.task)
        try:
            fetch_files(context, names, snapshot.shared, target.directory, self._budget, progress)
        except (CorruptError, NotFoundError) as error:
            raise type(error)(f"snapshot `{key}` is not complete: {error}") from error
        return target.engine()

    def _load(
        self,
        store: str,
        deltas: Iterable[versions.Version],
        engine: Engine,
        progress: base.RestoreProgress,
        refused: Callable[[versions.Version, PenstockError], PenstockError] = lambda _, error: error,
    ) -> None:
        """Load deltas in order. `refused` makes the error to raise where one is damaged or missing."""
        gathered: dict[bytes, bytes | None] = {}
        size = 0
        replayed = self._context.metrics.new_counter(f"store.{store}", "changelog-deltas-replayed")
        for delta in deltas:
            self._check(progress, store)
            try:
                read, changes = self._read(store, delta)
            except (CorruptError, NotFoundError) as error:
                raise refused(delta, error) from error
            replayed.inc()
            gathered.update(changes)
            size += changes_bytes(changes)
            progress.report(read)
            if size >= _LOAD_BYTES:
                engine.load(gathered)
                gathered, size = {}, 0
        engine.load(gathered)

    def _read(self, store: str, delta: versions.Version) -> tuple[int, Changes]:
        key = self._context.paths.delta(store, self._context.task, *delta)
        try:
            data = self._context.objects.get(key)
        except NotFoundError as error:
            raise NotFoundError(f"delta `{key}` is missing") from error
        header, changes = versions.decode_delta(data, key)
        if (header.version, header.epoch) != delta:
            raise CorruptError(f"`{key}` holds version {header.version} of epoch {header.epoch}")
        return len(data), changes

    def _beyond_repair(
        self,
        store: str,
        wanted: versions.ChangelogMarker,
        way: versions.Way,
        broken: Sequence[PenstockError],
        delta: versions.Version,
        error: PenstockError,
    ) -> PenstockError:
        first = way.snapshot[0] if way.snapshot else 0
        intact = f"versions {first} to {delta[0] - 1}" if delta[0] - 1 > first else f"version {first}"
        return type(error)(
            f"{'; '.join(map(str, (error, *broken)))}: version {wanted.version} of store `{store}` of task "
            f"{self._context.task} cannot be rebuilt. Before it {intact} can be"
        )


_KINDS = {"delta": "deltas", "zip": "snapshots"}
_IN_FLIGHT = ByteBudget(64 << 20)
"""The snapshots of all tasks of a process share it."""


class ChangelogFilesFactory(base.StateBackendFactory):
    """The factory of the backend `changelog-files`."""

    def __init__(
        self,
        budget: ByteBudget = _IN_FLIGHT,
        max_part_bytes: int = MAX_PART_BYTES,
        small_file_bytes: int = SMALL_FILE_BYTES,
    ) -> None:
        self._budget = budget
        self._limits = Limits(max_part_bytes, small_file_bytes)

    @property
    def name(self) -> str:
        return versions.NAME

    @property
    def kept_in(self) -> base.KeptIn:
        return "job-folder"

    def marker_text(self, marker: str) -> str:
        """The version and its epoch, `12.3`, as in the names of its files."""
        try:
            own = versions.ChangelogMarker.parse(marker)
        except (CorruptError, IncompatibleError):
            return super().marker_text(marker)
        return f"{own.version}.{own.epoch}" if own.version else base.EMPTY

    def kind_of(self, name: str) -> str | None:
        folder, _, last = name.rpartition("/")
        if folder == versions.SHARED_FOLDER:
            return "snapshot files" if content_of(last) else None
        versioned = None if folder else versioned_name(name)
        return None if versioned is None else _KINDS[versioned[2]]

    def backup_manager(self, context: base.BackendContext) -> ChangelogFilesBackup:
        return ChangelogFilesBackup(context, self._budget, self._limits)

    def restore_manager(self, context: base.BackendContext) -> ChangelogFilesRestore:
        return ChangelogFilesRestore(context, self._budget)

    def admin(self, context: base.AdminContext) -> ChangelogFilesAdmin:
        return ChangelogFilesAdmin(context)
