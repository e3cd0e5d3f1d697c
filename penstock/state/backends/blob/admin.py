"""The admin of the blob backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.state.backends.base import StoreMarker
from penstock.state.backends.blob.marker import BlobMarker, read_index
from penstock.state.backends.blob.names import blob_names, epoch_of, is_index
from penstock.state.backends.objects import ObjectBackendAdmin


class BlobAdmin(ObjectBackendAdmin):
    """Deletes files and indexes that no retained index names."""

    def reach(self, markers: Sequence[StoreMarker]) -> set[str]:
        return set[str]().union(*map(self._reach_one, markers))

    def epoch_of(self, key: str) -> int | None:
        return epoch_of(key)

    def order(self, key: str) -> tuple[int, ...]:
        """An index is deleted after the objects it names, of its epoch or older: as long as it exists they can be
        found."""
        return (epoch_of(key) or 0, 1 if is_index(key) else 0)

    def _reach_one(self, own: StoreMarker) -> frozenset[str]:
        names = blob_names(self.context.paths, own.store, own.task)
        marker = BlobMarker.parse(own.marker)

        def read() -> Iterator[str]:
            return map(names.key, read_index(self.context.objects, names, marker).directory.objects())

        return self.reach_of_index(names.key(marker.index), read)
