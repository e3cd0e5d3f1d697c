"""The admin of the blob backend."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock.state.backends.base import AdminContext, StoreMarker
from penstock.state.backends.blob.marker import BlobMarker, read_index
from penstock.state.backends.blob.names import blob_names, epoch_of, is_index
from penstock.state.backends.objects import ObjectBackendAdmin

_CACHED_KEYS = 1_000_000


class BlobAdmin(ObjectBackendAdmin):
    """Deletes files and indexes that no retained index names."""

    def __init__(self, context: AdminContext) -> None:
        super().__init__(context)
        self._reached: dict[str, frozenset[str]] = {}
        """Key of an index -> that key and all the keys it names. An index never changes; the next one names mostly the
        same."""
        self._cached_keys = 0

    def reach(self, markers: Sequence[StoreMarker]) -> set[str]:
        found: set[str] = set()
        for own in markers:
            found |= self._reach_one(own)
        return found

    def epoch_of(self, key: str) -> int | None:
        return epoch_of(key)

    def order(self, key: str) -> tuple[int, ...]:
        """An index is deleted after the objects it names, of its epoch or older: as long as it exists they can be
        found."""
        return (epoch_of(key) or 0, 1 if is_index(key) else 0)

    def _reach_one(self, own: StoreMarker) -> frozenset[str]:
        names = blob_names(self.context.paths, own.store, own.task)
        marker = BlobMarker.deserialize(own.marker)
        key = names.key(marker.index)
        if key not in self._reached:
            index = read_index(self.context.objects, names, marker).directory
            blobs = {sys.intern(names.key(name)) for name in index.objects()}
            self._remember(key, frozenset({key, *blobs}))
        return self._reached[key]

    def _remember(self, key: str, reached: frozenset[str]) -> None:
        self._reached[key] = reached
        self._cached_keys += len(reached)
        while self._cached_keys > _CACHED_KEYS and len(self._reached) > 1:
            self._cached_keys -= len(self._reached.pop(next(iter(self._reached))))
