"""The backup of one store of one task: its last durable index, and the files each commit adds."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from penstock.base.parallel import ByteBudget
from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError, NotFoundError
from penstock.state.backends.base import BackendContext
from penstock.state.backends.blob.index import SnapshotIndex
from penstock.state.backends.blob.marker import BlobMarker, read_index
from penstock.state.backends.blob.names import blob_names, index_name
from penstock.state.backends.content.index import DirIndex
from penstock.state.backends.content.store import ContentStore
from penstock.state.backends.objects import put_once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A store at one commit, durable."""

    marker: BlobMarker
    directory: DirIndex


class StoreBackup:
    """Uploads the files that the last index does not have. Used by one thread at a time."""

    def __init__(self, context: BackendContext, store: str, budget: ByteBudget, max_part_bytes: int) -> None:
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
