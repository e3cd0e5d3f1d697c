"""Chooses the version of a table that a job uses. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.tables.versions.manifest import TableFingerprint, TableManifest


@dataclass(frozen=True, slots=True)
class PublishedVersions:
    """The published versions of a table."""

    manifests: tuple[TableManifest, ...] = ()
    """The versions, ascending. Fences are not among them."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Number of a version → the reason why it cannot be read."""

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(each.version for each in self.manifests)

    def of(self, version: int) -> TableManifest | None:
        return next((each for each in self.manifests if each.version == version), None)

    @property
    def newest(self) -> TableManifest | None:
        return self.manifests[-1] if self.manifests else None


@dataclass(frozen=True, slots=True)
class ChosenVersion:
    """The version to use, with a warning for the log and `status`."""

    version: TableManifest | None
    """None: none of the versions serves this job."""
    warning: str | None = None


def choose(versions: PublishedVersions, pinned: int | None, wanted: TableFingerprint) -> ChosenVersion:
    """Choose the pinned version, otherwise the newest one that was built for a job like this. A pinned version that
    cannot be used leaves the choice to the newest one, with a warning.

    Args:
        pinned: the number that `penstock table use` set; None: the newest version is to be used.
        wanted: the fingerprint that the job needs.
    """
    fitting = [each for each in versions.manifests if each.fingerprint == wanted]
    newest = fitting[-1] if fitting else None
    if pinned is None:
        unread = [number for number in versions.unreadable if newest is None or number > newest.version]
        return ChosenVersion(newest, f"version {max(unread)} {_unread(versions, max(unread))}" if unread else None)
    found = versions.of(pinned)
    if found is not None and found.fingerprint == wanted:
        return ChosenVersion(found)
    if found is not None and found.fingerprint is not None:
        reason = f"was built for another job: {found.fingerprint.difference(wanted)}"
    else:
        reason = _unread(versions, pinned)
    instead = "no version" if newest is None else f"version {newest.version}"
    return ChosenVersion(newest, f"version {pinned}, which `penstock table use` set, {reason}. The job uses {instead}")


def expired(numbers: Sequence[int], newest: int, needed: Collection[int]) -> tuple[int, ...]:
    """The versions that may go, oldest first: neither among the `newest` last ones, nor needed. The last one always
    stays: the next version is numbered after it."""
    return tuple(number for number in numbers[: -max(1, newest)] if number not in needed)


def _unread(versions: PublishedVersions, number: int) -> str:
    return f"cannot be read: {versions.unreadable[number]}" if number in versions.unreadable else "does not exist"
