"""The files of a folder and the objects that hold them, as JSON.

Keys are dashed as in Samza's index. Unknown keys are ignored, so that an older Penstock reads what a newer one added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock.documents import array, fields, integer, text
from penstock.state.backends.content.names import content_of

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
        """As it is written in an index."""
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

    def objects(self) -> Iterator[str]:
        """The names of all objects that hold the files, as often as they are named."""
        return (blob.name for file in self.by_path().values() for blob in file.blobs)

    def to_json(self) -> dict[str, Any]:
        """As it is written in an index."""
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


def _check_name(name: str) -> None:
    """Refuse names that would lead out of the folder that is restored."""
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file or folder")
