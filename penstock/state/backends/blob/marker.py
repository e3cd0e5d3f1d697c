"""The marker of a store in the blob backend: which index, and the hash of that index.

The index has the hash of every file, so the marker vouches for every byte of the store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import orjson

from penstock import documents
from penstock.documents import decoding
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.metadata.object_store import ObjectStore
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
        """The marker as it is written in a checkpoint."""
        return orjson.dumps({"format": _FORMAT, "index": self.index, "sha256": self.sha256}).decode()

    @classmethod
    def deserialize(cls, text: str) -> BlobMarker:
        """Read a marker. Raises CorruptError if it is not one, IncompatibleError for a newer format."""
        with decoding(f"`{text}` is not a marker of the blob backend"):
            document = documents.fields(orjson.loads(text))
            written = documents.integer(document["format"], 1)
            if written > _FORMAT:
                raise IncompatibleError(f"marker `{text}` has format {written}; this Penstock reads up to {_FORMAT}")
            marker = cls(documents.text(document["index"]), documents.text(document["sha256"]))
        if index_epoch(marker.index) is None:
            raise CorruptError(f"marker `{text}` of the blob backend does not name an index")
        return marker


def read_index(objects: ObjectStore, names: ContentNames, marker: BlobMarker) -> SnapshotIndex:
    """The index of a marker. Raises NotFoundError, CorruptError or IncompatibleError, naming the object."""
    key = names.key(marker.index)
    try:
        data = objects.get(key)
    except NotFoundError as error:
        raise NotFoundError(f"index `{key}` of {names} is missing") from error
    if hashlib.sha256(data).hexdigest() != marker.sha256:
        raise CorruptError(f"index `{key}` of {names} is damaged: the hash of its {len(data)} bytes does not match")
    return SnapshotIndex.deserialize(data, key)
