"""The files of a stream, in order and by partition: a log of numbered objects that only grows.

    0                 the stream: identity, folder, number of partitions
    1, 2, ...         files that were found together
    whole/<number>    all files up to a number, so that a reader need not get each object

An object is created once, under the next number (`put_if_absent`): of several processes that look at once, one appends,
and the others read its object. The content under a number never changes, so every reader at any time has the same
files under the same offsets.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Struct

from penstock.base.documents import Count, decode, decode_format
from penstock.errors import ConfigError, CorruptError, NotFoundError
from penstock.objects.store import ObjectStore
from penstock.system.files.manifests import MOST_PARTITIONS, Partitions, is_written

FORMAT = 1
ORDERED_FORMAT = 2
"""The format of a listing with an order: a version of Penstock that does not know orders would spread new files."""
Order: TypeAlias = Literal["name"]
"""An order of a stream's files, which are then all in its first partition."""
WHOLE_EVERY = 256
"""After so many objects, one has all files."""
ROW_BITS = 32
"""A row's offset is its file's number in the partition, and in the lower bits its own number in the file."""
ROW_MASK = (1 << ROW_BITS) - 1


Name: TypeAlias = tuple[tuple[tuple[tuple[int, int, str], ...], ...], str]


def name_order(path: str) -> Name:
    """Sorts paths by their folders, then by the file. Numbers in names count as numbers: `day-7` is before `day-10`.

    Example:
        >>> sorted(["day=10/a.csv", "day=2/a.csv", "day=2/a-11.csv", "day=2/a-9.csv"], key=name_order)
        ['day=2/a-9.csv', 'day=2/a-11.csv', 'day=2/a.csv', 'day=10/a.csv']
    """
    return tuple(map(_parts, path.split("/"))), path


def _parts(name: str) -> tuple[tuple[int, int, str], ...]:
    found = enumerate(re.split("([0-9]+)", name))
    return tuple((0, int(each), "") if at % 2 else (1, 0, each) for at, each in found if each)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a folder, by its path below the folder."""

    path: str
    size_bytes: int
    modified_ms: int


class _Stream(Struct, rename="kebab"):
    format: Count
    identity: str
    folder: str
    partitions: Partitions
    order: Order | None = None


class _File(Struct, array_like=True):
    path: str
    size_bytes: Count
    modified_ms: int
    partition: Count


class _Files(Struct):
    files: Annotated[list[_File], msgspec.Meta(min_length=1)]


class _WholeListing(Struct):
    files: list[_File]


class Listing:
    """The files of a stream, as far as the log was read. Used by one thread at a time."""

    def __init__(self, objects: ObjectStore, prefix: str, folder: str) -> None:
        """
        Args:
            objects: the store of the log.
            prefix: the folder of its objects in the store.
            folder: the URL of the folder with the files."""
        self._objects = objects
        self._prefix = prefix
        self._folder = folder
        self._stream: _Stream | None = None
        self._next = 1
        self._all: list[_File] = []
        self._seen: dict[str, tuple[int, int]] = {}
        self._bytes: list[int] = []
        self._last: Name = ((), "")
        """The last name of all that are listed, if they have an order."""
        self.files: list[list[FoundFile]] = []
        """By partition, in the order of their offsets."""

    @property
    def exists(self) -> bool:
        """True if the log was begun, as of the last `read`."""
        return self._stream is not None

    @property
    def identity(self) -> str:
        """The identity that distinguishes this log from any other."""
        return self._known.identity

    @property
    def partitions(self) -> int:
        return self._known.partitions

    @property
    def order(self) -> Order | None:
        return self._known.order

    def begin(self, partitions: int, order: Order | None = None) -> bool:
        """Begin the log, if it was not; True if this call did. Reads it in any case. Raises ConfigError if there are
        too many partitions."""
        if partitions > MOST_PARTITIONS:
            raise ConfigError(f"a stream of files has at most {MOST_PARTITIONS:,} partitions, not {partitions:,}")
        made = _Stream(FORMAT if order is None else ORDERED_FORMAT, uuid.uuid4().hex, self._folder, partitions, order)
        self._objects.put_if_absent(self._key(0), msgspec.json.encode(made))
        self.read()
        return self.identity == made.identity

    def read(self) -> None:
        """Read the objects that were appended since the last call.

        Raises:
            CorruptError: an object of the log is damaged.
            IncompatibleError: a newer version of Penstock wrote it.
        """
        if self._stream is None:
            self._read_first()
        while self._stream is not None:
            try:
                data = self._objects.get(self._key(self._next))
            except NotFoundError:
                return
            self._add(self._files(_Files, data, self._key(self._next)))
            self._next += 1

    def new(self, found: Iterable[FoundFile]) -> list[FoundFile]:
        """The files that are not listed, in the order in which they are to be."""
        if self.order is None:
            return sorted(self.unseen(found), key=lambda file: (file.modified_ms, file.path))
        return sorted(self.unseen(found), key=lambda file: name_order(file.path))

    def behind_their_place(self, new: Iterable[FoundFile]) -> list[FoundFile]:
        """The files that the order would have before one that is listed already."""
        if self.order is None:
            return []
        return [file for file in new if name_order(file.path) < self._last]

    def unseen(self, found: Iterable[FoundFile]) -> list[FoundFile]:
        return [file for file in found if file.path not in self._seen]

    def changed(self, found: Iterable[FoundFile]) -> list[FoundFile]:
        seen = self._seen
        return [file for file in found if seen.get(file.path, (at := (file.size_bytes, file.modified_ms))) != at]

    def append(self, files: Sequence[FoundFile], partition: int | None = None) -> bool:
        """Append files to a partition, or each to the one with the fewest bytes. False if another process appended
        other files meanwhile, which have then been read."""
        sizes = list(self._bytes)
        placed = []
        for file in files:
            place = 0 if self.order else sizes.index(min(sizes)) if partition is None else partition
            sizes[place] += max(file.size_bytes, 1)
            placed.append(_File(file.path, file.size_bytes, file.modified_ms, place))
        number, data = self._next, msgspec.json.encode(_Files(placed))
        # A lost reply looks like another process.
        appended = self._objects.put_if_absent(self._key(number), data) or self._objects.get(self._key(number)) == data
        self.read()
        if appended and number % WHOLE_EVERY == 0:
            self._write_whole(number)
        return appended

    def of_others(self) -> list[str]:
        """The paths that no file of Penstock has."""
        return [file.path for own in self.files for file in own if not is_written(file.path)]

    def place(self, path: str) -> tuple[int, int | None]:
        """The partition of a file, and its number there; (-1, None) if no such file is listed."""
        for partition, files in enumerate(self.files):
            for number, file in enumerate(files):
                if file.path == path:
                    return partition, number
        return -1, None

    def upcoming(self, partition: int) -> int:
        return len(self.files[partition]) << ROW_BITS

    @property
    def _known(self) -> _Stream:
        if self._stream is None:
            raise NotFoundError(f"`{self._folder}` has no listing yet")
        return self._stream

    def _read_first(self) -> None:
        try:
            data = self._objects.get(self._key(0))
        except NotFoundError:
            return
        what = f"`{self._key(0)}` of the listing is damaged"
        stream = decode_format(_Stream, data, what, f"the listing of `{self._folder}`", ORDERED_FORMAT)
        self._stream = stream
        self._bytes = [0] * stream.partitions
        self.files = [[] for _ in range(stream.partitions)]
        while wholes := self._objects.list(f"{self._prefix}/whole"):
            try:
                data = self._objects.get(wholes[-1])
            except NotFoundError:  # a newer one has just taken its place
                continue
            self._add(self._files(_WholeListing, data, wholes[-1]))
            self._next = int(wholes[-1].rpartition("/")[2]) + 1
            return

    def _files(self, form: type[_Files | _WholeListing], data: bytes, key: str) -> list[_File]:
        what = f"`{key}` of the listing is damaged"
        files = decode(form, data, what).files
        if any(each.partition >= len(self.files) for each in files):
            raise CorruptError(f"{what}: it names a partition that the stream does not have")
        return files

    def _add(self, files: Sequence[_File]) -> None:
        for each in files:
            self.files[each.partition].append(FoundFile(each.path, each.size_bytes, each.modified_ms))
            self._bytes[each.partition] += max(each.size_bytes, 1)
            self._seen[each.path] = (each.size_bytes, each.modified_ms)
            if self.order is not None:
                self._last = max(self._last, name_order(each.path))
        self._all += files

    def _write_whole(self, number: int) -> None:
        """Write an object with all files up to a number, and delete the one before."""
        wholes = self._objects.list(f"{self._prefix}/whole")
        if self._next != number + 1:
            return  # more has been read already, which belongs to the next one
        self._objects.put_if_absent(
            f"{self._prefix}/whole/{number:020d}", msgspec.json.encode(_WholeListing(self._all))
        )
        for key in wholes:
            self._objects.delete(key)

    def _key(self, number: int) -> str:
        return f"{self._prefix}/log/{number:020d}"
