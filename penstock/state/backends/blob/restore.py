"""The restore manager of the blob backend."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from penstock.errors import CorruptError, NotFoundError
from penstock.state.backends.base import BackendContext, RestoreProgress, RestoreTarget, TaskRestoreManager
from penstock.state.backends.blob.index import FileBlob
from penstock.state.backends.blob.marker import BlobMarker, read_index
from penstock.state.backends.blob.names import BlobNames
from penstock.state.backends.blob.transfer import ByteBudget, in_parallel


class BlobRestore(TaskRestoreManager):
    """Downloads the files of an index in parallel. Every object's size and hash is checked; nothing is opened."""

    def __init__(self, context: BackendContext, budget: ByteBudget) -> None:
        self._context = context
        self._budget = budget

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        names = BlobNames(self._context.paths, store, self._context.task)
        index = read_index(self._context.objects, names, BlobMarker.deserialize(marker))
        jobs: list[partial[int]] = []
        for path, file in index.directory.by_path().items():
            local = target.directory / path
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(b"")  # the parts are written into it in any order
            jobs += [partial(self._fetch, names, blob, size, local) for blob, size in file.parts()]
        for size in in_parallel(jobs, progress.cancelled, f"the restore of {names}"):
            progress.report(size)

    def _fetch(self, names: BlobNames, blob: FileBlob, size: int, local: Path) -> int:
        key = names.key(blob.name)
        with self._budget.hold(size):
            try:
                data = self._context.objects.get(key)
            except NotFoundError as error:
                raise NotFoundError(f"blob `{key}`, of file `{local.name}` of {names}, is missing") from error
            if len(data) != size:
                raise CorruptError(f"blob `{key}`, of file `{local.name}` of {names}, has {len(data)} of {size} bytes")
            if hashlib.sha256(data).hexdigest() != blob.sha256:
                raise CorruptError(f"blob `{key}`, of file `{local.name}` of {names}, is damaged: its hash differs")
            with local.open("r+b") as file:
                file.seek(blob.offset)
                file.write(data)
        return size
