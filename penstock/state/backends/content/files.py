"""The files of a copy, with their hashes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from penstock.base.parallel import in_parallel

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
