"""Stores that a process keeps at a checkpoint while no task works with them: those of standbys, and those that a task
left. Each was restored from any backend, or left by a task.

A container process keeps them beside its tasks. They survive its epochs: a change of epochs is when they are needed.

    <base>/.standbys/<incarnation>.lock    locked as long as the process lives
                    /<incarnation>/<store>-<task>-<number>/   one copy
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.base.files import explained
from penstock.checkpoint.record import CheckpointId
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.host.process import HostFolder
from penstock.state.backends.base import BackendContext, RestoreProgress, RestoreTarget, TaskRestoreManager
from penstock.state.backends.registry import backend_factory
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import make_empty
from penstock.state.restore import LazyEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreAtCheckpoint:
    """A store at a checkpoint: its marker from each backend that has one, in the order of preference."""

    checkpoint_id: CheckpointId
    markers: Mapping[str, str]

    @classmethod
    def of(
        cls,
        checkpoint_id: CheckpointId,
        store: str,
        order: Sequence[str],
        markers: Mapping[str, Mapping[str, str]],
    ) -> StoreAtCheckpoint:
        """`order`: the backends, from `restore_order`. `markers`: by backend and store."""
        own = {name: markers[name][store] for name in order if store in markers.get(name, {})}
        return cls(checkpoint_id, own)


class KeptStore:
    """One store in a private folder, as of one complete checkpoint. Used by one thread at a time.

    A backend that loads entries keeps the engine open from checkpoint to checkpoint; over the files of one that brings
    files none is opened before the copy is taken.
    """

    def __init__(
        self,
        store: str,
        wanted: StoreAtCheckpoint,
        backend: str,
        directory: Path,
        open_engine: Callable[[Path], Engine],
    ) -> None:
        """Create an empty copy; `made` fills it."""
        self._store = store
        self._backend = backend
        self._marker = wanted.markers[backend]
        self._directory = directory
        self._opener = LazyEngine(lambda: open_engine(directory))
        self._checkpoint_id = wanted.checkpoint_id
        self.was_working = False
        """True if a task has just worked with it."""
        self._is_exact = True
        """False after a step that was cut short: then there may be a part of a later checkpoint in it, and only that
        one or a later one can be reached."""

    @classmethod
    def made(
        cls,
        store: str,
        wanted: StoreAtCheckpoint,
        contexts: Callable[[str], BackendContext],
        directory: Path,
        open_engine: Callable[[Path], Engine],
        progress: RestoreProgress,
        take_local: Callable[[Path], bool] = lambda _: False,
    ) -> KeptStore:
        """Restore a whole store: from the host's copy of exactly this checkpoint, or from the first backend that
        can.

        Args:
            take_local: fills the new folder with a verified copy of the checkpoint that is on this host; False if there
                is none. A task that moved away has left one.

        Raises:
            CorruptError, NotFoundError: no backend can.
            RetryableError: it was cancelled, or failed for now.
        """
        errors: list[str] = []
        shutil.rmtree(directory, ignore_errors=True)
        try:
            if wanted.markers and take_local(directory):
                return cls(store, wanted, next(iter(wanted.markers)), directory, open_engine)
        except (OSError, PenstockError) as error:  # whoever keeps the copy may remove it at the same time
            logger.debug("the copy of store `%s` on this host is not used for a standby: %s", store, error)
        for backend in wanted.markers:
            copy = cls(store, wanted, backend, directory, open_engine)
            try:
                with copy._manager(contexts) as manager:
                    make_empty(directory)
                    manager.restore(store, wanted.markers[backend], copy._target(), progress)
            except (CorruptError, IncompatibleError, NotFoundError) as error:
                copy.remove()
                errors.append(f"{backend}: {error}")
            except BaseException:
                copy.remove()
                raise
            else:
                return copy
        raise CorruptError(f"store `{store}` could not be restored for a standby. {'; '.join(errors) or 'No marker'}")

    @classmethod
    def kept(cls, store: str, wanted: StoreAtCheckpoint, directory: Path, engine: Engine) -> KeptStore:
        """A store that a task of this process has worked with, brought back to a checkpoint. The open engine and the
        folder belong to the copy."""
        copy = cls(store, wanted, next(iter(wanted.markers)), directory, lambda _: engine)
        copy.was_working = True
        copy.engine()
        return copy

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self._checkpoint_id

    @property
    def is_there(self) -> bool:
        """False if somebody has removed the folder: another container that had the task in between."""
        return self._directory.is_dir()

    @property
    def directory(self) -> Path:
        return self._directory

    def advance(
        self, wanted: StoreAtCheckpoint, contexts: Callable[[str], BackendContext], progress: RestoreProgress
    ) -> bool:
        """Bring the copy to a later checkpoint of the same run. False if it has to be restored whole.

        Raises:
            RetryableError: it was cancelled, or failed for now. It is still of use.
            CorruptError, NotFoundError: it is of no use any more.
        """
        marker = wanted.markers.get(self._backend)
        if wanted.checkpoint_id == self._checkpoint_id or marker == self._marker:
            if self._is_exact:
                self._checkpoint_id = wanted.checkpoint_id
            return self._is_exact
        if marker is None:
            return False
        was_exact, self._is_exact = self._is_exact, False
        with self._manager(contexts) as manager:
            if self._opener.opened is not None and not manager.advances_open:
                self._is_exact = was_exact
                return False
            if not manager.advance(self._store, self._marker, marker, self._target(), progress):
                self._is_exact = was_exact
                return False
        self._marker, self._checkpoint_id, self._is_exact = marker, wanted.checkpoint_id, True
        return True

    def engine(self) -> Engine:
        """The open engine. It belongs to the caller from now on, and so does the folder. Raises CorruptError."""
        return self._opener()

    def remove(self) -> None:
        try:
            self._opener.close()
        except Exception as error:  # its task has moved, and who has it now has removed the folder
            logger.debug("a copy of store `%s` was not closed cleanly: %s", self._store, error)
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _target(self) -> RestoreTarget:
        return RestoreTarget(self._directory, self._opener)

    @contextmanager
    def _manager(self, contexts: Callable[[str], BackendContext]) -> Iterator[TaskRestoreManager]:
        manager = backend_factory(self._backend).restore_manager(contexts(self._backend))
        try:
            with explained(f"`{self._directory}` could not be filled", "job.logged.store.base.dir"):
                yield manager
        finally:
            manager.close()


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
