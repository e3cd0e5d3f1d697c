"""What a state backend is (SEP-28): how a task's stores are backed up at a commit and restored at a start.

A backend is named in `stores.backup.factories` and `stores.restore.factories`: one of Penstock's by its short name, one
of your own as `module:Class`, the class being a StateBackendFactory. Keys and values are bytes here.

One commit, for each task: `snapshot` of every backup manager, between two batches, which takes the net changes; then,
while the next batches run, the copies that managers asked for and `upload` of all managers in parallel; then the record
in the checkpoint log, with what the uploads returned; then `clean_up`. A commit that fails ends the epoch: managers are
closed and new ones continue from the last checkpoint in the log.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from penstock.checkpoint.id import CheckpointId
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config.model import JobConfig
from penstock.errors import ContainerLostError, CorruptError, RetryableError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.metrics.registry import MetricsRegistry
from penstock.state.backends.pools import BackendPools, process_pools
from penstock.state.engines.engine import Engine
from penstock.state.records import Changes
from penstock.system.base import System

logger = logging.getLogger(__name__)
KeptIn: TypeAlias = Literal["job-folder", "system", "unknown"]
EMPTY = "empty"
"""The text of a marker of a store without entries."""
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a backend is given about the task it works for."""

    objects: ObjectStore
    """The job root. Objects of a job lie under keys that `paths` builds."""
    paths: JobPaths
    task: int
    stores: tuple[str, ...]
    """The stores of the task that this backend backs up, or is asked to restore."""
    epoch: int
    """The epoch every object it writes carries in its name, so that two epochs never write one key."""
    config: JobConfig
    systems: Mapping[str, System] = field(default_factory=dict)
    pools: BackendPools = field(default_factory=process_pools, compare=False)
    """The threads for its background work and its transfers. A backend starts no threads itself."""
    leaving: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set once the task is leaving the epoch: an upload should look at it now and then, and stop."""
    metrics: MetricsRegistry = field(default_factory=lambda: MetricsRegistry("none"), compare=False)
    """The task's metrics, for the backend's own (SEP-28). Penstock's are in the group `backend.<name>`: what passes
    through `objects` counts in its `bytes-uploaded` and `bytes-downloaded`. A backend that writes elsewhere counts that
    there itself."""
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False)
    """For whatever the backend does by time."""

    def check_leaving(self) -> None:
        """Raise RetryableError if the task is leaving the epoch."""
        if self.leaving.is_set():
            raise RetryableError(f"task {self.task} leaves epoch {self.epoch}: its upload is given up")


class StoreCopy:
    """Everything a store held at one boundary, immutable, until the last one who uses it has released it."""

    def __init__(self, directory: Path, open_copy: Callable[[], Engine], remove: Callable[[], None]) -> None:
        """`open_copy` opens the copy for reading; `remove` is called when nobody uses it any more."""
        self.directory = directory
        """The engine's own files. A file that is in the copies of two boundaries under one name may differ."""
        self._open = open_copy
        self._remove = remove
        self._lock = threading.Lock()
        self._users = 1

    def entries(self) -> Generator[tuple[bytes, bytes], None, None]:
        """All entries, by key. Close it (`contextlib.closing`) if it is left before its end.

        Raises ContainerLostError if it is damaged: so is the open store that it is of, which has to be restored.
        """
        try:
            with closing(self._open()) as engine:
                yield from engine.scan(None, None)
        except CorruptError as error:
            raise ContainerLostError(f"the copy of a store is damaged, and with it the store: {error}") from error

    def acquire(self) -> StoreCopy:
        """One user more, which needs the copy for longer than an upload takes. Each one calls `release` once."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """One user less."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._remove()


def release_if_cancelled(work: Future[Any], copy: StoreCopy) -> None:
    """Release a copy if the work that would release it never begins."""
    work.add_done_callback(lambda future: copy.release() if future.cancelled() else None)


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Where a store is to be restored: fill the empty folder with the engine's files, or the engine with entries."""

    directory: Path
    engine: Callable[[], Engine]
    """The engine over the folder, opened by the first call. Once it is open the folder is the engine's."""


@dataclass(slots=True)
class RestoreProgress:
    """Shared by the restores of a container: what they did so far, and whether they should stop."""

    cancelled: threading.Event
    report: Callable[[int], None]
    """Called with a number of bytes that were restored, from the restore's thread."""
    note: Callable[[str], None] = logger.error
    """Called with what went wrong on the way though the restore continues, for the operator of the job."""


class TaskBackupManager(ABC):
    """Backs up one task's stores.

    Called in the order init, (snapshot, upload, clean_up)*, close, by one thread at a time. At most one commit is
    between its snapshot and the end of its upload.
    """

    @abstractmethod
    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        """After the restore, by any backend: continue from this backend's markers (store -> marker) of the
        checkpoint, and bring what it holds beyond them back to them.

        A store without a marker needs a base: everything it holds is backed up before it gets one. Without a
        checkpoint all stores are empty and need none.
        """

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        """Asked before each snapshot: whether `upload` needs everything the store holds, not just what changed.
        `changed`: something did since the last snapshot. `last`: the run is to end with this commit."""
        return False

    @abstractmethod
    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        """The short, synchronous part: take the net changes of every store since the last snapshot. They are not
        changed any more by anyone."""

    @abstractmethod
    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        """Make the last snapshot durable; store -> marker.

        A marker means: this backend alone can rebuild the store as it was at the snapshot. A store whose base is not
        complete is left out. `copies` has the stores `wants_copy` was True for. May be called again for the same
        checkpoint: after a RetryableError, with the same effect; or to ask for a base that was not complete.
        """

    def clean_up(self, checkpoint_id: CheckpointId, markers: Mapping[str, str]) -> None:  # noqa: B027 - most have none
        """The checkpoint is in the log, with these markers: let go of what was kept in case it would not be.
        Idempotent; also called after `init`. What older checkpoints alone need is the admin's business."""

    def finish(self, timeout_s: float) -> None:  # noqa: B027 - most have nothing under way
        """The run ended with a checkpoint that is in the log, and `close` follows: give what is under way in the
        background, and makes the next start quicker, the time to come to its end."""

    @abstractmethod
    def close(self) -> None:
        """Stop and join what runs in the background, release what is open. No call follows."""


class TaskRestoreManager(ABC):
    """Rebuilds stores of one task from markers. Stores of a task may be restored by several threads at once."""

    @abstractmethod
    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        """Fill the empty target with the store's content at the marker, exactly.

        Raises:
            CorruptError, NotFoundError: naming the object that is damaged or missing.
            RetryableError: it was cancelled, or what it reads from failed for now.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Release what is open. No call follows."""


@dataclass(frozen=True, slots=True)
class StoreMarker:
    """A marker and what it is of."""

    store: str
    task: int
    marker: str


@dataclass(frozen=True, slots=True)
class Retention:
    """What must stay restorable, as a value. Everything a backend deletes is a function of this and its listing."""

    epoch: int
    """The epoch of the collector, which owns the log. Nothing writes objects of older epochs any more."""
    retained: tuple[StoreMarker, ...]
    """This backend's markers of every retained checkpoint."""
    left: tuple[StoreMarker, ...]
    """Those of checkpoints that left the list of retained ones."""
    sweep: bool
    """Whether to list everything the backend holds and delete what dead epochs left behind, too."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """What was, or in a dry run would be, deleted."""

    names: tuple[str, ...]
    size_bytes: int | None = None
    """Their size, where the backend knows it."""


@dataclass(frozen=True, slots=True)
class AdminContext:
    """What a backend's admin is given: the whole job."""

    objects: ObjectStore
    paths: JobPaths
    tasks: int
    stores: tuple[str, ...]
    """The stores that this backend backs up or restores."""
    config: JobConfig
    systems: Mapping[str, System] = field(default_factory=dict)
    uid: str = ""
    """The job's uid: it tells the job from one of the same name in another root."""


class StateBackendAdmin(ABC):
    """Looks after what a backend keeps for a job. Used by the driver, or by a command while the job is stopped."""

    def create_resources(self, epoch: int) -> None:  # noqa: B027 - most need none
        """Make what the backend needs before the first container opens, fenced with the epoch. Idempotent."""

    def validate_resources(self) -> None:  # noqa: B027
        """Raise ConfigError if what is there cannot serve this job, saying what to do."""

    @abstractmethod
    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        """Delete what no retained marker needs, and which is named by a marker that left, or (in a sweep) by nothing
        and of an epoch before `retention.epoch`. Never anything else: an upload of this epoch may be under way.

        Idempotent; oldest first; may be interrupted at any point and called again.
        """

    def close(self) -> None:  # noqa: B027
        """Release what is open. No call follows."""


class StateBackendFactory(ABC):
    """Makes the managers of one backend. Made without arguments, in the driver and in every container."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name for messages. Checkpoints keep its markers under the name that the configuration uses: a class
        that moves to another module is another backend, and begins with a base."""

    @abstractmethod
    def backup_manager(self, context: BackendContext) -> TaskBackupManager:
        """A backup manager for one task."""

    @abstractmethod
    def restore_manager(self, context: BackendContext) -> TaskRestoreManager:
        """A restore manager for one task."""

    @abstractmethod
    def admin(self, context: AdminContext) -> StateBackendAdmin:
        """The admin."""

    @property
    def kept_in(self) -> KeptIn:
        """Where the things are that its markers name: in the folder of the job that made them, so that no other job can
        restore from them; in a system, where any job finds them; or unknown, the default."""
        return "unknown"

    def marker_text(self, marker: str) -> str:
        """A marker for people: a version, a range of offsets, EMPTY; by default its first 40 characters."""
        return first_characters(marker)

    def kind_of(self, name: str) -> str | None:
        """What an object is, in the plural (`deltas`), by its name below the folder of a store. None, the default:
        it is not of this backend."""
        return None


def first_characters(marker: str) -> str:
    """A marker of which nothing is known, for people."""
    return marker if len(marker) <= _SHOWN else f"{marker[: _SHOWN - 1]}…"
