"""The ways to rebuild a version, as a function of its marker and of the keys in the store's folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.job.paths import versioned_name
from penstock.state.backends.changelog_files.marker import ChangelogMarker, Version


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
