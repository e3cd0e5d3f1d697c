"""The backup manager of the changelog files backend."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from functools import partial

from penstock.base.parallel import ByteBudget
from penstock.base.retry import Retry, retry
from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError, NotFoundError
from penstock.state.backends.base import BackendContext, StoreCopy, TaskBackupManager
from penstock.state.backends.base_backup import BaseBackup, Bases
from penstock.state.backends.changelog_files.delta import DeltaHeader, encode_delta
from penstock.state.backends.changelog_files.history import StoredVersions, ways
from penstock.state.backends.changelog_files.keeper import Limits, SnapshotKeeper
from penstock.state.backends.changelog_files.marker import KEPT, ChangelogMarker, Version
from penstock.state.backends.changelog_files.snapshot import StoreSnapshot, shared_names
from penstock.state.backends.objects import put_once
from penstock.state.records import Changes

logger = logging.getLogger(__name__)
_BASE = Retry(pause_s=1.0, growth=1.0)


class ChangelogFilesBackup(TaskBackupManager):
    """Writes a delta for each commit that changed a store, and now and then a snapshot in the background.

    With `state.changelog.enabled=false` it writes no delta: each commit that changed a store makes a snapshot.
    """

    def __init__(self, context: BackendContext, budget: ByteBudget, limits: Limits) -> None:
        self._context = context
        self._deltas = context.config.state.changelog_enabled
        self._closing = threading.Event()
        self._keepers = {store: SnapshotKeeper(context, store, budget, limits) for store in context.stores}
        self._markers: dict[str, ChangelogMarker] = {}
        self._bases = Bases[ChangelogMarker]()
        self._taken: dict[str, Changes] = {}
        self._made: dict[str, tuple[Version, ...]] = {}
        """The snapshots that the markers of the commit under way may name."""
        self._due: set[str] = set()
        self._owed: set[str] = set()
        """The part of `_due` that the commit does not change, and for which the next start would replay deltas: at the
        last commit of a run, and where a snapshot is due by time."""

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        for store in self._context.stores:
            if checkpoint_id is None:
                self._markers[store] = ChangelogMarker()
                self._keepers[store].resume(ChangelogMarker(), None)
            elif store not in markers or not self._resume(store, ChangelogMarker.parse(markers[store])):
                work = partial(self._make_base, store, checkpoint_id)
                self._bases.need(store, BaseBackup(work, self._context.pools.maintenance))

    def _resume(self, store: str, marker: ChangelogMarker) -> bool:
        """Continue from a marker. False if the version cannot be rebuilt from the objects that exist: another backend
        may have restored the store, and a version that continued from such a marker could never be restored."""
        context = self._context
        keys = frozenset(context.objects.list(context.paths.state_folder(store, context.task)))
        found = StoredVersions.among(keys)
        whole: list[StoreSnapshot] = []
        missing: list[str] = []
        for way in ways(marker, found):
            if (gap := way.missing(found)) is not None:
                missing.append(context.paths.delta(store, context.task, *gap))
            try:
                snapshot = self._whole_snapshot(store, way.snapshot, keys) if way.snapshot else None
            except (CorruptError, NotFoundError) as error:
                missing.append(str(error))
                continue
            if gap is not None:
                continue
            if snapshot is None:
                break  # from the empty store: there is no older way
            whole.append(snapshot)
            if len(whole) == KEPT:
                break
        else:
            if not whole:
                logger.warning("store `%s` gets a new base: %s", store, "; ".join(missing))
                return False
        self._markers[store] = marker = marker.made_of(snapshot.version for snapshot in whole)
        self._keepers[store].resume(marker, whole[0] if whole else None)
        return True

    def _whole_snapshot(self, store: str, version: Version, keys: frozenset[str]) -> StoreSnapshot:
        """Raises CorruptError or NotFoundError unless the snapshot and all its files exist and are whole."""
        context = self._context
        key = context.paths.snapshot(store, context.task, *version)
        if key in context.damaged:  # a listing tells what is there, and only a restore what is damaged
            raise CorruptError(f"snapshot `{key}` could not be restored")
        snapshot = StoreSnapshot.decode(context.objects.get(key), key)
        names = shared_names(context.paths, store, context.task)
        for file in map(names.key, snapshot.shared.objects()):
            if file not in keys:
                raise NotFoundError(f"`{file}` of snapshot `{key}` is missing")
        return snapshot

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        if store not in self._markers:
            return self._bases.needs_copy(store)
        keeper = self._keepers[store]
        if not changed and (self._is_due_by_time(store) or (last and self._is_behind(store))):
            self._owed.add(store)
        elif not changed or not (last or not self._deltas or (keeper.pace.is_due and not keeper.is_busy)):
            return False
        self._due.add(store)
        return True

    @property
    def wants_commit(self) -> bool:
        return any(map(self._is_due_by_time, list(self._markers)))

    def _is_due_by_time(self, store: str) -> bool:
        keeper = self._keepers[store]
        return keeper.pace.is_due_by_time and not keeper.is_busy and self._is_behind(store)

    def _is_behind(self, store: str) -> bool:
        return self._deltas and self._keepers[store].is_behind(self._markers[store])

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        self._taken = dict(changes)
        self._bases.add(changes)
        self._made = {store: keeper.made() for store, keeper in self._keepers.items()}

    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        for store, marker, since in self._bases.advance(copies):
            self._markers[store], self._taken[store] = marker, since
            self._keepers[store].pace.restart()
        after = {
            store: self._upload_store(checkpoint_id, store, marker, copies.get(store))
            for store, marker in self._markers.items()
        }
        # Only now, so that a second try after an error does all of it again, with the same effect.
        for store, marker in after.items():
            self._keepers[store].committed(marker, self._markers[store])
        for store in self._due & copies.keys():
            self._begin_snapshot(checkpoint_id, store, after[store], copies[store])
        self._markers, self._taken = after, {}
        self._due.clear()
        self._owed.clear()
        return {store: marker.serialize() for store, marker in after.items()}

    def close(self) -> None:
        self._closing.set()
        self._bases.cancel()
        for keeper in self._keepers.values():
            keeper.close()

    def finish(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for store, keeper in self._keepers.items():
            if not keeper.finish(max(0.0, deadline - time.monotonic())):
                logger.warning(
                    "the last snapshot of store `%s` of task %d was not complete after %.0f s (task.shutdown.ms): the "
                    "next start replays deltas",
                    *(store, self._context.task, timeout_s),
                )

    def _upload_store(
        self, checkpoint_id: CheckpointId, store: str, marker: ChangelogMarker, copy: StoreCopy | None
    ) -> ChangelogMarker:
        self._context.check_leaving()
        changes = self._taken.get(store, {})
        # A version that an older epoch wrote has no snapshot from here: its name would say that nobody writes it any
        # more, and a collection would take it. So a commit that owes a snapshot and changed nothing makes a version.
        heir = self._deltas and store in self._owed and marker.epoch != self._context.epoch
        if not changes and not heir:
            return marker.with_snapshots(self._made.get(store, ()))
        # A base that has just been completed comes without a copy of this commit: its first change is a delta.
        if not self._deltas and copy is not None:
            version = (marker.version + 1, self._context.epoch)
            self._keepers[store].make(checkpoint_id, version, copy.directory, self._context.leaving)
            return ChangelogMarker.of_snapshot(*version)
        after = marker.next(self._context.epoch).with_snapshots(self._made.get(store, ()))
        key = self._context.paths.delta(store, self._context.task, after.version, after.epoch)
        data = encode_delta(DeltaHeader(after.version, after.epoch, after.lineage), changes)
        put_once(self._context.objects, key, data, self._context.epoch)
        return after

    def _begin_snapshot(
        self, checkpoint_id: CheckpointId, store: str, marker: ChangelogMarker, copy: StoreCopy
    ) -> None:
        if self._deltas and marker.epoch == self._context.epoch:
            version = (marker.version, marker.epoch)
            self._keepers[store].begin(checkpoint_id, version, copy, self._closing)

    def _make_base(
        self, store: str, checkpoint_id: CheckpointId, copy: StoreCopy, cancelled: threading.Event
    ) -> ChangelogMarker:
        """Write the whole copy as a snapshot that begins a new history. It is named after the checkpoint that the job
        continues from, which wrote nothing in this epoch.

        Retries here: a base that began again, from a later copy, would find its name taken by other content.
        """
        version = (1, self._context.epoch)

        def tell(error: Exception) -> None:
            logger.warning("the base of store `%s` of task %d waits: %s", store, self._context.task, error)

        retry(
            lambda: self._keepers[store].make(checkpoint_id, version, copy.directory, cancelled),
            _BASE,
            interrupt=cancelled,
            on_failure=tell,
        )
        return ChangelogMarker.of_snapshot(*version)
