"""The snapshot file, `<version>.<epoch>.zip`: a store at one version.

A zip archive of `snapshot.json`, which names its store and version and the objects of its larger files, and of the
small files themselves, below `files/`. Its comment, the last 64 bytes, is the SHA-256 of everything before it in
hexadecimal. The larger files, RocksDB's tables above all, are stored once by content and shared by the snapshots that
have them.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from penstock.base.budgets import opened_archive
from penstock.base.documents import Count, Positive, decode_format, decoding
from penstock.errors import CorruptError
from penstock.job.paths import JobPaths
from penstock.state.backends.changelog_files.marker import Version
from penstock.state.backends.content.index import DirIndex
from penstock.state.backends.content.names import ContentNames

FORMAT = 1
SHARED_FOLDER = "files"
"""The folder of the shared files, in a task's folder."""
_CHECKSUM = 64
_INDEX, _SMALL = "snapshot.json", "files/"


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """All files of a store at one version."""

    version: Version
    store: str
    task: int
    shared: DirIndex
    small: Mapping[str, bytes]
    """The other files: path -> content."""

    def encode(self) -> bytes:
        """Equal values give equal bytes."""
        written = _SnapshotFields(FORMAT, *self.version, self.store, self.task, self.shared)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_info(_INDEX), msgspec.json.encode(written))
            for path, data in sorted(self.small.items()):
                archive.writestr(_info(f"{_SMALL}{path}"), data)
            archive.comment = b"0" * _CHECKSUM
        body = buffer.getvalue()[:-_CHECKSUM]
        return body + hashlib.sha256(body).hexdigest().encode()

    @classmethod
    def decode(cls, data: bytes, key: str) -> StoreSnapshot:
        """Raises CorruptError naming the key, IncompatibleError for a newer format."""
        if hashlib.sha256(data[:-_CHECKSUM]).hexdigest().encode() != data[-_CHECKSUM:]:
            raise CorruptError(f"snapshot `{key}` is damaged: the checksum of its {len(data)} bytes does not match")
        what = f"snapshot `{key}` is damaged"
        with decoding(what), opened_archive(data, f"snapshot `{key}`") as archive:
            own = decode_format(_SnapshotFields, archive.read(_INDEX), what, f"snapshot `{key}`", FORMAT)
            names = [name for name in archive.namelist() if name.startswith(_SMALL)]
            if any(part in {"", ".", ".."} for name in names for part in name.split("/")):
                raise ValueError("a file leads out of its folder")
            small = {name.removeprefix(_SMALL): archive.read(name) for name in names}
            return cls((own.version, own.epoch), own.store, own.task, own.shared, small)


class _SnapshotFields(Struct):
    """The fields of `snapshot.json`."""

    format: Positive
    version: Count
    epoch: Count
    store: str
    task: Count
    shared: DirIndex


def shared_names(paths: JobPaths, store: str, task: int) -> ContentNames:
    return ContentNames(paths, store, task, SHARED_FOLDER)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    return info
