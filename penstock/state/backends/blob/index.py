"""The index of a store at one commit, as JSON: its files, and the objects that hold them.

Keys are dashed as in Samza's index. Unknown keys are ignored, so that an older Penstock reads what a newer one added.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from penstock.base.documents import Count, decode_format
from penstock.checkpoint.id import CheckpointId
from penstock.state.backends.content.index import DirIndex

FORMAT = 1


class SnapshotIndex(Struct, frozen=True, rename="kebab", tag_field="format", tag=FORMAT):
    """A store at one commit. `previous` is the name of the index it was compared with, if any."""

    checkpoint_id: str
    creation_time_ms: Count = field(name="creation-time-millis")
    job_name: str
    job_id: str
    task: Count
    store: str = field(name="store-name")
    epoch: Count
    previous: str | None = field(name="prev-snapshot-index-blob-id")
    directory: DirIndex = field(name="dir-index")

    def __post_init__(self) -> None:
        CheckpointId.parse(self.checkpoint_id)

    def encode(self) -> bytes:
        """Equal values give equal bytes."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes, key: str) -> SnapshotIndex:
        """Raises CorruptError naming the key, IncompatibleError for a newer format."""
        return decode_format(cls, data, f"index `{key}` is damaged", f"index `{key}`", FORMAT)
