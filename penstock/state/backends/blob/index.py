"""The index of a store at one commit, as JSON: its files, and the objects that hold them.

Keys are dashed as in Samza's index. Unknown keys are ignored, so that an older Penstock reads what a newer one added.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from penstock.checkpoint.id import CheckpointId
from penstock.documents import Count, Positive, decode_format, decoding
from penstock.state.backends.content.index import DirIndex

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """A store at one commit. `previous` is the name of the index it was compared with, if any."""

    checkpoint_id: CheckpointId
    creation_time_ms: int
    job_name: str
    job_id: str
    task: int
    store: str
    epoch: int
    previous: str | None
    directory: DirIndex

    def serialize(self) -> bytes:
        """Equal values give equal bytes."""
        written = _IndexFields(
            FORMAT,
            str(self.checkpoint_id),
            self.creation_time_ms,
            self.job_name,
            self.job_id,
            self.task,
            self.store,
            self.epoch,
            self.previous,
            self.directory,
        )
        return msgspec.json.encode(written)

    @classmethod
    def deserialize(cls, data: bytes, key: str) -> SnapshotIndex:
        """Raises CorruptError naming the key, IncompatibleError for a newer format."""
        what = f"index `{key}` is damaged"
        with decoding(what):
            own = decode_format(_IndexFields, data, what, f"index `{key}`", FORMAT)
            return cls(
                CheckpointId.parse(own.checkpoint_id),
                own.creation_time_millis,
                own.job_name,
                own.job_id,
                own.task,
                own.store_name,
                own.epoch,
                own.prev_snapshot_index_blob_id,
                own.dir_index,
            )


class _IndexFields(Struct, rename="kebab"):
    """The fields of an index, as they are written."""

    format: Positive
    checkpoint_id: str
    creation_time_millis: Count
    job_name: str
    job_id: str
    task: Count
    store_name: str
    epoch: Count
    prev_snapshot_index_blob_id: str | None
    dir_index: DirIndex
