"""What a store looked like at one commit, as JSON: its files, and the objects that hold them.

Keys are dashed as in Samza's index. Unknown keys are ignored, so that an older Penstock reads what a newer one added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson

from penstock.checkpoint.id import CheckpointId
from penstock.documents import array, decoding, fields, integer, text
from penstock.errors import IncompatibleError
from penstock.state.backends.content.names import content_of

FORMAT = 1
_DEEPEST = 100


@dataclass(frozen=True, slots=True)
class FileBlob:
    """An object with a part of a file, which begins at `offset`."""

    name: str
    offset: int

    def __post_init__(self) -> None:
        if content_of(self.name) is None:
            raise ValueError(f"`{self.name}` does not name a blob")

    @property
    def sha256(self) -> str:
        """The hash of what the object holds."""
        return content_of(self.name) or ""


@dataclass(frozen=True, slots=True)
class FileIndex:
    """A file: its name in its folder, its size and SHA-256, and the blobs it consists of; an empty one has none."""

    name: str
    size: int
    sha256: str
    blobs: tuple[FileBlob, ...]

    def __post_init__(self) -> None:
        _check_name(self.name)
        ends = [0, *(blob.offset for blob in self.blobs[1:]), self.size] if self.blobs else [0]
        if ends[-1] != self.size or (self.blobs and self.blobs[0].offset) or any(a >= b for a, b in pairwise(ends)):
            raise ValueError(f"the blobs of file `{self.name}` do not make up its {self.size} bytes")

    @property
    def content(self) -> tuple[int, str]:
        """What two files of the same bytes have in common."""
        return self.size, self.sha256

    def parts(self) -> Iterator[tuple[FileBlob, int]]:
        """The blobs and their sizes."""
        ends = [*(blob.offset for blob in self.blobs[1:]), self.size]
        for blob, end in zip(self.blobs, ends, strict=False):
            yield blob, end - blob.offset

    def to_json(self) -> dict[str, Any]:
        """As it stands in an index."""
        blobs = [{"blob-id": blob.name, "offset": blob.offset} for blob in self.blobs]
        return {"file-name": self.name, "size": self.size, "sha256": self.sha256, "blobs": blobs}

    @classmethod
    def from_json(cls, document: Any) -> FileIndex:
        """Raises KeyError, TypeError or ValueError."""
        own = fields(document)
        blobs = tuple(FileBlob(text(blob["blob-id"]), integer(blob["offset"])) for blob in array(own["blobs"]))
        return cls(text(own["file-name"]), integer(own["size"]), text(own["sha256"]), blobs)


@dataclass(frozen=True, slots=True)
class DirIndex:
    """A folder: its name (empty at the root), files and folders, by name. A folder without files is left out."""

    name: str = ""
    files: tuple[FileIndex, ...] = ()
    sub_dirs: tuple[DirIndex, ...] = ()

    def __post_init__(self) -> None:
        names = [*(file.name for file in self.files), *(sub.name for sub in self.sub_dirs)]
        for sub in self.sub_dirs:
            _check_name(sub.name)
        if len(set(names)) < len(names):
            raise ValueError(f"a name occurs twice in folder `{self.name}`")

    @classmethod
    def of(cls, files: Mapping[str, FileIndex], name: str = "") -> DirIndex:
        """The folder with these files, by their paths below it."""
        own: list[FileIndex] = []
        below: dict[str, dict[str, FileIndex]] = {}
        for path, file in sorted(files.items()):
            first, slash, rest = path.partition("/")
            if slash:
                below.setdefault(first, {})[rest] = file
            else:
                own.append(file)
        return cls(name, tuple(own), tuple(cls.of(inner, sub) for sub, inner in sorted(below.items())))

    def by_path(self) -> dict[str, FileIndex]:
        """All files by their paths below this folder."""
        found = {file.name: file for file in self.files}
        for sub in self.sub_dirs:
            found |= {f"{sub.name}/{path}": file for path, file in sub.by_path().items()}
        return found

    def to_json(self) -> dict[str, Any]:
        """As it stands in an index."""
        return {
            "dir-name": self.name,
            "files-present": [file.to_json() for file in self.files],
            "sub-dirs-present": [sub.to_json() for sub in self.sub_dirs],
        }

    @classmethod
    def from_json(cls, document: Any, depth: int = 0) -> DirIndex:
        """Raises KeyError, TypeError or ValueError."""
        if depth > _DEEPEST:
            raise ValueError(f"folders are nested more than {_DEEPEST} deep")
        own = fields(document)
        return cls(
            text(own["dir-name"]),
            tuple(FileIndex.from_json(file) for file in array(own["files-present"])),
            tuple(cls.from_json(sub, depth + 1) for sub in array(own["sub-dirs-present"])),
        )


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """A store at one commit. `previous` is the name of the index it was told apart from, if there was one."""

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


def _check_name(name: str) -> None:
    """Refuse names that would lead out of the folder that is restored."""
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file or folder")
