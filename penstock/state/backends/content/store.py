"""The content store: the files of a store's copies, each content stored once. Content that is stored already is found
by its hash. The index, kept by the backend, says which files a version has."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Collection
from functools import partial
from pathlib import Path

from penstock.base.parallel import ByteBudget, in_parallel
from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError, NotFoundError
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.backends.content.diff import diff
from penstock.state.backends.content.files import FileHashes, LocalFile, part_ranges
from penstock.state.backends.content.index import DirIndex, FileBlob, FileIndex
from penstock.state.backends.content.names import ContentNames, file_name
from penstock.state.backends.objects import put_once
from penstock.state.known_files import known_files

logger = logging.getLogger(__name__)


class ContentStore:
    """Uploads the files that the last copy did not have. Used by one thread at a time."""

    def __init__(self, context: BackendContext, names: ContentNames, budget: ByteBudget, max_part_bytes: int) -> None:
        self._context = context
        self._names = names
        self._budget = budget
        self._max_part_bytes = max_part_bytes
        self._hashes = FileHashes(max_part_bytes)
        self._put: dict[str, str] = {}
        """SHA-256 -> name of content that was uploaded and is in no index yet, so that a retry does not upload it
        again."""

    def put(
        self,
        checkpoint_id: CheckpointId,
        directory: Path,
        last: DirIndex,
        cancelled: threading.Event,
        *,
        leave_out: Collection[str] = (),
    ) -> DirIndex:
        """Upload the copy's files that `last` does not have, in parallel. New names carry the checkpoint. The caller
        handles the files with the paths in `leave_out`.

        Raises RetryableError once it is cancelled.
        """
        what = f"the upload of {self._names}"
        transfers = self._context.pools.transfers
        found = self._hashes.list(directory, transfers, cancelled, what)
        local = [file for file in found if file.path not in leave_out]
        difference = diff(local, last)
        missing: dict[str, partial[tuple[str, str]]] = {}
        for file in difference.added.values():
            ranges = part_ranges(file.size, self._max_part_bytes)
            for sha256, (offset, size) in zip(file.parts, ranges, strict=True):
                if sha256 not in self._put:
                    name = file_name(self._context.epoch, checkpoint_id, sha256)
                    missing[sha256] = partial(self._put_part, directory / file.path, offset, size, name, sha256)
        for sha256, name in in_parallel(missing.values(), transfers, cancelled, what):
            self._put[sha256] = name
        added = {path: self._indexed(file) for path, file in difference.added.items()}
        logger.debug(
            "%s at %s: %d files added, %d retained, %d removed; %d objects uploaded",
            *(self._names, checkpoint_id, len(added), len(difference.retained), len(difference.removed), len(missing)),
        )
        return DirIndex.of(difference.retained | added)

    def advance(self) -> None:
        """Forget the uploaded content: an index that counts has it now, and the next copy is compared with that.

        Only content in the last index is safe from collection, so nothing else is remembered.
        """
        self._put.clear()

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


def fetch_files(
    context: BackendContext,
    names: ContentNames,
    index: DirIndex,
    directory: Path,
    budget: ByteBudget,
    progress: RestoreProgress,
    *,
    present: bool = False,
) -> None:
    """Download all files of an index in parallel. Every object's size and hash is checked; nothing is opened.

    Args:
        present: files that are in the folder are right: see `keep_files`.

    Raises NotFoundError or CorruptError naming the object, RetryableError if it was cancelled.
    """
    jobs: list[partial[int]] = []
    made: dict[Path, str] = {}
    for path, file in index.by_path().items():
        local = directory / path
        if present and local.exists():
            continue
        made[local] = file.sha256
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(b"")  # the parts are written into it in any order
        jobs += [partial(_fetch, context, names, blob, size, local, budget) for blob, size in file.parts()]
    for size in in_parallel(jobs, context.pools.transfers, progress.cancelled, f"the restore of {names}"):
        progress.report(size)
    for local, sha256 in made.items():
        known_files().note(local, sha256)


def keep_files(index: DirIndex, directory: Path) -> None:
    """Remove every file that is not exactly the one that an index has at its path."""
    wanted = index.by_path()
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            continue
        file = wanted.get(path.relative_to(directory).as_posix())
        if file is None or path.stat().st_size != file.size or known_files().hash_of(path) != file.sha256:
            path.unlink()


def _fetch(
    context: BackendContext, names: ContentNames, blob: FileBlob, size: int, local: Path, budget: ByteBudget
) -> int:
    key = names.key(blob.name)
    what = f"blob `{key}`, of file `{local.name}` of {names},"
    digest, read = hashlib.sha256(), 0
    try:
        with budget.hold(size), local.open("r+b") as file:
            file.seek(blob.offset)
            for piece in context.objects.pieces(key):
                read += len(piece)
                if read > size:  # the part after it may be there already
                    raise CorruptError(f"{what} has {read} of {size} bytes or more")
                digest.update(piece)
                file.write(piece)
    except NotFoundError as error:
        raise NotFoundError(f"{what} is missing") from error
    if read < size:
        raise CorruptError(f"{what} has {read} of {size} bytes")
    if digest.hexdigest() != blob.sha256:
        raise CorruptError(f"{what} is damaged: its hash differs")
    return size
