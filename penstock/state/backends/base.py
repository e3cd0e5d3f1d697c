"""What a state backend is (SEP-28): how a task's stores are backed up at a commit and restored at a start.

A backend is named in `stores.backup.factories` and `stores.restore.factories`. Keys and values are bytes here.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.checkpoint.id import CheckpointId
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.state.engine import Changes, Engine


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a backend is given about the task it works for."""

    objects: ObjectStore
    paths: JobPaths
    task: int
    stores: tuple[str, ...]
    epoch: int
    """The epoch every object it writes carries in its name."""


@dataclass(slots=True)
class RestoreProgress:
    """Shared by the restores of a container: what they did so far, and whether they should stop."""

    cancelled: threading.Event
    report: Callable[[int], None]
    """Called with a number of bytes that were restored, from the restore's thread."""


class TaskBackupManager(ABC):
    """Backs up one task's stores. Called by one thread at a time, in the order init, (snapshot, upload)*, close."""

    @abstractmethod
    def init(self, markers: Mapping[str, str]) -> None:
        """After the restore, whoever restored: continue from these markers of this backend (store -> marker).

        A store without a marker has to be backed up from the ground before it gets one.
        """

    @abstractmethod
    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        """The short, synchronous part: take the net changes of every store since the last snapshot."""

    @abstractmethod
    def upload(self, checkpoint_id: CheckpointId) -> Mapping[str, str]:
        """Make the last snapshot durable; store -> marker. A marker means: this backend alone can rebuild the store.

        May be called again after a RetryableError, with the same effect.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is open. No call follows."""


class TaskRestoreManager(ABC):
    """Rebuilds stores of one task from markers."""

    @abstractmethod
    def restore(self, marker: str, store: str, engine: Engine, progress: RestoreProgress) -> None:
        """Fill the empty engine with the store's content at the marker.

        Raises CorruptError or NotFoundError naming the object that is damaged or missing.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is open. No call follows."""


class StateBackendFactory(ABC):
    """Makes the managers of one backend."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The short, stable name used in configuration and checkpoints."""

    @abstractmethod
    def backup_manager(self, context: BackendContext) -> TaskBackupManager: ...

    @abstractmethod
    def restore_manager(self, context: BackendContext) -> TaskRestoreManager: ...
