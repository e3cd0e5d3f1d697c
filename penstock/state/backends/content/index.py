"""The files of a folder and the objects that hold them, and their form as JSON.

Keys are dashed as in Samza's index. Unknown keys are ignored, so that an older Penstock reads what a newer one added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from msgspec import Struct, field

from penstock.base.documents import Count
from penstock.state.backends.content.names import content_of

_DEEPEST = 100


class FileBlob(Struct, frozen=True):
    """An object with a part of a file, which begins at `offset`."""

    name: str = field(name="blob-id")
    offset: Count

    def __post_init__(self) -> None:
        if content_of(self.name) is None:
            raise ValueError(f"`{self.name}` does not name a blob")

    @property
    def sha256(self) -> str:
        return content_of(self.name) or ""


class FileIndex(Struct, frozen=True):
    """A file: its name in its folder, its size and SHA-256, and the blobs it consists of; an empty one has none."""

    name: str = field(name="file-name")
    size: Count
    sha256: str
    blobs: tuple[FileBlob, ...]

    def __post_init__(self) -> None:
        _check_name(self.name)
        ends = [0, *(blob.offset for blob in self.blobs[1:]), self.size] if self.blobs else [0]
        if ends[-1] != self.size or (self.blobs and self.blobs[0].offset) or any(a >= b for a, b in pairwise(ends)):
            raise ValueError(f"the blobs of file `{self.name}` do not make up its {self.size} bytes")

    @property
    def content(self) -> tuple[int, str]:
        """Equal for two files of the same bytes."""
        return self.size, self.sha256

    def parts(self) -> Iterator[tuple[FileBlob, int]]:
        ends = [*(blob.offset for blob in self.blobs[1:]), self.size]
        for blob, end in zip(self.blobs, ends, strict=False):
            yield blob, end - blob.offset


class DirIndex(Struct, frozen=True):
    """A folder: its name (empty at the root), files and folders, by name. A folder without files is left out."""

    name: str = field(name="dir-name")
    files: tuple[FileIndex, ...] = field(name="files-present")
    sub_dirs: tuple[DirIndex, ...] = field(name="sub-dirs-present")

    def __post_init__(self) -> None:
        if self.depth > _DEEPEST:
            raise ValueError(f"folders are nested more than {_DEEPEST} deep")
        names = [*(file.name for file in self.files), *(sub.name for sub in self.sub_dirs)]
        for sub in self.sub_dirs:
            _check_name(sub.name)
        if len(set(names)) < len(names):
            raise ValueError(f"a name occurs twice in folder `{self.name}`")

    @classmethod
    def of(cls, files: Mapping[str, FileIndex], name: str = "") -> DirIndex:
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
        found = {file.name: file for file in self.files}
        for sub in self.sub_dirs:
            found |= {f"{sub.name}/{path}": file for path, file in sub.by_path().items()}
        return found

    def objects(self) -> Iterator[str]:
        """The names of all objects that hold the files. A name occurs once for each use."""
        return (blob.name for file in self.by_path().values() for blob in file.blobs)

    @property
    def depth(self) -> int:
        return max((sub.depth + 1 for sub in self.sub_dirs), default=0)


def _check_name(name: str) -> None:
    """Refuse names that would lead out of the folder that is restored."""
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file or folder")
