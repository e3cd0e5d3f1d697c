"""The backup manager of the changelog files backend.

It writes a delta at each commit. Snapshots of a store are made in the background while commits go on.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.base.parallel import ByteBudget, InTurn, settle
from penstock.base.retry import Clock, Retry, retry
from penstock.checkpoint.record import CheckpointId
from penstock.config.settings import StateSettings
from penstock.errors import CorruptError, NotFoundError, PenstockError, RetryableError
from penstock.state.backends.base import BackendContext, StoreCopy, TaskBackupManager
from penstock.state.backends.base_backup import BaseBackup, Bases, release_if_cancelled
from penstock.state.backends.changelog_files import versions
from penstock.state.backends.content import ContentStore
from penstock.state.backends.objects import DirIndex, put_once
from penstock.state.engines.engine import Changes

logger = logging.getLogger(__name__)
SMALL_FILE_BYTES = 32 << 10
_JITTER = 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in a snapshot: files are cut into parts of at most `part_bytes`, and files of at most `small_file_bytes`
    lie in the snapshot's own file."""

    part_bytes: int
    small_file_bytes: int


@dataclass(slots=True)
class SnapshotPace:
    """Decides when the next snapshot is due: after so many deltas, or so long after the last one. Both vary at random
    by up to a quarter, so that tasks do not make theirs all at once."""

    settings: StateSettings
    clock: Clock
    deltas: int = 0
    """Deltas since the version of the last snapshot that was begun."""
    _jitter: float = 1.0
    _begun: float = 0.0

    def restart(self, deltas: int = 0) -> None:
        """Begin to count anew: a snapshot was begun, or a history is continued `deltas` after its last one."""
        self.deltas = deltas
        self._jitter = 1 + _JITTER * (2 * random.random() - 1)  # noqa: S311 - not a secret
        self._begun = self.clock.monotonic()

    @property
    def is_due(self) -> bool:
        """True if the coming commit, which changes the store, should be followed by a snapshot."""
        commits = self.settings.snapshot_interval_commits
        by_commits = commits > 0 and self.deltas + 1 >= round(commits * self._jitter)
        return by_commits or self.is_due_by_time

    @property
    def is_due_by_time(self) -> bool:
        """True if it is time for a snapshot of the commits since the last one, even if the store does not change."""
        seconds = self.settings.snapshot_interval_seconds
        return seconds > 0 and self.clock.monotonic() - self._begun >= seconds * self._jitter


class SnapshotKeeper:
    """Makes the snapshots of one store, one at a time. Used by the commit's thread; `make` runs on any one thread."""

    def __init__(self, context: BackendContext, store: str, budget: ByteBudget, limits: Limits) -> None:
        self._context = context
        self._store = store
        self._files = ContentStore(
            context, versions.shared_names(context.paths, store, context.task), budget, limits.part_bytes
        )
        self._small_file_bytes = limits.small_file_bytes
        self._last = DirIndex.of({})
        """The shared files of the newest snapshot that is whole."""
        self._maintenance = InTurn(context.pools.maintenance)
        self._made_ns = context.metrics.new_timer("backend.changelog-files", "store-snapshot-ns")
        group = f"store.{store}"
        self._version_shown = context.metrics.new_gauge(group, "changelog-version")
        self._snapshot_shown = context.metrics.new_gauge(group, "changelog-snapshot-version")
        self._running: list[Future[None]] = []
        self._made: list[versions.Version] = []
        self._newest: versions.Version | None = None
        self.pace = SnapshotPace(context.config.state, context.clock)

    def resume(self, marker: versions.ChangelogMarker, newest: versions.StoreSnapshot | None) -> None:
        """Continue from a marker. `newest`: its newest snapshot that is whole."""
        self._newest = newest.version if newest else None
        self._last = newest.shared if newest else DirIndex.of({})
        self._show(marker)
        self.pace.restart(sum(1 for _ in marker.deltas(newest.version[0] if newest else 0)))

    def committed(self, marker: versions.ChangelogMarker, before: versions.ChangelogMarker) -> None:
        self.pace.deltas += marker.version - before.version
        self._show(marker)

    def _show(self, marker: versions.ChangelogMarker) -> None:
        self._version_shown.set(marker.version)
        self._snapshot_shown.set(self._newest[0] if self._newest else 0)

    @property
    def is_busy(self) -> bool:
        return any(not future.done() for future in self._running)

    def is_behind(self, marker: versions.ChangelogMarker) -> bool:
        """True if a restore of the marker would replay deltas."""
        return (marker.version, marker.epoch) != self._newest and marker.version > 0

    def made(self) -> tuple[versions.Version, ...]:
        return tuple(self._made)

    def begin(
        self,
        checkpoint_id: CheckpointId,
        version: versions.Version,
        copy: StoreCopy,
        cancelled: threading.Event,
    ) -> None:
        """Make a snapshot of a version in the background, from a copy of exactly that version. If it fails, the next
        one comes in its turn: until then a restore replays more deltas."""
        self.pace.restart()
        copy.acquire()
        future = self._maintenance.submit(partial(self._make_or_tell, checkpoint_id, version, copy, cancelled))
        release_if_cancelled(future, copy)
        self._running = [*(future for future in self._running if not future.done()), future]

    def make(
        self, checkpoint_id: CheckpointId, version: versions.Version, directory: Path, cancelled: threading.Event
    ) -> None:
        """Make a snapshot now. A second call after an error makes the same one.

        Raises RetryableError once it is cancelled.
        """
        if version == self._newest:
            return
        small = {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.stat().st_size <= self._small_file_bytes
        }
        shared = self._files.put(checkpoint_id, directory, self._last, cancelled, leave_out=small.keys())
        snapshot = versions.StoreSnapshot(version, self._store, self._context.task, shared, small)
        key = self._context.paths.snapshot(self._store, self._context.task, *version)
        data = snapshot.encode()
        if not self._context.objects.put_if_absent(key, data) and (found := self._context.objects.get(key)) != data:
            # An earlier try got through without our knowing, from a copy that holds the same in other files.
            shared = versions.StoreSnapshot.decode(found, key).shared
        self._files.advance()
        self._last, self._newest = shared, version
        self._snapshot_shown.set(version[0])
        self._made = [*self._made, version][-versions.KEPT :]

    def _make_or_tell(
        self, checkpoint_id: CheckpointId, version: versions.Version, copy: StoreCopy, cancelled: threading.Event
    ) -> None:
        began, made = time.monotonic(), False
        try:
            self.make(checkpoint_id, version, copy.directory, cancelled)
            made = True
        except Exception as error:
            if isinstance(error, RetryableError) and cancelled.is_set():
                return
            tell = logger.warning if isinstance(error, PenstockError | OSError) else logger.exception
            tell(
                "no snapshot was made of version %d of store `%s` of task %d; the next one is made when it is due: %s",
                *(version[0], self._store, self._context.task, error),
            )
        finally:
            copy.release()
        if made:
            self._made_ns.update(round((time.monotonic() - began) * 1e9))
            logger.info(
                "snapshot of version %d of store `%s` of task %d made in %.1f s",
                *(version[0], self._store, self._context.task, time.monotonic() - began),
            )

    def finish(self, timeout_s: float) -> bool:
        """Wait for snapshots under way. False if they take longer."""
        deadline = time.monotonic() + timeout_s
        return all(settle(future, max(0.0, deadline - time.monotonic())) for future in self._running)

    def close(self) -> None:
        """Wait for snapshots under way, which must have been cancelled. A snapshot that has not begun never does."""
        for future in self._running:
            if not future.cancel():
                settle(future)


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
        self._markers: dict[str, versions.ChangelogMarker] = {}
        self._bases = Bases[versions.ChangelogMarker]()
        self._taken: dict[str, Changes] = {}
        self._made: dict[str, tuple[versions.Version, ...]] = {}
        """The snapshots that the markers of the commit under way may name."""
        self._due: set[str] = set()
        self._owed: set[str] = set()
        """The part of `_due` that the commit does not change, and for which the next start would replay deltas: at the
        last commit of a run, and where a snapshot is due by time."""

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        for store in self._context.stores:
            if checkpoint_id is None:
                self._markers[store] = versions.ChangelogMarker()
                self._keepers[store].resume(versions.ChangelogMarker(), None)
            elif store not in markers or not self._resume(store, versions.ChangelogMarker.parse(markers[store])):
                work = partial(self._make_base, store, checkpoint_id)
                self._bases.need(store, BaseBackup(work, self._context.pools.maintenance))

    def _resume(self, store: str, marker: versions.ChangelogMarker) -> bool:
        """Continue from a marker. False if the version cannot be rebuilt from the objects that exist: another backend
        may have restored the store, and a version that continued from such a marker could never be restored."""
        context = self._context
        keys = frozenset(context.objects.list(context.paths.state_folder(store, context.task)))
        found = versions.StoredVersions.among(keys)
        whole: list[versions.StoreSnapshot] = []
        missing: list[str] = []
        for way in versions.ways(marker, found):
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
            if len(whole) == versions.KEPT:
                break
        else:
            if not whole:
                logger.warning("store `%s` gets a new base: %s", store, "; ".join(missing))
                return False
        self._markers[store] = marker = marker.made_of(snapshot.version for snapshot in whole)
        self._keepers[store].resume(marker, whole[0] if whole else None)
        return True

    def _whole_snapshot(self, store: str, version: versions.Version, keys: frozenset[str]) -> versions.StoreSnapshot:
        """Raises CorruptError or NotFoundError unless the snapshot and all its files exist and are whole."""
        context = self._context
        key = context.paths.snapshot(store, context.task, *version)
        if key in context.damaged:  # a listing tells what is there, and only a restore what is damaged
            raise CorruptError(f"snapshot `{key}` could not be restored")
        snapshot = versions.StoreSnapshot.decode(context.objects.get(key), key)
        names = versions.shared_names(context.paths, store, context.task)
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
        self, checkpoint_id: CheckpointId, store: str, marker: versions.ChangelogMarker, copy: StoreCopy | None
    ) -> versions.ChangelogMarker:
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
            return versions.ChangelogMarker.of_snapshot(*version)
        after = marker.next(self._context.epoch).with_snapshots(self._made.get(store, ()))
        key = self._context.paths.delta(store, self._context.task, after.version, after.epoch)
        data = versions.encode_delta(versions.DeltaHeader(after.version, after.epoch, after.lineage), changes)
        put_once(self._context.objects, key, data, self._context.epoch)
        return after

    def _begin_snapshot(
        self, checkpoint_id: CheckpointId, store: str, marker: versions.ChangelogMarker, copy: StoreCopy
    ) -> None:
        if self._deltas and marker.epoch == self._context.epoch:
            version = (marker.version, marker.epoch)
            self._keepers[store].begin(checkpoint_id, version, copy, self._closing)

    def _make_base(
        self, store: str, checkpoint_id: CheckpointId, copy: StoreCopy, cancelled: threading.Event
    ) -> versions.ChangelogMarker:
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
        return versions.ChangelogMarker.of_snapshot(*version)
