"""The backup of one store of one task: what is stored of it, and what each commit adds."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError, NotFoundError
from penstock.state.backends.base import BackendContext
from penstock.state.backends.blob.diff import diff
from penstock.state.backends.blob.files import FileHashes, LocalFile, part_ranges
from penstock.state.backends.blob.index import DirIndex, FileBlob, FileIndex, SnapshotIndex
from penstock.state.backends.blob.marker import BlobMarker, read_index
from penstock.state.backends.blob.names import BlobNames, file_name, index_name
from penstock.state.backends.blob.transfer import ByteBudget, in_parallel
from penstock.state.backends.objects import put_once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A store at one commit, durable."""

    marker: BlobMarker
    directory: DirIndex


class StoreBackup:
    """Uploads what the last index does not have. Used by one thread at a time."""

    def __init__(self, context: BackendContext, store: str, budget: ByteBudget, max_part_bytes: int) -> None:
        self._context = context
        self._names = BlobNames(context.paths, store, context.task)
        self._budget = budget
        self._max_part_bytes = max_part_bytes
        self._hashes = FileHashes(max_part_bytes)
        self._resumed: BlobMarker | None = None
        self._last: StoredSnapshot | None = None
        self._put: dict[str, str] = {}
        """SHA-256 -> name of what was uploaded and is in no index yet, so that a second try does not do it again."""

    def resume(self, marker: BlobMarker) -> None:
        """Continue from a marker; its index is read when it is first needed."""
        self._resumed = marker

    def last(self) -> StoredSnapshot | None:
        """What to compare with. An index that cannot be read is none: everything is uploaded again."""
        if self._resumed is not None:
            try:
                directory = read_index(self._context.objects, self._names, self._resumed).directory
                self._last = StoredSnapshot(self._resumed, directory)
            except (NotFoundError, CorruptError) as error:
                logger.warning(
                    "%s: everything is uploaded again, the last index cannot be used: %s", self._names, error
                )
            self._resumed = None
        return self._last

    def upload(self, checkpoint_id: CheckpointId, directory: Path) -> StoredSnapshot:
        """Make the copy in the directory durable: its new files, and then its index."""
        last = self.last()
        index = self.put_files(checkpoint_id, directory, threading.Event())
        snapshot = SnapshotIndex(
            checkpoint_id,
            checkpoint_id.millis,  # not the clock's: a second try writes the same bytes
            self._context.paths.name,
            self._context.paths.job_id,
            self._context.task,
            self._names.store,
            self._context.epoch,
            last.marker.index if last else None,
            index,
        )
        data, name = snapshot.serialize(), index_name(self._context.epoch, checkpoint_id)
        put_once(self._context.objects, self._names.key(name), data, self._context.epoch)
        return StoredSnapshot(BlobMarker(name, hashlib.sha256(data).hexdigest()), index)

    def advance(self, snapshot: StoredSnapshot) -> None:
        """The commit is done: the next one is compared with it."""
        if snapshot is not self._last:
            self._last = snapshot
            # Only what the last checkpoint holds is safe from collection, so nothing else is remembered.
            self._put.clear()

    def put_files(self, checkpoint_id: CheckpointId, directory: Path, cancelled: threading.Event) -> DirIndex:
        """Upload what is not stored yet of the copy in the directory, in parallel."""
        what = f"the upload of {self._names}"
        last = self.last()
        difference = diff(self._hashes.list(directory, cancelled, what), last.directory if last else DirIndex())
        missing: dict[str, partial[tuple[str, str]]] = {}
        for file in difference.added.values():
            ranges = part_ranges(file.size, self._max_part_bytes)
            for sha256, (offset, size) in zip(file.parts, ranges, strict=True):
                if sha256 not in self._put:
                    name = file_name(self._context.epoch, checkpoint_id, sha256)
                    missing[sha256] = partial(self._put_part, directory / file.path, offset, size, name, sha256)
        for sha256, name in in_parallel(list(missing.values()), cancelled, what):
            self._put[sha256] = name
        added = {path: self._indexed(file) for path, file in difference.added.items()}
        logger.debug(
            "%s at %s: %d files added, %d retained, %d removed; %d objects uploaded",
            *(self._names, checkpoint_id, len(added), len(difference.retained), len(difference.removed), len(missing)),
        )
        return DirIndex.of(difference.retained | added)

    def _put_part(self, path: Path, offset: int, size: int, name: str, sha256: str) -> tuple[str, str]:
        with self._budget.hold(size):
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(size)
            put_once(self._context.objects, self._names.key(name), data, self._context.epoch)
        return sha256, name

    def _indexed(self, file: LocalFile) -> FileIndex:
        ranges = part_ranges(file.size, self._max_part_bytes)
        blobs = [FileBlob(self._put[sha256], offset) for sha256, (offset, _) in zip(file.parts, ranges, strict=True)]
        return FileIndex(file.path.rpartition("/")[2], file.size, file.sha256, tuple(blobs))
