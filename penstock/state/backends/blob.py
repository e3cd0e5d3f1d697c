"""The blob store backend (SEP-28): every commit uploads the files that its copy has and the last index has not.

Its objects are all in the folder `blob` of a task's store.

<epoch>-<checkpoint id>-<sha256>    content; see `content/objects.py`
<epoch>-<checkpoint id>.index       the index of the commit

An index has the files of a store at one commit, and the objects that hold them, as JSON. Keys are dashed as in
Samza's index. Unknown keys are ignored, so that an older Penstock reads what a newer one added. The marker of a store
is the name of an index and the hash of that index. The index has the hash of every file, so the marker vouches for
every byte of the store.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import orjson
from msgspec import Struct, field

from penstock.base.documents import Count, decode_format
from penstock.base.parallel import ByteBudget
from penstock.checkpoint.record import CheckpointId
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.state.backends import base
from penstock.state.backends import objects as content
from penstock.state.backends.base_backup import BaseBackup, Bases
from penstock.state.backends.content import MAX_PART_BYTES, ContentStore, fetch_files, keep_files
from penstock.state.backends.objects import NUMBER, ContentNames, DirIndex, ObjectBackendAdmin, content_of, put_once
from penstock.state.engines.engine import Changes

_INDEX_FORMAT = 1


class SnapshotIndex(Struct, frozen=True, rename="kebab", tag_field="format", tag=_INDEX_FORMAT):
    """A store at one commit. `previous` is the name of the index it was compared with, if any."""

    checkpoint_id: str
    creation_time_ms: Count = field(name="creation-time-millis")
    job_name: str
    job_id: str
    task: Count
    store: str = field(name="store-name")
    epoch: Count
    previous: str | None = field(name="prev-snapshot-index-blob-id")
    directory: DirIndex = field(name="dir-index")

    def __post_init__(self) -> None:
        CheckpointId.parse(self.checkpoint_id)

    def encode(self) -> bytes:
        """Equal values give equal bytes."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes, key: str) -> SnapshotIndex:
        """Raises CorruptError naming the key, IncompatibleError for a newer format."""
        return decode_format(cls, data, f"index `{key}` is damaged", f"index `{key}`", _INDEX_FORMAT)


FOLDER = "blob"
_INDEX = ".index"
_NAME = re.compile(rf"({NUMBER})-{NUMBER}-{NUMBER}\.index")


def blob_names(paths: JobPaths, store: str, task: int) -> ContentNames:
    return ContentNames(paths, store, task, FOLDER)


def index_name(epoch: int, checkpoint_id: CheckpointId) -> str:
    return f"{epoch}-{checkpoint_id}{_INDEX}"


def is_index(name: str) -> bool:
    return name.endswith(_INDEX)


def index_epoch(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def epoch_of(key: str) -> int | None:
    place, _, name = key.rpartition("/")
    return index_epoch(name) if is_index(name) and place.endswith(f"/{FOLDER}") else content.epoch_of(key, FOLDER)


_MARKER_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BlobMarker:
    """The name of an index and the SHA-256 of its bytes."""

    index: str
    sha256: str

    def serialize(self) -> str:
        return orjson.dumps({"format": _MARKER_FORMAT, "index": self.index, "sha256": self.sha256}).decode()

    @classmethod
    def parse(cls, text: str) -> BlobMarker:
        """Raises CorruptError if the text is not a marker, IncompatibleError for a newer format."""
        what = f"`{text}` is not a marker of the blob backend"
        marker = decode_format(cls, text, what, f"marker `{text}`", _MARKER_FORMAT)
        if index_epoch(marker.index) is None:
            raise CorruptError(f"marker `{text}` of the blob backend does not name an index")
        return marker


def read_index(objects: ObjectStore, names: ContentNames, marker: BlobMarker) -> SnapshotIndex:
    """The index that a marker names. Raises NotFoundError, CorruptError or IncompatibleError, naming the object."""
    key = names.key(marker.index)
    try:
        data = objects.get(key)
    except NotFoundError as error:
        raise NotFoundError(f"index `{key}` of {names} is missing") from error
    if hashlib.sha256(data).hexdigest() != marker.sha256:
        raise CorruptError(f"index `{key}` of {names} is damaged: the hash of its {len(data)} bytes does not match")
    return SnapshotIndex.decode(data, key)


class BlobAdmin(ObjectBackendAdmin):
    """Deletes files and indexes that no retained index names."""

    def reach(self, markers: Sequence[base.StoreMarker]) -> set[str]:
        return set[str]().union(*map(self._reach_one, markers))

    def epoch_of(self, key: str) -> int | None:
        return epoch_of(key)

    def order(self, key: str) -> tuple[int, ...]:
        """An index is deleted after the objects it names, of its epoch or older: as long as it exists they can be
        found."""
        return (epoch_of(key) or 0, 1 if is_index(key) else 0)

    def _reach_one(self, own: base.StoreMarker) -> frozenset[str]:
        names = blob_names(self.context.paths, own.store, own.task)
        marker = BlobMarker.parse(own.marker)

        def read() -> Iterator[str]:
            return map(names.key, read_index(self.context.objects, names, marker).directory.objects())

        return self.reach_of_index(names.key(marker.index), read)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A store at one commit, durable."""

    marker: BlobMarker
    directory: DirIndex


class StoreBackup:
    """Uploads the files that the last index does not have. Used by one thread at a time."""

    def __init__(self, context: base.BackendContext, store: str, budget: ByteBudget, max_part_bytes: int) -> None:
        self._context = context
        self._names = blob_names(context.paths, store, context.task)
        self._files = ContentStore(context, self._names, budget, max_part_bytes)
        self._resumed: BlobMarker | None = None
        self._last: StoredSnapshot | None = None

    def resume(self, marker: BlobMarker) -> None:
        """Continue from a marker. Its index is read when it is first needed."""
        self._resumed = marker

    def last(self) -> StoredSnapshot | None:
        """The snapshot to compare with. None if its index cannot be read: everything is uploaded again."""
        if self._resumed is not None:
            try:
                directory = read_index(self._context.objects, self._names, self._resumed).directory
                self._last = StoredSnapshot(self._resumed, directory)
            except (NotFoundError, CorruptError) as error:
                logger.warning(
                    "%s: everything is uploaded again, because the last index cannot be used: %s", self._names, error
                )
            self._resumed = None
        return self._last

    @property
    def is_current(self) -> bool:
        return self._resumed is None and self._last is not None

    def upload(self, checkpoint_id: CheckpointId, directory: Path) -> StoredSnapshot:
        """Make the copy in the directory durable: first its new files, then its index."""
        last = self.last()
        index = self.put_files(checkpoint_id, directory, self._context.leaving)
        snapshot = SnapshotIndex(
            str(checkpoint_id),
            checkpoint_id.millis,  # not the clock's: a second try writes the same bytes
            self._context.paths.name,
            self._context.paths.job_id,
            self._context.task,
            self._names.store,
            self._context.epoch,
            last.marker.index if last else None,
            index,
        )
        data, name = snapshot.encode(), index_name(self._context.epoch, checkpoint_id)
        put_once(self._context.objects, self._names.key(name), data, self._context.epoch)
        return StoredSnapshot(BlobMarker(name, hashlib.sha256(data).hexdigest()), index)

    def advance(self, snapshot: StoredSnapshot) -> None:
        """Compare the next copy with this snapshot, whose commit is done."""
        if snapshot is not self._last:
            self._last = snapshot
            self._files.advance()

    def put_files(self, checkpoint_id: CheckpointId, directory: Path, cancelled: threading.Event) -> DirIndex:
        last = self.last()
        return self._files.put(checkpoint_id, directory, last.directory if last else DirIndex.of({}), cancelled)


class BlobBackup(base.TaskBackupManager):
    """Uploads, at each commit, the files of every changed store that its last index does not have.

    The base of a store with content is an upload of all its files in the background, from the copy of one commit; the
    commit that finds it done uploads the rest of its own copy, and the index. A store with a marker that another
    backend restored has other files than its index: its first change uploads them all, within the commit.
    """

    def __init__(self, context: base.BackendContext, budget: ByteBudget, max_part_bytes: int) -> None:
        self._context = context
        self._stores = {store: StoreBackup(context, store, budget, max_part_bytes) for store in context.stores}
        self._bases = Bases[None]()
        self._changed: set[str] = set()
        """The stores whose changes of the last snapshot are not durable yet."""

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        for name, store in self._stores.items():
            if name in markers:
                store.resume(BlobMarker.parse(markers[name]))
            elif checkpoint_id is not None:
                self._bases.need(name, self._base(name, checkpoint_id))

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        """True also for an unchanged store, as long as it has no index that is known to be good."""
        return changed or store in self._bases or not self._stores[store].is_current

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        self._changed = {store for store, changed in changes.items() if changed}

    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, base.StoreCopy]) -> Mapping[str, str]:
        for _ in self._bases.advance(copies):
            pass  # what its own copy has beyond a base that is complete, this upload adds
        after = {}
        for name, store in self._stores.items():
            if name in self._bases:
                continue
            last = store.last()
            if last is None or name in self._changed:
                last = store.upload(checkpoint_id, copies[name].directory)
            after[name] = last
        # Only now, so that a second try after an error begins where the first one did.
        for name, snapshot in after.items():
            self._stores[name].advance(snapshot)
        self._changed -= after.keys()
        return {name: snapshot.marker.serialize() for name, snapshot in after.items()}

    def close(self) -> None:
        self._bases.cancel()

    def _base(self, name: str, checkpoint_id: CheckpointId) -> BaseBackup[None]:
        """Its files are named after the checkpoint that the job continues from, which wrote nothing in this epoch."""

        def work(copy: base.StoreCopy, cancelled: threading.Event) -> None:
            self._stores[name].put_files(checkpoint_id, copy.directory, cancelled)

        return BaseBackup(work, self._context.pools.maintenance)


class BlobRestore(base.TaskRestoreManager):
    """Downloads the files of an index."""

    def __init__(self, context: base.BackendContext, budget: ByteBudget) -> None:
        self._context = context
        self._budget = budget

    def restore(self, store: str, marker: str, target: base.RestoreTarget, progress: base.RestoreProgress) -> None:
        names = blob_names(self._context.paths, store, self._context.task)
        index = read_index(self._context.objects, names, BlobMarker.parse(marker))
        fetch_files(self._context, names, index.directory, target.directory, self._budget, progress)

    def advance(
        self, store: str, held: str, marker: str, target: base.RestoreTarget, progress: base.RestoreProgress
    ) -> bool:
        """Keep the files that the later version has, too, and download the others. No engine is opened over them."""
        names = blob_names(self._context.paths, store, self._context.task)
        index = read_index(self._context.objects, names, BlobMarker.parse(marker))
        keep_files(index.directory, target.directory)
        fetch_files(self._context, names, index.directory, target.directory, self._budget, progress, present=True)
        return True


NAME = "blob"
_IN_FLIGHT = ByteBudget(128 << 20)
"""Shared by all tasks of a process."""


class BlobFactory(base.StateBackendFactory):
    """The factory of the backend `blob`."""

    def __init__(self, budget: ByteBudget = _IN_FLIGHT, max_part_bytes: int = MAX_PART_BYTES) -> None:
        self._budget = budget
        self._max_part_bytes = max_part_bytes

    @property
    def name(self) -> str:
        return NAME

    @property
    def kept_in(self) -> base.KeptIn:
        return "job-folder"

    def marker_text(self, marker: str) -> str:
        """The name of the index: epoch and checkpoint."""
        try:
            return BlobMarker.parse(marker).index.removesuffix(".index")
        except (CorruptError, IncompatibleError):
            return super().marker_text(marker)

    def kind_of(self, name: str) -> str | None:
        folder, _, last = name.rpartition("/")
        if folder != FOLDER:
            return None
        if index_epoch(last) is not None:
            return "indexes"
        return "files" if content_of(last) else None

    def backup_manager(self, context: base.BackendContext) -> BlobBackup:
        return BlobBackup(context, self._budget, self._max_part_bytes)

    def restore_manager(self, context: base.BackendContext) -> BlobRestore:
        return BlobRestore(context, self._budget)

    def admin(self, context: base.AdminContext) -> BlobAdmin:
        return BlobAdmin(context)
