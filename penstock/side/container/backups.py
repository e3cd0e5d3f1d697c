"""Backups of side stores: a commit copies a store, and another host begins with the copy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from penstock.container.shared.resources import EpochResources
from penstock.errors import PenstockError
from penstock.side.fill.parts import SidePart
from penstock.side.plan import BACKUP
from penstock.side.store.engine import SideEngine
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
