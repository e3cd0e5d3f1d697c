"""One store that a process keeps at a checkpoint, restored from any backend or left by a task."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.base.files import explained
from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError, NotFoundError, PenstockError
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
            except (CorruptError, NotFoundError) as error:
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
