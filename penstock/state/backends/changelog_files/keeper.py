"""Snapshots of one store, made in the background while commits go on."""

from __future__ import annotations

import logging
import random
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.base.clock import Clock
from penstock.base.parallel import ByteBudget, InTurn, settle
from penstock.checkpoint.id import CheckpointId
from penstock.config.settings import StateSettings
from penstock.errors import PenstockError, RetryableError
from penstock.state.backends.base import BackendContext, StoreCopy, release_if_cancelled
from penstock.state.backends.changelog_files.marker import KEPT, ChangelogMarker, Version
from penstock.state.backends.changelog_files.snapshot import StoreSnapshot, shared_names
from penstock.state.backends.content.index import DirIndex
from penstock.state.backends.content.store import ContentStore

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
        self._files = ContentStore(context, shared_names(context.paths, store, context.task), budget, limits.part_bytes)
        self._small_file_bytes = limits.small_file_bytes
        self._last = DirIndex.of({})
        """The shared files of the newest snapshot that is whole."""
        self._maintenance = InTurn(context.pools.maintenance)
        self._made_ns = context.metrics.new_timer("backend.changelog-files", "store-snapshot-ns")
        group = f"store.{store}"
        self._version_shown = context.metrics.new_gauge(group, "changelog-version")
        self._snapshot_shown = context.metrics.new_gauge(group, "changelog-snapshot-version")
        self._running: list[Future[None]] = []
        self._made: list[Version] = []
        self._newest: Version | None = None
        self.pace = SnapshotPace(context.config.state, context.clock)

    def resume(self, marker: ChangelogMarker, newest: StoreSnapshot | None) -> None:
        """Continue from a marker. `newest`: its newest snapshot that is whole."""
        self._newest = newest.version if newest else None
        self._last = newest.shared if newest else DirIndex.of({})
        self._show(marker)
        self.pace.restart(sum(1 for _ in marker.deltas(newest.version[0] if newest else 0)))

    def committed(self, marker: ChangelogMarker, before: ChangelogMarker) -> None:
        self.pace.deltas += marker.version - before.version
        self._show(marker)

    def _show(self, marker: ChangelogMarker) -> None:
        self._version_shown.set(marker.version)
        self._snapshot_shown.set(self._newest[0] if self._newest else 0)

    @property
    def is_busy(self) -> bool:
        return any(not future.done() for future in self._running)

    def is_behind(self, marker: ChangelogMarker) -> bool:
        """True if a restore of the marker would replay deltas."""
        return (marker.version, marker.epoch) != self._newest and marker.version > 0

    def made(self) -> tuple[Version, ...]:
        return tuple(self._made)

    def begin(
        self,
        checkpoint_id: CheckpointId,
        version: Version,
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

    def make(self, checkpoint_id: CheckpointId, version: Version, directory: Path, cancelled: threading.Event) -> None:
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
        snapshot = StoreSnapshot(version, self._store, self._context.task, shared, small)
        key = self._context.paths.snapshot(self._store, self._context.task, *version)
        data = snapshot.encode()
        if not self._context.objects.put_if_absent(key, data) and (found := self._context.objects.get(key)) != data:
            # An earlier try got through without our knowing, from a copy that holds the same in other files.
            shared = StoreSnapshot.decode(found, key).shared
        self._files.advance()
        self._last, self._newest = shared, version
        self._snapshot_shown.set(version[0])
        self._made = [*self._made, version][-KEPT:]

    def _make_or_tell(
        self, checkpoint_id: CheckpointId, version: Version, copy: StoreCopy, cancelled: threading.Event
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
