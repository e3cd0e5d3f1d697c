"""The places of a container's side stores on its host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from penstock.base.clock import SYSTEM_CLOCK
from penstock.config.model import JobConfig
from penstock.graph.stores import SideInputs, StoreSpec
from penstock.side.fill.parts import SidePart
from penstock.side.fill.sources import SideStreamEnds
from penstock.side.store.folders import (
    OpenedSide,
    SideFolder,
    SideFolders,
    emptied,
    open_beside,
    open_side_engine,
    remove_others,
)
from penstock.side.store.reuse import ReuseTarget

logger = logging.getLogger(__name__)


class SideHomes:
    """The folders of one container in one epoch."""

    def __init__(
        self,
        config: JobConfig,
        folders: SideFolders,
        fingerprints: Mapping[str, str],
        fills: Callable[[SidePart], Callable[[Path], bool] | None],
    ) -> None:
        """
        Args:
            folders: those of the container in this epoch.
            fingerprints: by store, as the driver made them at the start.
            fills: for a part, a callback that fills a folder from its backup; None if it has no backup.
        """
        self._config = config
        self._fingerprints = fingerprints
        self._folders = folders
        self._fills = fills
        self._numbers = count(1)

    def open(self, part: SidePart, ends: SideStreamEnds) -> OpenedSide:
        wanted = ReuseTarget(
            self.fingerprint(part),
            {ssp: ends.offsets[ssp] for ssp in part.ssps},
            {ssp: ends.complete_from[ssp] for ssp in part.ssps},
            {each.stream: ends.identities[each.stream] for each in part.side.streams},
            ends.deletions_kept_ms,
        )
        return open_side_engine(
            self._config.store(part.spec.name),
            self._folders,
            part.task,
            wanted,
            now_ms=SYSTEM_CLOCK.now_ms(),
            max_age_ms=self._config.side_inputs.max_age_ms,
            fill=self._fills(part),
        )

    def is_free(self, part: SidePart) -> bool:
        """True if nobody on this host uses the folder of a task's part."""
        folder = SideFolder.lock_beside(self._folders.of_task(part.spec.name, part.task or 0))
        if folder is not None:
            folder.release()
        return folder is not None

    def emptied(self, part: SidePart, opened: OpenedSide) -> OpenedSide:
        return emptied(self._config.store(part.spec.name), opened)

    def beside(self, part: SidePart) -> OpenedSide:
        return open_beside(self._config.store(part.spec.name), self._folders, part.task, next(self._numbers))

    def remove_others(self, specs: Iterable[StoreSpec], tasks: int) -> None:
        """Remove the folders that other programs of the job have left on this host. Failures are logged."""
        kept = {
            spec.name: spec.side.broadcast
            for spec in specs
            if isinstance(spec.side, SideInputs) and self._config.store(spec.name).factory != "memory"
        }
        try:
            remove_others(self._folders, kept, tasks)
        except OSError as error:
            logger.warning("folders of side stores that the job no longer has were not removed: %s", error)

    def fingerprint(self, part: SidePart) -> str:
        """Identifies everything but the messages that the part's content is made from. If a task takes only its own
        keys, that includes the number of tasks."""
        found = self._fingerprints[part.spec.name]
        return f"{found}-of-{part.tasks}" if part.spread else found


def discard(opened: OpenedSide) -> None:
    """Close a store that is not used again, and remove it."""
    replace(opened, outlives=False).close()
