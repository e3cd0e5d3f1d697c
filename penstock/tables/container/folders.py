"""The loaded versions of a pushed table on a host, which all its processes share.

    table-<version>-<task|all>/   a version, loaded: `db/`, an engine's files, and `complete.json`, written before the
                                  folder gets this name
    making-<token>/               one that a process is loading
    dropped-<token>/              one that is being removed, or was damaged while others read it
    <task|all>.lock               held by the process that loads it, so that others wait for its result

Each user of a folder holds a shared lock on it (`penstock.host.folder`).
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
from msgspec import Struct

from penstock.base.documents import Count, decode
from penstock.errors import CorruptError, RetryableError
from penstock.host.folder import HostFolder

DATABASE = "db"
_COMPLETE = "complete.json"
_LOADED = re.compile(r"table-(\d+)-(\d+|all)")
_OWN = ("table-", "making-", "dropped-")
_LOOK_SECONDS = 0.05
_TRIES = 5


class TableFolders:
    """The folders of one table. Thread-safe. All methods but `clean` raise OSError if the disk refuses."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def take(self, version: int, unit: str, checksum: str) -> HostFolder | None:
        """Use a version that was loaded before; None if there is none.

        Args:
            unit: the task, or `all`.
            checksum: that of the version's manifest. A folder of another one is not used.
        """
        folder = HostFolder.lock(self._loaded(version, unit), shared=True)
        if folder is not None and _checksum_in(folder.path) != checksum:
            folder.release()
            return None
        return folder

    def make(self) -> HostFolder:
        """Make a folder that nobody else looks at."""
        self.base.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            path = self.base / f"making-{uuid.uuid4().hex}"
            path.mkdir()
            folder = HostFolder.lock(path, shared=True)
            if folder is not None:  # otherwise somebody took it for a remainder before it was locked
                return folder
        raise RetryableError(f"the folders in `{self.base}` vanish while they are made")

    def publish(self, made: HostFolder, version: int, unit: str, checksum: str) -> HostFolder:
        """Publish a complete folder: from now on `take` finds it. Returns it under its new name, or the one that
        another process has published meanwhile."""
        (made.path / _COMPLETE).write_bytes(orjson.dumps({"format": 1, "checksum": checksum}))
        target = self._loaded(version, unit)
        for _ in range(_TRIES):
            try:
                made.path.rename(target)
            except OSError:
                if not target.exists():
                    raise
            else:
                made.path = target
                return made
            other = self.take(version, unit, checksum)
            if other is not None:
                self.drop(made)
                return other
            if (away := self._move_away(target)) is not None:
                _remove(away)
        raise RetryableError(f"another program keeps replacing `{target}`: find it and stop it")

    def drop(self, folder: HostFolder) -> None:
        """Stop using a folder, and remove it: it is damaged, or was not completed. Never raises."""
        self.set_aside(folder)
        folder.release()
        _remove(folder.path)

    def set_aside(self, folder: HostFolder) -> None:
        """Hide a damaged folder from others. This process may go on reading it. Never raises."""
        with suppress(OSError):
            folder.path = self._move_away(folder.path) or folder.path

    @contextmanager
    def loading(self, unit: str, cancelled: threading.Event) -> Iterator[None]:
        """Let one process of the host at a time load a unit. The others wait, and find the folder afterwards.

        Raises RetryableError once it is cancelled.
        """
        while (turn := HostFolder.lock_beside(self.base / unit)) is None:
            if cancelled.wait(_LOOK_SECONDS):
                raise RetryableError("the loading was cancelled")
        try:
            yield
        finally:
            turn.release()

    def clean(self, keep: Collection[int], newest: int) -> None:
        """Remove unused folders: versions that are neither in `keep` nor among the newest, and the leftovers of dead
        processes. Never raises: the next call tries again."""
        try:
            found = sorted(self.base.iterdir())
        except OSError:
            return
        loaded = {path: int(match[1]) for path in found if (match := _LOADED.fullmatch(path.name))}
        kept = {*keep, *sorted(set(loaded.values()))[-newest:]}
        for path in found:
            if loaded[path] not in kept if path in loaded else path.name.startswith(_OWN):
                _remove(path)

    def _loaded(self, version: int, unit: str) -> Path:
        return self.base / f"table-{version}-{unit}"

    def _move_away(self, path: Path) -> Path | None:
        """Rename a folder, even while others read it, so that nobody takes it any more."""
        dropped = self.base / f"dropped-{uuid.uuid4().hex}"
        try:
            path.rename(dropped)
        except FileNotFoundError:
            return None
        return dropped


def _remove(path: Path) -> None:
    with suppress(OSError):
        if (unused := HostFolder.lock(path)) is not None:
            unused.remove()


class _CompleteMark(Struct):
    """The content of `complete.json`."""

    format: Count
    checksum: str


def _checksum_in(path: Path) -> str | None:
    try:
        return decode(_CompleteMark, (path / _COMPLETE).read_bytes(), f"`{path / _COMPLETE}`").checksum
    except (FileNotFoundError, CorruptError):
        return None
