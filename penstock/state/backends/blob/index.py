"""What a store looked like at one commit, as JSON: its files, and the objects that hold them.

Keys are dashed as in Samza's index. Unknown keys are ignored, so that an older Penstock reads what a newer one added.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from penstock.checkpoint.id import CheckpointId
from penstock.documents import decoding, fields, integer, text
from penstock.errors import IncompatibleError
from penstock.state.backends.content.index import DirIndex

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """A store at one commit. `previous` is the name of the index it was compared with, if there was one."""

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
        """The object's bytes; equal values give equal bytes."""
        document = {
            "format": FORMAT,
            "checkpoint-id": str(self.checkpoint_id),
            "creation-time-millis": self.creation_time_ms,
            "job-name": self.job_name,
            "job-id": self.job_id,
            "task": self.task,
            "store-name": self.store,
            "epoch": self.epoch,
            "prev-snapshot-index-blob-id": self.previous,
            "dir-index": self.directory.to_json(),
        }
        return orjson.dumps(document)

    @classmethod
    def deserialize(cls, data: bytes, key: str) -> SnapshotIndex:
        """Read an index. Raises CorruptError naming the key, IncompatibleError for a newer format."""
        with decoding(f"index `{key}` is damaged"):
            document = fields(orjson.loads(data))
            written = integer(document["format"], 1)
            if written > FORMAT:
                raise IncompatibleError(f"index `{key}` has format {written}; this Penstock reads up to {FORMAT}")
            previous = document["prev-snapshot-index-blob-id"]
            return cls(
                CheckpointId.parse(document["checkpoint-id"]),
                integer(document["creation-time-millis"]),
                text(document["job-name"]),
                text(document["job-id"]),
                integer(document["task"]),
                text(document["store-name"]),
                integer(document["epoch"]),
                None if previous is None else text(previous),
                DirIndex.from_json(document["dir-index"]),
            )
