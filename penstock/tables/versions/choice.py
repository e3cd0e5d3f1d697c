"""Which version of a table a job uses. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.tables.versions.manifest import TableFingerprint, TableManifest


@dataclass(frozen=True, slots=True)
class TableVersions:
    """What is published of a table."""

    manifests: tuple[TableManifest, ...] = ()
    """The versions, ascending. Fences are not among them."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Why a version cannot be read, by its number."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the versions, ascending."""
        return tuple(each.version for each in self.manifests)

    def of(self, version: int) -> TableManifest | None:
        """The version with this number."""
        return next((each for each in self.manifests if each.version == version), None)

    @property
    def newest(self) -> TableManifest | None:
        """The version with the highest number."""
        return self.manifests[-1] if self.manifests else None


@dataclass(frozen=True, slots=True)
class Choice:
    """The version to use, and what the log and `status` should say about it."""

    version: TableManifest | None
    """None: none of the versions serves this job."""
    warning: str | None = None


def choose(versions: TableVersions, pinned: int | None, wanted: TableFingerprint) -> Choice:
    """The version to use: the pinned one, otherwise the newest one that was built for a job like this.

    A pinned version that cannot be used leaves the choice to the newest one, with a warning.

    Args:
        versions: what is published.
        pinned: the number that `penstock table use` set; None: the newest one is wanted.
        wanted: what the job needs.
    """
    fitting = [each for each in versions.manifests if each.fingerprint == wanted]
    newest = fitting[-1] if fitting else None
    if pinned is None:
        unread = [number for number in versions.unreadable if newest is None or number > newest.version]
        return Choice(newest, f"version {max(unread)} {_unread(versions, max(unread))}" if unread else None)
    found = versions.of(pinned)
    if found is not None and found.fingerprint == wanted:
        return Choice(found)
    if found is not None and found.fingerprint is not None:
        reason = f"was built for another job: {found.fingerprint.difference(wanted)}"
    else:
        reason = _unread(versions, pinned)
    instead = "no version" if newest is None else f"version {newest.version}"
    return Choice(newest, f"version {pinned}, which `penstock table use` set, {reason}. The job uses {instead}")


def expired(numbers: Sequence[int], newest: int, needed: Collection[int]) -> tuple[int, ...]:
    """The versions that may go, oldest first: not among the newest, and not needed. The last one always stays: the
    next version is numbered after it.

    Args:
        numbers: all versions, ascending.
        newest: how many are kept.
        needed: those in use, and the pinned one.
    """
    return tuple(number for number in numbers[: -max(1, newest)] if number not in needed)


def _unread(versions: TableVersions, number: int) -> str:
    return f"cannot be read: {versions.unreadable[number]}" if number in versions.unreadable else "does not exist"
