"""The hashes of files that this process has made or verified, so that it does not read them again.

A file is known by its inode, size and time of change. Only immutable files are listed: RocksDB tables and files of
copies. If one was written again all the same, its time differs and it is hashed.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import TypeAlias

_Identity: TypeAlias = tuple[int, int, int, int]
_MOST = 65_536


class KnownFiles:
    """Remembers the hashes of the files that were used last. Thread-safe."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._hashes: OrderedDict[_Identity, str] = OrderedDict()

    def hash_of(self, path: Path) -> str:
        """The SHA-256 of a file, in hexadecimal."""
        identity = _identity(path)
        with self._lock:
            known = self._hashes.get(identity)
        found = known or _hash(path)
        if known is None and _identity(path) != identity:  # it changed meanwhile
            return found
        self._note(identity, found)
        return found

    def note(self, path: Path, sha256: str) -> None:
        """Note the hash of a file that was written or verified just now."""
        self._note(_identity(path), sha256)

    def _note(self, identity: _Identity, sha256: str) -> None:
        with self._lock:
            self._hashes[identity] = sha256
            self._hashes.move_to_end(identity)
            while len(self._hashes) > self._most:
                self._hashes.popitem(last=False)


@cache
def known_files() -> KnownFiles:
    return KnownFiles()


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _hash(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
