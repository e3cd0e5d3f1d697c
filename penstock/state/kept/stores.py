"""The stores that a container process keeps beside its tasks. They survive its epochs: a change of epochs is when they
are needed.

    <base>/.standbys/<incarnation>.lock    locked as long as the process lives
                    /<incarnation>/<store>-<task>-<number>/   one copy
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import RetryableError
from penstock.host.folder import HostFolder
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.engines.engine import Engine
from penstock.state.kept.store import KeptStore, StoreAtCheckpoint

logger = logging.getLogger(__name__)
_FOLDER = ".standbys"
_LOOK_SECONDS = 0.01


def remove_of_the_dead(base: Path) -> None:
    """Remove the copies of dead processes below the folder of the job's stores. Never raises: the next call tries
    again."""
    for path in (base / _FOLDER).glob("*.lock"):
        with suppress(OSError):
            if (dead := HostFolder.lock_beside(path.with_suffix(""))) is not None:
                dead.remove()


@dataclass(frozen=True, slots=True)
class TakenStore:
    """The open engine of a copy, at exactly the checkpoint, and its folder. `was_working`: a task of this process has
    worked with it."""

    engine: Engine
    directory: Path
    was_working: bool


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store of a task."""

    task: int
    store: str

    def __str__(self) -> str:
        return f"store `{self.store}` of task {self.task}"


class KeptStores:
    """All copies of one process. The dict is thread-safe; each copy is used by one thread at a time."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._copies: dict[StorePlace, KeptStore] = {}
        self._folder: HostFolder | None = None
        self._made = 0

    def open(self, base: Path) -> None:
        """Lock the folder of this process, below the folder of the job's stores."""
        while self._folder is None:
            self._folder = HostFolder.lock_beside(base / _FOLDER / self._incarnation)
            if self._folder is None:  # another process sees if its process is dead
                time.sleep(_LOOK_SECONDS)

    @property
    def is_empty(self) -> bool:
        return not self._copies

    def checkpoint_of(self, place: StorePlace) -> str | None:
        with self._lock:
            copy = self._copies.get(place)
        return None if copy is None else str(copy.checkpoint_id)

    def bring(
        self,
        place: StorePlace,
        wanted: StoreAtCheckpoint,
        contexts: Callable[[str], BackendContext],
        open_engine: Callable[[Path], Engine],
        progress: RestoreProgress,
        take_local: Callable[[Path], bool],
    ) -> None:
        """Bring the copy of a store to a checkpoint, by its tail or whole; `take_local` as in `KeptStore.made`.

        Raises the errors of `KeptStore.made`. The previous copy then stays, unless it is of no use.
        """
        with self._lock:
            held = self._copies.get(place)
        if held is not None and self._advanced(place, held, wanted, contexts, progress):
            return
        if self._folder is None:
            raise AssertionError("the copies of standbys have no folder yet")
        self._made += 1
        directory = self._folder.path / f"{place.store}-{place.task}-{self._made}"
        made = KeptStore.made(place.store, wanted, contexts, directory, open_engine, progress, take_local)
        with self._lock:
            held, self._copies[place] = self._copies.get(place), made
        if held is not None:
            held.remove()

    def keep(self, place: StorePlace, copy: KeptStore) -> None:
        """Keep a store that a task of this process has worked with."""
        with self._lock:
            held, self._copies[place] = self._copies.get(place), copy
        if held is not None:
            held.remove()

    def take(
        self,
        place: StorePlace,
        wanted: StoreAtCheckpoint,
        contexts: Callable[[str], BackendContext],
        progress: RestoreProgress,
    ) -> TakenStore | None:
        """Take over a store. A copy that is behind is advanced first. None if no copy can be brought there by its tail.

        Raises RetryableError if it was cancelled.
        """
        with self._lock:
            held = self._copies.get(place)
        if held is None or not held.is_there or not self._advanced(place, held, wanted, contexts, progress):
            return None
        try:
            engine = held.engine()
        except Exception as error:
            logger.warning("the standby of %s is not used: %s", place, error)
            self._drop(place)
            return None
        with self._lock:
            del self._copies[place]
        return TakenStore(engine, held.directory, held.was_working)

    def give_up(self, place: StorePlace) -> None:
        """Drop the store that a task of this process has worked with, if it is still here: it is not of use."""
        with self._lock:
            held = self._copies.get(place)
        if held is not None and held.was_working:
            self._drop(place)

    def drop_kept(self) -> None:
        """Drop what was kept and not taken: its tasks have moved. No standby can be made of it, because the container
        that has the task now removes the folder."""
        with self._lock:
            kept = [place for place, copy in self._copies.items() if copy.was_working]
        for place in kept:
            self._drop(place)

    def keep_only(self, tasks: Collection[int]) -> None:
        with self._lock:
            others = [place for place in self._copies if place.task not in tasks]
        for place in others:
            self._drop(place)

    def close(self) -> None:
        self.keep_only(())
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _advanced(
        self,
        place: StorePlace,
        held: KeptStore,
        wanted: StoreAtCheckpoint,
        contexts: Callable[[str], BackendContext],
        progress: RestoreProgress,
    ) -> bool:
        """True if the copy is at the checkpoint now. Drops a copy that is of no use any more."""
        try:
            return held.advance(wanted, contexts, progress)
        except RetryableError:
            raise
        except Exception as error:
            logger.warning("the standby of %s begins again: %s", place, error)
            self._drop(place)
            return False

    def _drop(self, place: StorePlace) -> None:
        with self._lock:
            copy = self._copies.pop(place, None)
        if copy is not None:
            copy.remove()
