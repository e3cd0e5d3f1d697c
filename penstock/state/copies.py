"""Copies of a store on the host, one for each of the last checkpoints: a restart there needs no download.

    copy-<checkpoint id>/       the engine's files, immutable
    copy-<checkpoint id>.json   the markers of the store, and every file with its size and SHA-256; written last, so
                                a folder without it is not a copy

A copy is used only for exactly the checkpoint it was made at, and after all of it was verified. The id alone does not
identify that checkpoint: a driver that was replaced publishes copies before it finds that it cannot write its record,
and its successor's record may have the same id. A marker of a backend means one content. A file that this process has
hashed before is not hashed again (`penstock.state.known_files`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson
from msgspec import Struct

from penstock.base.documents import Count, VersionedDocument, decode, decoding
from penstock.checkpoint.id import CheckpointId
from penstock.errors import ConfigError, CorruptError
from penstock.host.posix import sync_path
from penstock.state.known_files import known_files

_FORMAT = 2


def tasks_with_copies(base: Path) -> tuple[int, ...]:
    """The tasks that have copies of any store below the folder of a job's stores, or side stores that are filled
    there."""
    tasks = {path.parent.name for path in base.glob("*/*/copy-*.json")}
    tasks |= {path.parent.name.removeprefix("side-") for path in base.glob("*/side-*/CURRENT")}
    return tuple(sorted(int(task) for task in tasks if task.isdecimal()))


class LocalCopies:
    """The copies of one store of one task, in the folder of its working copies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._durable: set[tuple[int, int, int]] = set()
        """(inode, size, mtime) of the files of the last copy. Copies share their files by hard links."""

    def publish(self, checkpoint_id: CheckpointId, markers: Mapping[str, str], files: Path) -> None:
        """Make the folder `files` the copy of a checkpoint, with the store's marker of each backend. It is moved, and
        durable when this returns."""
        target = self._folder / f"copy-{checkpoint_id}"
        shutil.rmtree(target, ignore_errors=True)
        durable: set[tuple[int, int, int]] = set()
        listing: dict[str, tuple[int, str]] = {}
        for path in _files(files):
            stat = path.stat()
            key = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if key not in self._durable:
                sync_path(path)
            durable.add(key)
            listing[str(path.relative_to(files))] = (stat.st_size, known_files().hash_of(path))
        self._durable = durable
        files.rename(target)
        sync_path(self._folder)
        made = self._folder / f"copy-{checkpoint_id}.json.new"
        made.write_bytes(orjson.dumps({"format": _FORMAT, "markers": dict(markers), "files": listing}))
        sync_path(made)
        made.rename(self._description(checkpoint_id))
        sync_path(self._folder)

    def take(self, checkpoint_id: CheckpointId, markers: Mapping[str, str], target: Path) -> bool:
        """Link a verified copy of exactly this checkpoint, which has these markers of the store, into the new folder
        `target`; False if there is none.

        Files an engine never changes are linked, the others copied.

        Raises:
            CorruptError: there is one, but it is damaged; it is left for `keep_only` to remove.
        """
        try:
            description = self._description(checkpoint_id).read_bytes()
        except FileNotFoundError:
            return False
        written = read_description(description, str(self._description(checkpoint_id)))
        if written is None or not written.markers.items() & markers.items():
            return False
        listing = written.files
        source = self._folder / f"copy-{checkpoint_id}"
        target.mkdir(parents=True)
        for name, (size, expected) in listing.items():
            path = source / name
            if not path.is_file() or path.stat().st_size != size or known_files().hash_of(path) != expected:
                raise CorruptError(f"the file `{path}` of a local copy is missing or damaged")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".sst"):
                os.link(path, target / name)
            else:
                shutil.copy2(path, target / name)
        return True

    def keep_only(self, kept: CheckpointId | None) -> None:
        for path in self._folder.glob("copy-*"):
            if kept is None or path.name not in {f"copy-{kept}", f"copy-{kept}.json"}:
                _remove(path)

    def ids(self) -> list[CheckpointId]:
        found = []
        for path in self._folder.glob("copy-*.json"):
            try:
                found.append(CheckpointId.parse(path.name.removeprefix("copy-").removesuffix(".json")))
            except ConfigError:
                continue
        return sorted(found)

    def _description(self, checkpoint_id: CheckpointId) -> Path:
        return self._folder / f"copy-{checkpoint_id}.json"


class Description(Struct):
    """The description of a copy: the store's marker of each backend, and each file's size and hash."""

    markers: dict[str, str]
    files: dict[str, tuple[Count, str]]


def read_description(data: bytes, path: str) -> Description | None:
    """None if the description is of another format. Raises CorruptError naming the path."""
    what = f"the description of the local copy `{path}` is damaged"
    with decoding(what):
        if decode(VersionedDocument, data, what).format != _FORMAT:
            return None
        found = decode(Description, data, what)
        for name in found.files:
            if any(part in {"", ".", ".."} for part in name.split("/")) or "\0" in name:
                raise ValueError(f"{name!r} leads out of the copy")
        if not found.files:
            raise ValueError("no engine has no files: a store opened over nothing would be an empty one")
        return found


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
