"""The content of a job's backends, derived from markers and the names of objects alone. Reads no state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from penstock.state.backends.base import EMPTY, StateBackendFactory, first_characters
from penstock.state.backends.registry import backend_factory, built_in

_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """Objects of one kind that a task's store has under the job root. `backend` is None for objects with unknown names,
    `task` for objects in no task's folder."""

    store: str
    task: int | None
    backend: str | None
    kind: str
    count: int
    size_bytes: int


def stored_objects(
    store: str, folder: str, sizes: Mapping[str, int], backends: Iterable[str] = ()
) -> list[StoredObjects]:
    """The objects in the folder of a store, by task, backend and kind; `sizes`: their sizes. Knows the objects of
    Penstock's own backends and of the `backends` that are named."""
    others = {name: factory for name in backends if (factory := _factory(name)) is not None}
    known = {**built_in(), **others}
    found: dict[tuple[int | None, str | None, str], tuple[int, int]] = {}
    for key, size in sizes.items():
        task, _, name = key.removeprefix(f"{folder}/").partition("/")
        place = (int(task) if task.isdecimal() and name else None, *_kind(name, known))
        count, total = found.get(place, (0, 0))
        found[place] = count + 1, total + size
    objects = [StoredObjects(store, *place, *totals) for place, totals in found.items()]
    return sorted(objects, key=lambda each: (-1 if each.task is None else each.task, each.backend or "", each.kind))


def summed(objects: Iterable[StoredObjects]) -> list[StoredObjects]:
    """The objects of all tasks together, by store, backend and kind."""
    found: dict[tuple[str, str | None, str], tuple[int, int]] = {}
    for each in objects:
        place = (each.store, each.backend, each.kind)
        count, size = found.get(place, (0, 0))
        found[place] = count + each.count, size + each.size_bytes
    total = [StoredObjects(store, None, backend, kind, *own) for (store, backend, kind), own in found.items()]
    return sorted(total, key=lambda each: (each.store, each.backend or "", each.kind))


def marker_text(backend: str, marker: str) -> str:
    """A marker for people, as its backend describes it; its beginning if the backend cannot be loaded."""
    factory = _factory(backend)
    return first_characters(marker) if factory is None else factory.marker_text(marker)


def span_text(texts: Iterable[str]) -> str:
    """The texts of several tasks as one: the text if all are equal, else the least and the greatest, numbers as
    such."""
    ordered = sorted(set(texts), key=lambda text: (text != EMPTY, _natural(text)))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


@cache
def _factory(backend: str) -> StateBackendFactory | None:
    try:
        return backend_factory(backend)
    except Exception:  # whatever the module of one's own raises: what it describes is no more than a help
        return None


def _kind(name: str, backends: Mapping[str, StateBackendFactory]) -> tuple[str | None, str]:
    for backend, factory in backends.items():
        if (kind := factory.kind_of(name)) is not None:
            return backend, kind
    return None, "other"


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key: `9.1` comes before `10.1`."""
    parts = _NUMBER.split(text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
