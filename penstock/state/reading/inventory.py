"""What a job's backends hold, derived from markers and the names of objects alone. Pure; reads no state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from penstock.metadata.paths import versioned_name
from penstock.state.backends.changelog_files.snapshot import SHARED_FOLDER
from penstock.state.backends.content.names import epoch_of, is_index

_NUMBER = re.compile(r"([0-9]+)")
_SHOWN = 40
_EMPTY = "empty"
_VERSIONED_KINDS = {"delta": "deltas", "zip": "snapshots"}


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """Objects of one kind that a task's store has under the job root. `backend` is None for those of unknown names,
    `task` for those in no task's folder."""

    store: str
    task: int | None
    backend: str | None
    kind: str
    count: int
    size_bytes: int


def stored_objects(store: str, folder: str, sizes: Mapping[str, int]) -> list[StoredObjects]:
    """What is in the folder of a store, by task, backend and kind; `sizes` are those of its objects."""
    found: dict[tuple[int | None, str | None, str], tuple[int, int]] = {}
    for key, size in sizes.items():
        task, _, name = key.removeprefix(f"{folder}/").partition("/")
        place = (int(task) if task.isdecimal() and name else None, *_kind(key, name))
        count, total = found.get(place, (0, 0))
        found[place] = count + 1, total + size
    objects = [StoredObjects(store, *place, *totals) for place, totals in found.items()]
    return sorted(objects, key=lambda each: (-1 if each.task is None else each.task, each.backend or "", each.kind))


def summed(objects: Iterable[StoredObjects]) -> list[StoredObjects]:
    """The same over all tasks, by store, backend and kind."""
    found: dict[tuple[str, str | None, str], tuple[int, int]] = {}
    for each in objects:
        place = (each.store, each.backend, each.kind)
        count, size = found.get(place, (0, 0))
        found[place] = count + each.count, size + each.size_bytes
    total = [StoredObjects(store, None, backend, kind, *own) for (store, backend, kind), own in found.items()]
    return sorted(total, key=lambda each: (each.store, each.backend or "", each.kind))


def marker_text(marker: str) -> str:
    """A marker for people: the version and its epoch, `12.3`, as in the names of its files; a blob's index; the
    offsets of a changelog stream. Of any other marker, its beginning."""
    try:
        fields = orjson.loads(marker)
    except orjson.JSONDecodeError:
        fields = None
    match fields:
        case {"version": int(version), "epoch": int(epoch), "lineage": _}:
            return f"{version}.{epoch}" if version else _EMPTY
        case {"index": str(index)}:
            return index.removesuffix(".index")
        case {"changelog-ssp": _, "changelog-offset": None}:
            return _EMPTY
        case {"changelog-ssp": _, "changelog-offset": offset}:
            return f"offsets {fields.get('generation-offset') or 0}..{offset}"
    return marker if len(marker) <= _SHOWN else f"{marker[: _SHOWN - 1]}…"


def span_text(texts: Iterable[str]) -> str:
    """What several tasks have: one text if they have the same, else the least and the greatest, numbers as such."""
    ordered = sorted(set(texts), key=lambda text: (text != _EMPTY, _natural(text)))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def _kind(key: str, name: str) -> tuple[str | None, str]:
    versioned = versioned_name(name)
    if versioned is not None and "/" not in name:
        return "changelog-files", _VERSIONED_KINDS[versioned[2]]
    if epoch_of(key) is not None:
        return "blob", "indexes" if is_index(key) else "files"
    if epoch_of(key, SHARED_FOLDER) is not None:
        return "changelog-files", "snapshot files"
    return None, "other"


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorts `9.1` before `10.1`."""
    parts = _NUMBER.split(text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
