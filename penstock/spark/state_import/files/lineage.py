"""The files of one version of a store's partition. Pure decisions over the present names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import CorruptError, NotFoundError

_NAME = re.compile(r"(\d+)(?:_([0-9A-Za-z-]+))?\.(zip|changelog)")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """One version of a partition; `checkpoint_id` only where Spark writes with checkpoint ids (format version 2)."""

    number: int
    checkpoint_id: str | None = None

    @property
    def _stem(self) -> str:
        return f"{self.number}" if self.checkpoint_id is None else f"{self.number}_{self.checkpoint_id}"

    @property
    def snapshot(self) -> str:
        return f"{self._stem}.zip"

    @property
    def changelog(self) -> str:
        return f"{self._stem}.changelog"


@dataclass(frozen=True, slots=True)
class StatePartitionFiles:
    """The snapshots and changelogs in a partition's folder, without temporary files and checksums."""

    folder: str
    snapshots: frozenset[Version]
    changelogs: frozenset[Version]

    @classmethod
    def of(cls, folder: str, names: Iterable[str]) -> StatePartitionFiles:
        found: dict[str, set[Version]] = {"zip": set(), "changelog": set()}
        for name in names:
            if (match := _NAME.fullmatch(name)) is not None:
                found[match[3]].add(Version(int(match[1]), match[2]))
        return cls(folder, frozenset(found["zip"]), frozenset(found["changelog"]))


@dataclass(frozen=True, slots=True)
class RestoreSteps:
    """The steps to a version: a snapshot (None: the empty store), then these changelogs in this order."""

    snapshot: Version | None
    changelogs: tuple[Version, ...]


def plan_rebuild(
    files: StatePartitionFiles, wanted: Version, lineage_of: Callable[[Version], Mapping[int, str]]
) -> RestoreSteps:
    """The newest snapshot at or below the version, and exactly the changelogs after it.

    `lineage_of` reads the ids of earlier versions from the changelog of a version with an id.

    Raises:
        NotFoundError: a file that is needed is missing.
        CorruptError: a changelog does not say which version it is made on.
    """
    changelogs: list[Version] = []
    ids: dict[int, str] = {}
    version = wanted
    while version.number > 0:
        if version in files.snapshots:
            return RestoreSteps(version, tuple(reversed(changelogs)))
        if version not in files.changelogs:
            raise NotFoundError(
                f"`{files.folder}/{version.changelog}` is missing, and there is no snapshot "
                f"`{files.folder}/{version.snapshot}`: version {wanted.number} cannot be rebuilt"
            )
        changelogs.append(version)
        if version.checkpoint_id is not None and version.number - 1 not in ids:
            ids.update(lineage_of(version))
        version = _before(files, version, ids)
    return RestoreSteps(None, tuple(reversed(changelogs)))


def _before(files: StatePartitionFiles, version: Version, ids: Mapping[int, str]) -> Version:
    number = version.number - 1
    if version.checkpoint_id is None or number == 0:
        return Version(number)
    if number in ids:
        return Version(number, ids[number])
    if Version(number) in files.snapshots | files.changelogs:
        return Version(number)  # from before the query was given checkpoint ids
    raise CorruptError(
        f"the lineage of `{files.folder}/{version.changelog}` does not say which version {number} it is made on"
    )
