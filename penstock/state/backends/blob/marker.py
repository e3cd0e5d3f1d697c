"""The marker of a store in the blob backend: the name of an index and the hash of that index.

The index has the hash of every file, so the marker vouches for every byte of the store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import orjson

from penstock.base.documents import decode_format
from penstock.errors import CorruptError, NotFoundError
from penstock.objects.store import ObjectStore
from penstock.state.backends.blob.index import SnapshotIndex
from penstock.state.backends.blob.names import index_epoch
from penstock.state.backends.content.names import ContentNames

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BlobMarker:
    """The name of an index and the SHA-256 of its bytes."""

    index: str
    sha256: str

    def serialize(self) -> str:
        return orjson.dumps({"format": _FORMAT, "index": self.index, "sha256": self.sha256}).decode()

    @classmethod
    def parse(cls, text: str) -> BlobMarker:
        """Raises CorruptError if the text is not a marker, IncompatibleError for a newer format."""
        what = f"`{text}` is not a marker of the blob backend"
        marker = decode_format(cls, text, what, f"marker `{text}`", _FORMAT)
        if index_epoch(marker.index) is None:
            raise CorruptError(f"marker `{text}` of the blob backend does not name an index")
        return marker


def read_index(objects: ObjectStore, names: ContentNames, marker: BlobMarker) -> SnapshotIndex:
    """The index that a marker names. Raises NotFoundError, CorruptError or IncompatibleError, naming the object."""
    key = names.key(marker.index)
    try:
        data = objects.get(key)
    except NotFoundError as error:
        raise NotFoundError(f"index `{key}` of {names} is missing") from error
    if hashlib.sha256(data).hexdigest() != marker.sha256:
        raise CorruptError(f"index `{key}` of {names} is damaged: the hash of its {len(data)} bytes does not match")
    return SnapshotIndex.decode(data, key)
