"""The marker of a store in the changelog files backend: a version, and the objects it is rebuilt from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import orjson
from msgspec import Struct

from penstock.base.documents import Count, decode_format
from penstock.errors import CorruptError

NAME = "changelog-files"
_FORMAT = 1
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
        fields = {"format": _FORMAT, "version": self.version, "epoch": self.epoch, "lineage": self.lineage}
        return orjson.dumps(fields | ({"snapshots": self.snapshots} if self.snapshots else {})).decode()

    @classmethod
    def parse(cls, text: str) -> ChangelogMarker:
        """Raises CorruptError if the text is not a marker, or does not lead to its version."""
        what = f"`{text}` is not a marker of the {NAME} backend"
        written = decode_format(_MarkerFields, text, what, f"marker `{text}`", _FORMAT)
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
