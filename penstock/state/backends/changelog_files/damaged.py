"""The snapshots that a restore has found to be damaged, for the backups of the same process to go on without them.

Whether all files of a snapshot are there, a listing tells; whether one of them is damaged, only a restore does. An
object never changes, so what was found once stays true.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from penstock.metadata.object_store import ObjectStore

_FOUND: WeakKeyDictionary[ObjectStore, set[str]] = WeakKeyDictionary()


def note_damaged(objects: ObjectStore, key: str) -> None:
    """A snapshot cannot be restored from."""
    _FOUND.setdefault(objects, set()).add(key)


def is_damaged(objects: ObjectStore, key: str) -> bool:
    """Whether that was noted."""
    return key in _FOUND.get(objects, ())
