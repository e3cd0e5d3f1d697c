"""Decides which version of its source a table is built from, by listings of folders.

A folder holds versions in one of these forms, and the first that applies counts:

* `_manifest.json` in the folder itself: names the files of the version, below the folder, and the number of their rows.
  Whoever pushes puts the files first, under new names, and then replaces the manifest in one step.
* `_SUCCESS` in the folder itself: everything in the folder is one version, as Spark writes it.
* folders in it that have a `_manifest.json` or `_SUCCESS`: each is a version. The one with the youngest marker counts.

A folder without any of them has no complete version yet. A Delta table has its versions in `_delta_log`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from penstock.api.state.side_inputs import PushedTable
from penstock.base.documents import Count, decode
from penstock.base.wording import counted, listed
from penstock.errors import CorruptError, PenstockError

MANIFEST = "_manifest.json"
SUCCESS = "_SUCCESS"
DELTA_LOG = "_delta_log"
_DELTA_COMMIT = re.compile(r"([0-9]{20})\.json")
_SHOWN = 5


class TableRefusedError(PenstockError):
    """A version of a source cannot become a version of the table; the message says why. It is not tried again before
    the source changes."""


@dataclass(frozen=True, slots=True)
class TableSourceFile:
    """A file of a source."""

    path: str
    """Relative to the folder that was listed."""
    size_bytes: int
    modified_ms: int


class SourceFolders(Protocol):
    """Lists and reads the sources of pushed tables, by the URLs that Spark reads.

    Every method raises RetryableError for what may pass, and ConfigError for what needs a person.
    """

    def markers(self, url: str) -> list[TableSourceFile]:
        """The files `_manifest.json` and `_SUCCESS` in the folder and in the folders directly below it. Empty if
        there is no such folder."""
        ...

    def files(self, url: str) -> list[TableSourceFile]:
        """All files below a folder, at any depth. Empty if there is no such folder."""
        ...

    def read(self, url: str) -> bytes:
        """A whole file. Raises NotFoundError."""
        ...


@dataclass(frozen=True, slots=True)
class VersionPlace:
    """The place of a complete version, with its marker."""

    folder: str
    """Relative to the table's folder; empty: the table's folder itself."""
    marker: TableSourceFile

    @property
    def has_manifest(self) -> bool:
        return _name(self.marker) == MANIFEST


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """A complete version of a source."""

    url: str
    """The folder with its files, or the Delta table."""
    version: str
    """Equal ones have equal rows. Shown to people."""
    files: tuple[str, ...] = ()
    """The URLs of its files; none of a Delta table."""
    rows: int | None = None
    """The number of rows that it must have; None: the source does not say."""
    delta_version: int | None = None


def choose_place(markers: Iterable[TableSourceFile]) -> VersionPlace | None:
    """The newest complete version; None: there is none. Pure."""
    found = {marker.path: marker for marker in markers}
    for own in (MANIFEST, SUCCESS):
        if own in found:
            return VersionPlace("", found[own])
    # A folder that has both is described by its manifest.
    by_folder: dict[str, TableSourceFile] = {}
    for marker in sorted(found.values(), key=lambda each: _name(each) == MANIFEST):
        by_folder[marker.path.rpartition("/")[0]] = marker
    if not by_folder:
        return None
    folder = max(by_folder, key=lambda each: (by_folder[each].modified_ms, each))
    return VersionPlace(folder, by_folder[folder])


def find_place(folders: SourceFolders, side: PushedTable) -> VersionPlace | None:
    """The newest complete version of a table's folder, or of its Delta log; None: there is none yet."""
    if side.format != "delta":
        return choose_place(folders.markers(side.path))
    commits = [file for file in folders.files(join(side.path, DELTA_LOG)) if _DELTA_COMMIT.fullmatch(file.path)]
    return VersionPlace("", max(commits, key=lambda each: each.path)) if commits else None


def read_version(folders: SourceFolders, side: PushedTable, place: VersionPlace) -> SourceVersion:
    """Read the version at a place.

    Raises:
        TableRefusedError: its manifest is no manifest, or files that it names are missing.
        NotFoundError: it is gone.
    """
    if side.format == "delta":
        number = int(_name(place.marker).partition(".")[0])
        return SourceVersion(side.path, f"delta version {number}", delta_version=number)
    url = join(side.path, place.folder) if place.folder else side.path
    files = [file for file in folders.files(url) if _is_data(file)]
    if not place.has_manifest:
        return _version(url, place, files, None, b"")
    data = folders.read(join(url, MANIFEST))
    manifest = _read_manifest(data, join(url, MANIFEST))
    present = {file.path: file for file in files}
    named = manifest.names
    _refuse_missing(url, named, present)
    return _version(url, place, [present[name] for name in named], manifest.rows, data)


def join(url: str, path: str) -> str:
    return f"{url.rstrip('/')}/{path}"


class _NamedFile(Struct):
    name: str
    rows: Count | None = None


class _SourceManifest(Struct):
    """The manifest that a pusher writes: `{"files": ["a.parquet", ...], "rows": 1000}`. A file may also be given as
    `{"name": "a.parquet", "rows": 500}`."""

    files: list[str | _NamedFile]
    rows: Count | None = None

    @property
    def names(self) -> list[str]:
        return [each if isinstance(each, str) else each.name for each in self.files]


def _read_manifest(data: bytes, url: str) -> _SourceManifest:
    try:
        found = decode(_SourceManifest, data, f"`{url}` is not a manifest")
    except CorruptError as error:
        raise TableRefusedError(
            f'{error}. It should read {{"files": ["part-0.parquet"], "rows": 1000}}; write it again, in one step'
        ) from error
    if len(set(found.names)) != len(found.files):
        raise TableRefusedError(f"`{url}` names a file twice: its rows would be read twice")
    if (
        found.rows is None
        and found.files
        and all(isinstance(each, _NamedFile) and each.rows is not None for each in found.files)
    ):
        found.rows = sum(each.rows or 0 for each in found.files if isinstance(each, _NamedFile))
    return found


def _refuse_missing(url: str, named: Sequence[str], present: dict[str, TableSourceFile]) -> None:
    missing = [name for name in named if name not in present]
    if missing:
        shown = listed([f"`{name}`" for name in missing[:_SHOWN]])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise TableRefusedError(
            f"{counted(len(missing), 'file')} of {len(named)} that `{join(url, MANIFEST)}` names "
            f"{'is' if len(missing) == 1 else 'are'} missing: {shown}{more}. Push the files before the manifest"
        )


def _version(
    url: str, place: VersionPlace, files: Sequence[TableSourceFile], rows: int | None, manifest: bytes
) -> SourceVersion:
    """Identify a version by the names, sizes and times of its files: files that are overwritten under their names
    make another version."""
    seen = hashlib.sha256(manifest)
    for file in sorted(files, key=lambda each: each.path):
        seen.update(f"{file.path}\0{file.size_bytes}\0{file.modified_ms}\0".encode())
    if not manifest:
        seen.update(f"{place.marker.modified_ms}".encode())
    version = " ".join(filter(None, (place.folder, seen.hexdigest()[:12])))
    return SourceVersion(url, version, tuple(join(url, file.path) for file in files), rows)


def _is_data(file: TableSourceFile) -> bool:
    """True unless Spark ignores the file: names of files and folders that begin with `_` or `.`, except for
    partitions, which have a `=`."""
    return not any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in file.path.split("/"))


def _name(file: TableSourceFile) -> str:
    return file.path.rpartition("/")[2]
