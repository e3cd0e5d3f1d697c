"""The objects of backends that keep files: their names, their index, and their garbage.

Objects that hold files by content are all in one folder of a task's store.

    <epoch>-<checkpoint id>-<sha256>    a file, or a part of one, that this commit was the first to hold

A name is never used for anything else: content that comes back after it was gone gets a new name. So a commit under
way can need an object of a checkpoint that left the log only if the checkpoint before the commit names it, too.

An index has the files of a folder and the objects that hold them, as JSON. Keys are dashed as in Samza's index.
Unknown keys are ignored, so that an older Penstock reads what a newer one added.

The admins of backends that keep objects under the job root find garbage and delete it in the same way.
"""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from msgspec import Struct, field

from penstock.base.documents import Count
from penstock.checkpoint.record import CheckpointId
from penstock.errors import CorruptError, NotFoundError, PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import AdminContext, Garbage, Retention, StateBackendAdmin, StoreMarker

NUMBER = "(?:0|[1-9][0-9]*)"
_NAME = re.compile(rf"({NUMBER})-{NUMBER}-{NUMBER}-([0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True)
class ContentNames:
    """The names in one folder of a task's store."""

    paths: JobPaths
    store: str
    task: int
    folder: str

    def key(self, name: str) -> str:
        return self.paths.state_object(self.store, self.task, f"{self.folder}/{name}")

    def __str__(self) -> str:
        return f"store `{self.store}` of task {self.task}"


def file_name(epoch: int, checkpoint_id: CheckpointId, sha256: str) -> str:
    return f"{epoch}-{checkpoint_id}-{sha256}"


def content_of(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return match[2] if match else None


def epoch_of(key: str, folder: str) -> int | None:
    place, _, name = key.rpartition("/")
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and place.endswith(f"/{folder}") else None


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


_CACHED_KEYS = 1_000_000


class ObjectBackendAdmin(StateBackendAdmin):
    """Deletes objects that no retained marker reaches. The keys of a task's store lie in its state folder."""

    def __init__(self, context: AdminContext) -> None:
        self.context = context
        self._reached: dict[str, frozenset[str]] = {}
        """Key of an index -> that key and all the keys it names. An index never changes; the next one names mostly the
        same."""
        self._cached_keys = 0

    @abstractmethod
    def reach(self, markers: Sequence[StoreMarker]) -> set[str]:
        """The keys of every object the markers need. Raises NotFoundError or CorruptError if that cannot be
        determined."""

    @abstractmethod
    def epoch_of(self, key: str) -> int | None:
        """The epoch in a key that a sweep may find dead; None for any other key."""

    def order(self, key: str) -> tuple[int, ...]:
        """Smaller keys are deleted first."""
        return (self.epoch_of(key) or 0, len(key))

    def plan(self, retention: Retention) -> set[str]:
        """The keys to delete; in a sweep, only those that are there. They stay garbage, so they may be deleted at any
        later time, even if another driver has taken the job over since: see "One retention for all" in
        penstock/state/README.md. That holds only if every retained marker could be read.

        Raises NotFoundError or CorruptError if one could not.
        """
        keep = self.reach(retention.retained)
        gone = self._reach_of_left(retention.left) - keep
        if retention.sweep:
            listing = frozenset(self._listing())
            gone = gone & listing | dead(listing, self.epoch_of, keep, retention.epoch)
        return gone

    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        names = tuple(sorted(self.plan(retention), key=lambda key: (*self.order(key), key)))
        if not dry_run:
            for name in names:
                self.context.objects.delete(name)
        return Garbage(names)

    def needed(self, markers: Sequence[StoreMarker]) -> Collection[str]:
        return self.reach(markers)

    def reach_of_index(self, key: str, read: Callable[[], Iterable[str]]) -> frozenset[str]:
        """The key of an index and all the keys it names. `read` is called for these if they are not cached."""
        if key not in self._reached:
            reached = frozenset({key, *map(sys.intern, read())})
            self._reached[key] = reached
            self._cached_keys += len(reached)
            while self._cached_keys > _CACHED_KEYS and len(self._reached) > 1:
                self._cached_keys -= len(self._reached.pop(next(iter(self._reached))))
        return self._reached[key]

    def _reach_of_left(self, markers: Sequence[StoreMarker]) -> set[str]:
        """As `reach`, without markers that cannot be read: an interrupted collection may have deleted their objects. A
        sweep by a later epoch finds the rest."""
        found: set[str] = set()
        for own in markers:
            with suppress(NotFoundError, CorruptError):
                found |= self.reach([own])
        return found

    def _listing(self) -> Iterable[str]:
        for store in self.context.stores:
            yield from self.context.objects.list(self.context.paths.store_folder(store))


def put_once(objects: ObjectStore, key: str, data: bytes, epoch: int) -> None:
    """Create an object of this epoch; a retry finds its own. Raises PenstockError if the key has other content."""
    if not objects.put_if_absent(key, data) and objects.get(key) != data:
        raise PenstockError(
            f"`{key}` exists with other content: two containers write as epoch {epoch}. Nothing was overwritten; stop "
            "every copy of the job and start one"
        )


def dead(listing: Iterable[str], epoch_of: Callable[[str], int | None], keep: set[str], epoch: int) -> set[str]:
    """The keys of epochs before `epoch` that nothing keeps: nobody writes them any more, so nothing will need them."""
    found: set[str] = set()
    for key in listing:
        of = epoch_of(key)
        if of is not None and of < epoch and key not in keep:
            found.add(key)
    return found
