"""The commits to a folder that Penstock writes: a log of manifests for each partition of the stream.

    _penstock/<partition>/<number>      a manifest; the numbers have no gaps
    _penstock/commits/<writer>/<slot>   exists once the writer has published everything of this slot
    part-<partition>-<number>-<token>.parquet

A transaction puts its file, and then the manifest of the next number, which names it. The manifest is created once
(`put_if_absent`), so it is the one step in which rows, progress and the writer's epoch become valid. Each manifest
repeats the epochs and progress of the ones before it, so a writer needs the last one alone.

A commit of a job is many transactions, in all partitions and by several processes. Its files are visible once the
object of their slot exists, which is put last. The slots of a writer are published one after the other: if a slot is
complete, so are all earlier slots.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, TypeAlias
from uuid import uuid4

import msgspec
from msgspec import Struct

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import Count, convert, decode_format, decoding
from penstock.errors import FencedError, NotFoundError
from penstock.objects.store import ObjectStore
from penstock.system.base import Progress, WriterIdentity

FORMAT = 1
MANIFESTS = "_penstock"
_WRITTEN = re.compile(r"part-\d{5,6}-\d{20}-\w+\.[a-z]+")
MOST_PARTITIONS = 100_000
Partitions: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTITIONS)]


class WrittenFile(Struct):
    """A file of a commit."""

    name: str
    size_bytes: Count
    rows: Count


class Manifest(Struct, frozen=True):
    """A transaction of a partition, or a writer that took over."""

    format: Count = FORMAT
    token: str = ""
    epochs: dict[str, Count] = {}
    """The largest epoch that was seen, by the writer's name."""
    marks: dict[str, tuple[Count, Count]] = {}
    """The progress of each writer: slot and chunk."""
    files: Count = 0
    file: WrittenFile | None = None
    commit: tuple[str, Count] | None = None
    """The writer's name and the slot with which the file becomes visible; None: at once."""


class FolderCommits:
    """The commits to a folder that are complete. Used by one thread at a time."""

    def __init__(self, objects: ObjectStore) -> None:
        """`objects` is the stream's folder."""
        self._objects = objects
        self._newest: dict[str, int] = {}
        """A slot that is known to be complete, by the writer's name."""

    def complete(self, name: str, slot: int) -> None:
        """Make everything of the slot visible to readers. Idempotent."""
        self._objects.put_if_absent(_commit(name, slot), msgspec.json.encode({"format": FORMAT, "name": name}))

    def has(self, manifest: Manifest) -> bool:
        if manifest.commit is None:
            return True
        name, slot = manifest.commit
        if self._newest.get(name, -1) < slot:
            try:
                self._objects.get(_commit(name, slot))
            except NotFoundError:
                return False
            self._newest[name] = slot
        return True


class PartitionLog:
    """The manifests of a partition, as far as they were read. Used by one thread at a time."""

    def __init__(self, objects: ObjectStore, ssp: SystemStreamPartition) -> None:
        """`objects` is the stream's folder."""
        self._objects = objects
        self._ssp = ssp
        self._number = -1
        self.last = Manifest()

    def read(self) -> Manifest:
        """The last manifest. Raises CorruptError or IncompatibleError if one cannot be read."""
        if self._number < 0:
            keys = self._objects.list(self._folder)
            if not keys:
                return self.last
            self._number = _number(keys[-1])
            self.last = self._get(self._number)
        for number, manifest in self.behind(self._number):
            self._number, self.last = number, manifest
        return self.last

    def behind(self, number: int) -> Iterator[tuple[int, Manifest]]:
        while True:
            number += 1
            try:
                yield number, self._get(number)
            except NotFoundError:
                return

    def append(
        self, identity: WriterIdentity | None, progress: Progress | None, data: bytes | None, rows: int, kind: str = ""
    ) -> Manifest:
        """Commit a file with these rows, if there are any, and the progress. Returns the manifest before it.

        Args:
            data: the file's bytes.
            rows: their number.
            kind: the end of the file's name.

        Raises:
            FencedError: a larger epoch of the writer's name was seen.
            IncompatibleError: the progress is not behind the last one.
        """
        while True:
            before = self.read()
            epochs, marks = dict(before.epochs), dict(before.marks)
            if identity is not None:
                self._check_epoch(identity, before)
                epochs[identity.name] = identity.epoch
            if progress is not None and identity is not None:
                last = marks.get(identity.name)
                progress.check_follows(None if last is None else Progress(*last), self._ssp)
                marks[identity.name] = (progress.slot, progress.chunk)
            if data is None and epochs == before.epochs and marks == before.marks:
                return before
            number, token = self._number + 1, uuid4().hex
            file, commit = None, None
            if data is not None:
                name = f"part-{self._ssp.partition:05d}-{number:020d}-{token[:12]}.{kind}"
                self._objects.put_if_absent(name, data)
                file = WrittenFile(name, len(data), rows)
                commit = None if progress is None or identity is None else (identity.name, progress.slot)
            manifest = Manifest(FORMAT, token, epochs, marks, before.files + (file is not None), file, commit)
            created = self._objects.put_if_absent(self._key(number), msgspec.json.encode(manifest))
            if created or self._get(number).token == token:  # a reply may have been lost
                self._number, self.last = number, manifest
                return before
            if file is not None:
                self._objects.delete(file.name)

    def _check_epoch(self, identity: WriterIdentity, manifest: Manifest) -> None:
        seen = manifest.epochs.get(identity.name, 0)
        if identity.epoch < seen:
            raise FencedError(
                f"writer `{identity.name}` of epoch {identity.epoch} may not write to `{self._ssp}`: epoch {seen} has "
                "taken over"
            )

    def _get(self, number: int) -> Manifest:
        data = self._objects.get(self._key(number))
        name = f"`{self._key(number)}` of `{self._ssp}`"
        return decode_format(Manifest, data, f"{name} is damaged", name, FORMAT)

    @property
    def _folder(self) -> str:
        return f"{MANIFESTS}/{self._ssp.partition:05d}"

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:020d}"


def note_partitions(objects: ObjectStore, partitions: int) -> None:
    """Record the partition count of a folder's stream. An existing record stays."""
    objects.put_if_absent(f"{MANIFESTS}/partitions", b"%d" % partitions)


def noted_partitions(objects: ObjectStore) -> int | None:
    """The partition count of a folder that Penstock writes; None for any other folder."""
    key = f"{MANIFESTS}/partitions"
    with suppress(NotFoundError):
        data = objects.get(key)
        with decoding(f"`{key}` is damaged"):
            return convert(Partitions, int(data))
    return None


def is_written(path: str) -> bool:
    """True if a file of a commit may have this path; False for what others put into the folder."""
    return _WRITTEN.fullmatch(path) is not None


def number_of(path: str) -> int:
    with decoding(f"`{path}` is not the name of a file that Penstock has written"):
        return int(path.split("-")[2])


def _commit(name: str, slot: int) -> str:
    return f"{MANIFESTS}/commits/{hashlib.sha256(name.encode()).hexdigest()[:16]}/{slot:020d}"


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])
