"""Compares the files of a copy with the last index, by content alone, to find those that are already stored.

Two restores of one copy write different files of one name and size, so these prove nothing. A hash does, under any
name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from penstock.state.backends.content.files import LocalFile
from penstock.state.backends.content.index import DirIndex, FileIndex


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
