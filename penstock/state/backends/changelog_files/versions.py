"""Versions of a store: their markers, the files they are rebuilt from, and the ways to do so.

A marker names a version and its objects. The ways to rebuild it are a function of the marker and of the keys in the
store's folder.

The `.delta` file has one commit's net changes. A value of None deletes; records are in no particular order, each key
occurs once.

    magic       8 bytes   "PSTDELTA"
    header size 4 bytes   big-endian
    header      JSON      format, version, epoch, lineage, size of the records
    records     zstd      as in `penstock.state.engines.engine`
    checksum    32 bytes  SHA-256 of everything before

The snapshot file, `<version>.<epoch>.zip`, has the store at one version. It is a zip archive of `snapshot.json`,
which names its store and version and the objects of its larger files, and of the small files themselves, below
`files/`. Its comment, the last 64 bytes, is the SHA-256 of everything before it in hexadecimal. The larger files,
RocksDB's tables above all, are stored once by content and shared by the snapshots that have them.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

import msgspec
import orjson
from msgspec import Struct

from penstock.base.budgets import opened_archive
from penstock.base.documents import Count, Positive, decode_format, decoding
from penstock.errors import CorruptError
from penstock.job.paths import JobPaths, versioned_name
from penstock.state.backends.objects import ContentNames, DirIndex
from penstock.state.engines.engine import Changes, compress, decode_records, decompress, encode_records

NAME = "changelog-files"
_MARKER_FORMAT = 1
KEPT = 2
"""The number of snapshots that a marker names: the newest one, and one to fall back to."""

Version: TypeAlias = tuple[Count, Count]
"""(number, epoch): two epochs may each write a version of one number, and only one of them counts."""
Lineage: TypeAlias = tuple[tuple[Count, Count, Count], ...]
"""Runs of versions: (epoch, first, last)."""


@dataclass(frozen=True, slots=True)
class ChangelogMarker:
    """Names one version of a store, and all that a restore may need for it: up to two snapshots, and every delta after
    the older one, or from the beginning.

    `lineage` is the deltas, as runs of (epoch, first, last). A version that another epoch discarded is in none.
    `snapshots` are newest first. Version 0, made of nothing, is the empty store.
    """

    version: int = 0
    lineage: Lineage = ()
    snapshots: tuple[Version, ...] = ()

    @property
    def epoch(self) -> int:
        """The epoch that wrote the version; 0 for the empty store."""
        if self.lineage:
            return self.lineage[-1][0]
        return self.snapshots[0][1] if self.snapshots else 0

    @classmethod
    def of_snapshot(cls, version: int, epoch: int) -> ChangelogMarker:
        """A version that its snapshot alone makes, and with which a history begins."""
        return cls(version, (), ((version, epoch),))

    def next(self, epoch: int) -> ChangelogMarker:
        version = self.version + 1
        if self.lineage and self.lineage[-1][0] == epoch:
            last = self.lineage[-1]
            return replace(self, version=version, lineage=(*self.lineage[:-1], (epoch, last[1], version)))
        return replace(self, version=version, lineage=(*self.lineage, (epoch, version, version)))

    def has(self, version: Version) -> bool:
        return any(epoch == version[1] and first <= version[0] <= last for epoch, first, last in self.lineage)

    def with_snapshots(self, made: Iterable[Version]) -> ChangelogMarker:
        """The marker with these snapshots added. Snapshots outside its history are ignored."""
        return self.made_of({*self.snapshots, *made})

    def made_of(self, snapshots: Iterable[Version]) -> ChangelogMarker:
        """The marker with the two newest of these snapshots that belong to its history. Older versions are dropped."""
        own = {version for version in snapshots if version in self.snapshots or self.has(version)}
        kept = tuple(sorted(own, reverse=True)[:KEPT])
        floor = 0 if self.begins_empty and len(kept) < KEPT else kept[-1][0]
        runs = ((epoch, max(first, floor + 1), last) for epoch, first, last in self.lineage if last > floor)
        return replace(self, lineage=tuple(runs), snapshots=kept)

    def deltas(self, after: int = 0) -> Iterator[Version]:
        for epoch, first, last in self.lineage:
            for version in range(max(first, after + 1), last + 1):
                yield version, epoch

    def since(self, held: ChangelogMarker) -> list[Version] | None:
        """The deltas that lead from another marker to this one, oldest first; None if this one's history does not have
        that version, or no longer names it."""
        version = (held.version, held.epoch)
        known = self.has(version) or version in self.snapshots or (version == (0, 0) and self.begins_empty)
        if not known or held.version > self.version:
            return None
        found = list(self.deltas(held.version))
        return found if len(found) == self.version - held.version else None

    @property
    def begins_empty(self) -> bool:
        """True if the deltas alone rebuild the version."""
        return self.lineage[0][1] == 1 if self.lineage else not self.snapshots

    def serialize(self) -> str:
        fields = {"format": _MARKER_FORMAT, "version": self.version, "epoch": self.epoch, "lineage": self.lineage}
        return orjson.dumps(fields | ({"snapshots": self.snapshots} if self.snapshots else {})).decode()

    @classmethod
    def parse(cls, text: str) -> ChangelogMarker:
        """Raises CorruptError if the text is not a marker, or does not lead to its version."""
        what = f"`{text}` is not a marker of the {NAME} backend"
        written = decode_format(_MarkerFields, text, what, f"marker `{text}`", _MARKER_FORMAT)
        marker = cls(written.version, written.lineage, written.snapshots)
        marker._check(text)
        return marker

    def _check(self, text: str) -> None:
        oldest = self.snapshots[-1][0] if self.snapshots else 0
        expected = 1 if self.lineage and self.lineage[0][1] == 1 else oldest + 1
        for _, first, last in self.lineage:
            if first != expected or last < first:
                raise CorruptError(f"the lineage of marker `{text}` has a gap before version {first}")
            expected = last + 1
        if self.version != expected - 1:
            raise CorruptError(f"the lineage of marker `{text}` ends at version {expected - 1}")
        if list(self.snapshots) != sorted(set(self.snapshots), reverse=True) or any(
            not 0 < version <= self.version for version, _ in self.snapshots
        ):
            raise CorruptError(f"the snapshots of marker `{text}` are not in order")


class _MarkerFields(Struct):
    """The fields of a marker, as they are written. Its epoch follows from them."""

    version: Count
    lineage: Lineage
    snapshots: tuple[Version, ...] = ()


MAGIC = b"PSTDELTA"
DELTA_FORMAT = 1
_LENGTH = struct.Struct(">i")
_CHECKSUM_BYTES = 32


@dataclass(frozen=True, slots=True)
class DeltaHeader:
    """The header of a delta. `lineage` is that of the version it makes: runs of (epoch, first, last)."""

    version: Count
    epoch: Count
    lineage: Lineage


class _Head(Struct):
    """The header as it is written."""

    version: Count
    epoch: Count
    lineage: Lineage
    size: Count


def encode_delta(header: DeltaHeader, changes: Changes) -> bytes:
    """The same changes in the same order give the same bytes."""
    records = encode_records(changes)
    head = orjson.dumps({"format": DELTA_FORMAT, **asdict(header), "size": len(records)})
    start, body = b"".join((MAGIC, _LENGTH.pack(len(head)), head)), compress(records)
    del records  # as large as the changes: not held while the file is put together
    checksum = hashlib.sha256(start)
    checksum.update(body)
    return b"".join((start, body, checksum.digest()))


def decode_delta(data: bytes, name: str) -> tuple[DeltaHeader, dict[bytes, bytes | None]]:
    """Raises CorruptError naming the file, IncompatibleError for a newer format."""
    if len(data) < len(MAGIC) + 4 + _CHECKSUM_BYTES or not data.startswith(MAGIC):
        raise CorruptError(f"`{name}` is not a delta file: {len(data)} bytes that begin with {data[:8]!r}")
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        raise CorruptError(f"delta file `{name}` is damaged: its checksum does not match")
    what = f"delta file `{name}` has a checksum that fits but a header that does not"
    with decoding(what):
        start = len(MAGIC) + 4
        end = start + _LENGTH.unpack_from(body, len(MAGIC))[0]
        head = decode_format(_Head, body[start:end], what, f"delta file `{name}`", DELTA_FORMAT)
    header = DeltaHeader(head.version, head.epoch, head.lineage)
    return header, decode_records(decompress(body[end:], head.size, f"delta file `{name}`"), name)


SNAPSHOT_FORMAT = 1
SHARED_FOLDER = "files"
"""The folder of the shared files, in a task's folder."""
_CHECKSUM = 64
_INDEX, _SMALL = "snapshot.json", "files/"


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """All files of a store at one version."""

    version: Version
    store: str
    task: int
    shared: DirIndex
    small: Mapping[str, bytes]
    """The other files: path -> content."""

    def encode(self) -> bytes:
        """Equal values give equal bytes."""
        written = _SnapshotFields(SNAPSHOT_FORMAT, *self.version, self.store, self.task, self.shared)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_info(_INDEX), msgspec.json.encode(written))
            for path, data in sorted(self.small.items()):
                archive.writestr(_info(f"{_SMALL}{path}"), data)
            archive.comment = b"0" * _CHECKSUM
        body = buffer.getvalue()[:-_CHECKSUM]
        return body + hashlib.sha256(body).hexdigest().encode()

    @classmethod
    def decode(cls, data: bytes, key: str) -> StoreSnapshot:
        """Raises CorruptError naming the key, IncompatibleError for a newer format."""
        if hashlib.sha256(data[:-_CHECKSUM]).hexdigest().encode() != data[-_CHECKSUM:]:
            raise CorruptError(f"snapshot `{key}` is damaged: the checksum of its {len(data)} bytes does not match")
        what = f"snapshot `{key}` is damaged"
        with decoding(what), opened_archive(data, f"snapshot `{key}`") as archive:
            own = decode_format(_SnapshotFields, archive.read(_INDEX), what, f"snapshot `{key}`", SNAPSHOT_FORMAT)
            names = [name for name in archive.namelist() if name.startswith(_SMALL)]
            if any(part in {"", ".", ".."} for name in names for part in name.split("/")):
                raise ValueError("a file leads out of its folder")
            small = {name.removeprefix(_SMALL): archive.read(name) for name in names}
            return cls((own.version, own.epoch), own.store, own.task, own.shared, small)


class _SnapshotFields(Struct):
    """The fields of `snapshot.json`."""

    format: Positive
    version: Count
    epoch: Count
    store: str
    task: Count
    shared: DirIndex


def shared_names(paths: JobPaths, store: str, task: int) -> ContentNames:
    return ContentNames(paths, store, task, SHARED_FOLDER)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """The versions that have a delta, and those that have a snapshot, whatever epoch wrote them."""

    deltas: frozenset[Version]
    snapshots: frozenset[Version]

    @classmethod
    def among(cls, keys: Iterable[str]) -> StoredVersions:
        by_kind: dict[str, set[Version]] = {"delta": set(), "zip": set()}
        for key in keys:
            if (named := versioned_name(key)) is not None:
                by_kind[named[2]].add((named[0], named[1]))
        return cls(frozenset(by_kind["delta"]), frozenset(by_kind["zip"]))


@dataclass(frozen=True, slots=True)
class Way:
    """A snapshot to begin with (None: the empty store), and the deltas after it up to the marker's version."""

    snapshot: Version | None
    marker: ChangelogMarker

    def deltas(self) -> Iterator[Version]:
        """The deltas after the snapshot, oldest first. Lazy, because a damaged marker may claim any number of them."""
        return self.marker.deltas(0 if self.snapshot is None else self.snapshot[0])

    def missing(self, found: StoredVersions) -> Version | None:
        return next((delta for delta in self.deltas() if delta not in found.deltas), None)


def ways(marker: ChangelogMarker, found: StoredVersions) -> list[Way]:
    """Every way to the version, the one with the fewest deltas first.

    A snapshot that was made after the marker, of a version on its lineage, serves as well as one it names.
    """
    snapshots = {*marker.snapshots, *(version for version in found.snapshots if marker.has(version))}
    begun = [Way(version, marker) for version in sorted(snapshots, reverse=True)]
    return [*begun, Way(None, marker)] if marker.begins_empty else begun
