"""The content store: the files of a store's copies, each content stored once. Content that is stored already is found
by its hash. The index, kept by the backend, says which files a version has.

The files of a copy are compared with the last index by content alone. Two restores of one copy write different files
of one name and size, so these prove nothing. A hash does, under any name.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from penstock.base.files import known_files
from penstock.base.parallel import ByteBudget, in_parallel
from penstock.checkpoint.record import CheckpointId
from penstock.errors import CorruptError, NotFoundError
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.backends.objects import ContentNames, DirIndex, FileBlob, FileIndex, file_name, put_once

MAX_PART_BYTES = 32 << 20
"""Files are cut into equal parts of at most this size, so that memory and a retry are bounded."""
_READ_BYTES = 256 << 10
"""Small enough to be still in the processor's cache when the bytes are hashed again, for the whole file."""

_Identity: TypeAlias = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a copy: its path below the copy, size and SHA-256, and the SHA-256 of each part."""

    path: str
    size: int
    sha256: str
    parts: tuple[str, ...]

    @property
    def content(self) -> tuple[int, str]:
        """Equal for two files of the same bytes."""
        return self.size, self.sha256


def part_ranges(size: int, max_bytes: int = MAX_PART_BYTES) -> Iterator[tuple[int, int]]:
    """(offset, size) of the parts of a file of this size."""
    parts = -(-size // max_bytes)
    for number in range(parts):
        offset, end = size * number // parts, size * (number + 1) // parts
        yield offset, end - offset


class FileHashes:
    """Lists copies of one store, and hashes the files that the previous copy did not have. Used by one thread at a
    time."""

    def __init__(self, max_part_bytes: int = MAX_PART_BYTES) -> None:
        self._max_part_bytes = max_part_bytes
        self._seen: dict[_Identity, LocalFile] = {}

    def list(self, directory: Path, transfers: Executor, cancelled: threading.Event, what: str) -> list[LocalFile]:
        """Every file below the directory, by path. Raises RetryableError, saying `what`, once it is cancelled."""
        files: dict[_Identity, LocalFile] = {}
        new: list[_Identity] = []
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                status = path.stat()
                identity = (path.relative_to(directory).as_posix(), status.st_size, status.st_ino, status.st_mtime_ns)
                if identity in self._seen:
                    files[identity] = self._seen[identity]
                else:
                    new.append(identity)
        jobs = [partial(self._hash, directory, identity) for identity in new]
        files |= in_parallel(jobs, transfers, cancelled, what)
        # RocksDB writes an `.sst` once and never again gives its name to another one as long as the database is open,
        # which is longer than these hashes live; a copy is a hard link, with the inode and the time of the original.
        # So a file that equals the last copy's in all of them is that file. The inode tells it from a file that was
        # copied rather than linked; all other files are small, or change, and are hashed each time.
        self._seen = {identity: file for identity, file in files.items() if file.path.endswith(".sst")}
        return sorted(files.values(), key=lambda file: file.path)

    def _hash(self, directory: Path, identity: _Identity) -> tuple[_Identity, LocalFile]:
        path, size, *_ = identity
        whole, parts = hashlib.sha256(), []
        buffer = memoryview(bytearray(_READ_BYTES))
        with (directory / path).open("rb", buffering=0) as file:
            for _, left in part_ranges(size, self._max_part_bytes):
                part = hashlib.sha256()
                while left > 0 and (read := file.readinto(buffer[:left])):
                    part.update(buffer[:read])
                    whole.update(buffer[:read])
                    left -= read
                parts.append(part.hexdigest())
        return identity, LocalFile(path, size, whole.hexdigest(), tuple(parts))


@dataclass(frozen=True, slots=True)
class DirDiff:
    """The result of a comparison. `retained` and `added` together are the copy's files, by path."""

    retained: dict[str, FileIndex]
    """Files whose content the index has, under their paths in the copy."""
    added: dict[str, LocalFile]
    removed: dict[str, FileIndex]
    """Files of the index that the copy does not have under that path."""


def diff(local: Iterable[LocalFile], index: DirIndex) -> DirDiff:
    before = index.by_path()
    stored = {file.content: file for file in before.values()}
    retained: dict[str, FileIndex] = {}
    added: dict[str, LocalFile] = {}
    for file in local:
        known = stored.get(file.content)
        if known is None:
            added[file.path] = file
        else:
            retained[file.path] = replace(known, name=file.path.rpartition("/")[2])
    kept = {(path, file.content) for path, file in retained.items()}
    removed = {path: file for path, file in before.items() if (path, file.content) not in kept}
    return DirDiff(retained, added, removed)


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
