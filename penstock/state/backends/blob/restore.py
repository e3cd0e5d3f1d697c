"""The restore manager of the blob backend."""

from __future__ import annotations

from penstock.base.parallel import ByteBudget
from penstock.state.backends.base import BackendContext, RestoreProgress, RestoreTarget, TaskRestoreManager
from penstock.state.backends.blob.marker import BlobMarker, read_index
from penstock.state.backends.blob.names import blob_names
from penstock.state.backends.content.store import fetch_files, keep_files


class BlobRestore(TaskRestoreManager):
    """Downloads the files of an index."""

    def __init__(self, context: BackendContext, budget: ByteBudget) -> None:
        self._context = context
        self._budget = budget

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        names = blob_names(self._context.paths, store, self._context.task)
        index = read_index(self._context.objects, names, BlobMarker.parse(marker))
        fetch_files(self._context, names, index.directory, target.directory, self._budget, progress)

    def advance(self, store: str, held: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> bool:
        """Keep the files that the later version has, too, and download the others. No engine is opened over them."""
        names = blob_names(self._context.paths, store, self._context.task)
        index = read_index(self._context.objects, names, BlobMarker.parse(marker))
        keep_files(index.directory, target.directory)
        fetch_files(self._context, names, index.directory, target.directory, self._budget, progress, present=True)
        return True
