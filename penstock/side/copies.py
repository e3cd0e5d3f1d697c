"""Side stores on other hosts: backups and standbys.

A commit copies a store, and another host begins with the copy. Stores of tasks that run on other hosts are filled in
advance, so that a take-over reads only the rest.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from penstock.container.shared import EpochResources
from penstock.errors import PenstockError
from penstock.graph.keys import found_by_hash
from penstock.graph.stores import StoreSpec
from penstock.metrics.registry import MetricsRegistry
from penstock.side.engine import SideEngine
from penstock.side.entries import OwnEntries, SideEntries, SidePart, entries_of
from penstock.side.filler import FillSettings, SideFiller
from penstock.side.group import SideGroup, SideGroupContext
from penstock.side.replica import SideHomes, SideSources, discard, groups_of, parts_of, streams_of
from penstock.side.start import BACKUP
from penstock.state.backends.base import RestoreProgress
from penstock.state.restore import restore_store
from penstock.wire.protocol import OpenEpoch

logger = logging.getLogger(__name__)


class SideSource:
    """A side store of one task, as commits see it."""

    def __init__(self, engine: Callable[[], SideEngine]) -> None:
        """`engine` returns the engine of the newest content."""
        self._engine = engine
        self._last: tuple[int, int] | None = None

    def take_change(self) -> bool:
        """True if the store has changed since the last call."""
        last, self._last = self._last, self._engine().version
        return last != self._last

    def copy_to(self, directory: Path) -> None:
        """Copy the content of one moment, positions included, into a new directory."""
        self._engine().copy_to(directory)


class SideBackups:
    """Restores of one container's side stores in one epoch."""

    def __init__(self, resources: EpochResources, request: OpenEpoch, stores: Collection[str]) -> None:
        """`stores`: those that are backed up."""
        self._resources = resources
        self._stores = stores
        self._markers: Mapping[str, Mapping[str, Mapping[str, str]]] = request.markers

    def fill(self, part: SidePart) -> Callable[[Path], bool] | None:
        """A callback that fills an empty folder from the backup in the checkpoint, and returns False if it could
        not; None if there is no backup."""
        store, task = part.spec.name, part.task
        if task is None or store not in self._stores:
            return None
        markers = self._markers.get(str(task), {})
        if store not in markers.get(BACKUP, {}):
            return None

        def fill(directory: Path) -> bool:
            try:
                restored = restore_store(
                    lambda name: self._resources.backend_context(name, task, (store,)),
                    *(task, store, (BACKUP,), markers, directory),
                    lambda files: self._resources.folders.open_restored(store, files),
                    RestoreProgress(self._resources.leaving, lambda _: None),
                )
            except PenstockError as error:
                logger.warning("%s is not restored from its backup: %s", part.name, error)
                return False
            restored.engine.close()
            logger.info("%s was restored from its backup", part.name)
            return True

        return fill


def entries_for(
    resources: EpochResources, part: SidePart, engine: SideEngine, metrics: MetricsRegistry, stop: threading.Event
) -> SideEntries:
    entries = entries_of(part, engine, resources.package.settings.config, metrics, stop)
    return OwnEntries(part, entries) if part.spread else entries


_PAUSE_S = 60.0


class SideStandbys:
    """The side stores of the tasks that a container is a standby of, in the folders that a take-over opens on this
    host.

    They follow the streams by themselves. A folder that somebody on this host uses is left alone: it is kept up to
    date, and a task that comes here opens it. A failure is logged, tried again, and ends nothing.
    """

    def __init__(
        self,
        resources: EpochResources,
        homes: SideHomes,
        specs: Sequence[StoreSpec],
        tasks: Sequence[int],
        *,
        shared: bool,
    ) -> None:
        """`shared`: also fill the stores that all tasks of a container share."""
        self._resources = resources
        self._homes = homes
        self._tasks = tuple(tasks)
        self._shared = shared
        config = resources.package.config
        self._specs = tuple(s for s in specs if config.store(s.name).factory != "memory")
        self._settings = FillSettings(sys.maxsize, "continue", config.task.commit_ms)
        self._stopping = threading.Event()
        self._sources = SideSources(resources.package.systems)
        self.filler = self._new_filler()
        self._thread: threading.Thread | None = None
        self._begin_lock = threading.Lock()

    def begin(self) -> None:
        """Begin, if that has not been done. Called once all tasks of the job are caught up, and have opened their
        folders."""
        with self._begin_lock:
            if self._tasks and self._specs and self._thread is None and not self._stopping.is_set():
                name = f"side-standbys-{self._resources.epoch}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    @property
    def is_ready(self) -> bool:
        """True once the stores are nearly up to date: a task that moves here reads only the rest of the streams."""
        return not (self._tasks and self._specs) or self.filler.caught_up.is_set()

    def stop(self) -> None:
        """Stop, keep the progress, and release the folders."""
        with self._begin_lock:
            self._stopping.set()
            self.filler.stop()
        if self._thread is not None:
            self._thread.join()

    def _new_filler(self) -> SideFiller:
        return SideFiller(self._groups, self._settings, self._stopping, name="standbys of side inputs")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.filler.run()
                self.filler.close()
                if not self._stopping.wait(_PAUSE_S):
                    self.filler = self._new_filler()
        finally:
            self._sources.close()

    def _groups(self) -> list[SideGroup]:
        partitions = {stream: len(self._sources.ends(stream)) for stream in streams_of(self._specs)}
        package = self._resources.package
        by_hash = found_by_hash(package.topology.graph)
        parts = parts_of(self._specs, self._tasks, partitions, package.settings.tasks, by_hash)
        around = SideGroupContext(
            sources=self._sources,
            lock=threading.Lock(),
            stop=self._stopping,
            homes=self._homes,
            entries=self._entries,
            retire=discard,
        )
        own = [part for part in parts if (self._shared if part.task is None else self._homes.is_free(part))]
        return [SideGroup(group, partitions, around) for group in groups_of(own)]

    def _entries(self, part: SidePart, engine: SideEngine) -> SideEntries:
        metrics = self._resources.standby_metrics.of_task(min(self._tasks) if part.task is None else part.task)
        return entries_for(self._resources, part, engine, metrics, self._stopping)
