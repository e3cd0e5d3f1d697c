"""State backends (SEP-28): how a task's stores are backed up at a commit, and restored at a start.

A backend is named in `stores.backup.factories` and `stores.restore.factories`: one of Penstock's by its short name,
your own as `module:Class`, where the class is a StateBackendFactory. Keys and values are bytes here. The tests that
every backend passes are in `penstock.testing.state_backend_contract`.

A commit of a task has these steps. Between two batches, `snapshot` of every backup manager takes the net changes. While
the next batches run, the copies that managers want are made, and `upload` of all managers runs in parallel. Then the
record with the markers that the uploads returned is written to the checkpoint log. Last comes `clean_up`. A commit that
fails ends the epoch: its managers are closed, and new ones continue from the last checkpoint in the log.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.base.wording import first_characters
from penstock.checkpoint.record import CheckpointId
from penstock.config.model import JobConfig
from penstock.errors import ContainerLostError, CorruptError, IncompatibleError, RetryableError
from penstock.job.paths import JobPaths
from penstock.metrics.registry import MetricsRegistry
from penstock.objects.store import ObjectStore
from penstock.state.backends.resources import BackendPools, process_pools
from penstock.system.base import System

if TYPE_CHECKING:  # commands that open no store do without numpy and Arrow
    from penstock.state.engines.engine import Changes, Engine

KeptIn: TypeAlias = Literal["job-folder", "system", "unknown"]
EMPTY = "empty"
"""The text of a marker of a store without entries."""


@dataclass(frozen=True, slots=True)
class BackendContext:
    """The task that a backup or restore manager works for, and its surroundings."""

    objects: ObjectStore
    """The job root. The job's objects have the keys that `paths` builds."""
    paths: JobPaths
    task: int
    stores: tuple[str, ...]
    """The stores of the task that this backend backs up or restores."""
    epoch: int
    """The epoch. Every object that the backend writes has it in its name: two epochs never write the same key."""
    config: JobConfig
    systems: Mapping[str, System] = field(default_factory=dict)
    pools: BackendPools = field(default_factory=process_pools, compare=False)
    """The threads for background work and transfers. A backend starts no threads itself."""
    leaving: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set when the task leaves the epoch. An upload checks it now and then, and stops."""
    metrics: MetricsRegistry = field(default_factory=lambda: MetricsRegistry("none"), compare=False)
    """The task's metrics, for the backend's own (SEP-28). Penstock's are in the group `backend.<name>`: bytes that pass
    through `objects` count in its `bytes-uploaded` and `bytes-downloaded`. A backend that writes elsewhere counts
    there itself."""
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False)
    """The clock for everything that the backend does by time."""
    damaged: set[str] = field(default_factory=set, compare=False)
    """Keys of objects of this backend that a restore has found to be damaged. Managers of one epoch share it: a store
    that was restored another way must not be continued from such an object."""
    container: str = ""
    """The id of the container that the task runs in (SEP-28's ContainerModel); empty in a command."""
    partitions: tuple[SystemStreamPartition, ...] = ()
    """The input partitions that the task reads (SEP-28's TaskModel); empty in a command."""
    uid: str = ""
    """The job's uid, unique to the job whatever its name; empty in a command."""

    def check_leaving(self) -> None:
        """Raise RetryableError if the task leaves the epoch."""
        if self.leaving.is_set():
            raise RetryableError(f"task {self.task} leaves epoch {self.epoch}: its upload is given up")


class StoreCopy:
    """An immutable copy of a store at a boundary between two batches. It exists until its last user has released it."""

    def __init__(self, directory: Path, open_copy: Callable[[], Engine], remove: Callable[[], None]) -> None:
        """Describe a copy that exists, with one user.

        Args:
            directory: the folder of the engine's files.
            open_copy: opens the copy for reading.
            remove: called when the last user has released the copy.
        """
        self.directory = directory
        """The folder of the engine's files. Files of the same name in two copies may differ."""
        self._open = open_copy
        self._remove = remove
        self._lock = threading.Lock()
        self._users = 1

    def entries(self) -> Generator[tuple[bytes, bytes], None, None]:
        """All entries, by key. Close the generator (`contextlib.closing`) if you leave it before its end.

        Raises:
            ContainerLostError: the copy is damaged, and therefore the open store, which must be restored.
        """
        try:
            with closing(self._open()) as engine:
                yield from engine.scan(None, None)
        except CorruptError as error:
            raise ContainerLostError(f"the copy of a store is damaged, and with it the store: {error}") from error

    def acquire(self) -> StoreCopy:
        """Add a user, who needs the copy for longer than the upload takes. Each user calls `release` once."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """End the use of the copy."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._remove()


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The place of a store to restore. Fill the empty folder with the engine's files, or the engine with entries."""

    directory: Path
    engine: Callable[[], Engine]
    """Opens the engine over the folder at the first call, whatever kind of engine wrote the files there. From then on
    the folder belongs to the engine."""


@dataclass(slots=True)
class RestoreProgress:
    """Shared by the restores of a container: takes their progress, and tells them to stop."""

    cancelled: threading.Event
    report: Callable[[int], None]
    """Called by the restore's thread with a number of bytes that were restored."""
    note: Callable[[str], None] = logging.getLogger(__name__).error
    """Called with the text of a problem that the restore has survived, for the operator of the job."""


class TaskBackupManager(ABC):
    """Backs up the stores of one task, as SEP-28's TaskBackupManager.

    The order of calls is init, (snapshot, upload, clean_up)*, close. One thread calls at a time. At most one commit is
    between its snapshot and the end of its upload.
    """

    @abstractmethod
    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        """Continue from the markers of a checkpoint, after the stores were restored by any backend.

        If the backend holds anything beyond the markers, it goes back to them. A store without a marker needs a base:
        everything that it holds is backed up before it gets a marker.

        Args:
            checkpoint_id: the checkpoint; None if there is none, and all stores are empty and need no base.
            markers: this backend's markers in the checkpoint, by store.
        """

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        """True if `upload` needs a copy of the whole store, and not only the changes. Called before each snapshot.

        Args:
            store: the store.
            changed: the store has changed since the last snapshot.
            last: no other commit is to be expected soon: the run ends with this one, or is idle.
        """
        return False

    @property
    def wants_commit(self) -> bool:
        """True if the backend has something to do by time, for which it needs a commit even if nothing changes. An
        idle job then commits; it calls `wants_copy` with `last`. Any thread may ask, also while another call is
        under way."""
        return False

    @abstractmethod
    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        """Take the net changes of every store since the last snapshot. Processing waits for this part of a commit.

        Args:
            checkpoint_id: the checkpoint of this commit.
            changes: the changes by store; None deletes a key. They are immutable.
        """

    @abstractmethod
    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        """Make the last snapshot durable.

        It may be called again for the same checkpoint: after a RetryableError, with the same effect, or to ask for a
        base that was not complete.

        Args:
            checkpoint_id: the checkpoint of the snapshot.
            copies: the copies of the stores for which `wants_copy` returned True.

        Returns:
            The markers by store. With a marker, this backend alone can rebuild the store as it was at the snapshot. A
            store whose base is not complete is left out.
        """

    def clean_up(self, checkpoint_id: CheckpointId, markers: Mapping[str, str]) -> None:  # noqa: B027 - most have none
        """Release everything kept in case the commit failed: the checkpoint is in the log now. Idempotent.

        Also called after `init`. The admin deletes objects that only older checkpoints need.

        Args:
            checkpoint_id: the checkpoint.
            markers: this backend's markers in it, by store.
        """

    def finish(self, timeout_s: float) -> None:  # noqa: B027 - most have nothing under way
        """Wait for background work that makes the next start faster. The run's last checkpoint is in the log.

        Args:
            timeout_s: how long to wait at most, in seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop and join background work, and close all resources. No call follows."""


class TaskRestoreManager(ABC):
    """Rebuilds stores of one task from markers, as SEP-28's TaskRestoreManager. Several threads may restore at once."""

    advances_open = False
    """True if `advance` changes a store through its engine, also one that somebody else has opened, and no file below
    it."""

    @abstractmethod
    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        """Fill the empty target with exactly the content of the store at the marker.

        Args:
            store: the store.
            marker: this backend's marker.
            target: the place to fill.
            progress: takes the progress, and tells the restore to stop.

        Raises:
            CorruptError, NotFoundError: an object is damaged or missing; the message names it.
            RetryableError: the restore was cancelled, or its source failed for now.
        """

    def advance(self, store: str, held: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> bool:
        """Bring a store that this backend has restored to a later marker, reading only what came since.

        A standby does this after each checkpoint, and a container that takes over does it once more. The default
        returns False, and the store is restored whole.

        Args:
            store: the store.
            held: the marker that the target is at.
            marker: a marker of a later checkpoint of the same run.
            target: the folder as `restore` or the last `advance` left it. If it used the engine then, that one is
                still open, and `engine` returns it.
            progress: takes the progress, and tells the call to stop.

        Returns:
            True if the target is at `marker` now. If not, nothing leads from one to the other, and the target has not
            changed.

        Raises:
            RetryableError: it was cancelled, or its source failed for now. The target may have changed in part. It is
                given up, or `advance` is called again with the same `held`, and this or a later marker.
            CorruptError, NotFoundError: an object is damaged or missing. The target is given up.
        """
        return False

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Close all resources. No call follows."""


@dataclass(frozen=True, slots=True)
class StoreMarker:
    """A marker, and the store and task that it belongs to."""

    store: str
    task: int
    marker: str


@dataclass(frozen=True, slots=True)
class Retention:
    """The state that must remain restorable. A backend decides by this and its listing alone what to delete."""

    epoch: int
    """The epoch of the caller, which owns the log. No one writes objects of older epochs any more."""
    retained: tuple[StoreMarker, ...]
    """This backend's markers of every retained checkpoint."""
    left: tuple[StoreMarker, ...]
    """This backend's markers of checkpoints that are no longer retained."""
    sweep: bool
    """List everything that the backend holds, and also delete what dead epochs left."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """The objects that were deleted, or would be in a dry run."""

    names: tuple[str, ...]
    size_bytes: int | None = None
    """Their total size, if the backend knows it."""


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The job that a backend's admin works for, and its surroundings."""

    objects: ObjectStore
    paths: JobPaths
    tasks: int
    stores: tuple[str, ...]
    """The stores that this backend backs up or restores."""
    config: JobConfig
    systems: Mapping[str, System] = field(default_factory=dict)
    uid: str = ""
    """The job's uid. It distinguishes the job from one of the same name in another root."""
    restorable: Callable[[], Sequence[StoreMarker]] = field(default=tuple, compare=False)
    """This backend's markers of every checkpoint that the job could restore when the admin was made. Each call reads
    them from the checkpoints. Raises CorruptError if one cannot be read."""


class StateBackendAdmin(ABC):
    """Manages a job's objects in a backend, as SEP-28's StateBackendAdmin.

    The driver uses it, or a command while the job is stopped.
    """

    def create_resources(self, epoch: int) -> None:  # noqa: B027 - most need none
        """Create what the backend needs before the first container opens. Idempotent.

        Args:
            epoch: the driver's epoch, with which the backend fences older drivers.
        """

    def validate_resources(self) -> None:  # noqa: B027
        """Check that the backend's resources can serve this job. Writes nothing. Called after `create_resources`, and
        before it, when what is missing is none of its business.

        Raises:
            ConfigError: they cannot; the message says what to do.
        """

    @abstractmethod
    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        """Delete objects that no retained marker needs.

        Only objects of markers that left, and in a sweep those of epochs before `retention.epoch` that no marker names,
        may be deleted: an upload of this epoch may be under way. Idempotent, oldest first; it may be interrupted at any
        point and called again. Another driver may have taken over since the retention was chosen, so a deletion must
        be right however late it happens.

        Args:
            retention: the markers that must remain restorable.
            dry_run: delete nothing; the result is a preview.

        Raises:
            NotFoundError, CorruptError: the objects of a retained marker cannot be determined. Nothing was deleted.
        """

    def needed(self, markers: Sequence[StoreMarker]) -> Collection[str]:
        """The keys of all objects below the job root that these markers need: what `detach` of a fork copies.

        Args:
            markers: this backend's, of every retained checkpoint.

        Raises:
            IncompatibleError: the backend does not know them, as by default. Otherwise as `collect`.
        """
        raise IncompatibleError(f"{type(self).__name__} cannot say what a fork has to copy: it has no `needed`")

    def close(self) -> None:  # noqa: B027
        """Close all resources. No call follows."""


class StateBackendFactory(ABC):
    """Makes the managers of one backend, as SEP-28's StateBackendFactory.

    The driver and every container make one, without arguments.

    Example:
        >>> from penstock.state.backends.registry import backend_factory
        >>> factory = backend_factory("changelog-files")
        >>> factory.name, factory.kept_in, isinstance(factory, StateBackendFactory)
        ('changelog-files', 'job-folder', True)
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name for messages. Checkpoints keep the markers under the name that the configuration uses: a class
        that moves to another module is another backend, and begins with a base."""

    @abstractmethod
    def backup_manager(self, context: BackendContext) -> TaskBackupManager:
        """Make the backup manager of one task.

        Args:
            context: the task and its surroundings.
        """

    @abstractmethod
    def restore_manager(self, context: BackendContext) -> TaskRestoreManager:
        """Make the restore manager of one task.

        Args:
            context: the task and its surroundings.
        """

    @abstractmethod
    def admin(self, context: AdminContext) -> StateBackendAdmin:
        """Make the admin of the backend for one job.

        Args:
            context: the job and its surroundings.
        """

    @property
    def kept_in(self) -> KeptIn:
        """The place of the objects that markers name: the folder of the job that made them, from which no other job
        restores; a system, where any job finds them; or unknown, the default."""
        return "unknown"

    def marker_text(self, marker: str) -> str:
        """A marker for people: a version, a range of offsets, or EMPTY; by default its first 40 characters.

        Args:
            marker: this backend's marker.
        """
        return first_characters(marker)

    def kind_of(self, name: str) -> str | None:
        """The kind of an object, in the plural (`deltas`); None, the default, if it is not of this backend.

        Args:
            name: the object's name below the folder of a store.
        """
        return None
