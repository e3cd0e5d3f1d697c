"""Boards of one table: the version chosen with `penstock table use`, and the last version that was refused."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.documents import Count, Positive
from penstock.job.board import Board
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class VersionPin:
    """A version to use until another one is chosen."""

    version: Positive
    who: str = ""


@dataclass(frozen=True, slots=True)
class VersionRefusal:
    """A version of the source that did not become one of the table, and the reason."""

    source_version: str
    reason: str
    time_ms: Count
    """In epoch milliseconds."""


def pin_of(objects: ObjectStore, paths: JobPaths, table: str) -> Board[VersionPin]:
    """The version to use; without it, the newest one is used."""
    damage = "is damaged, it does not name the version of a table; set it with `penstock table use`"
    return Board(objects, paths.metadata("table-use", table), VersionPin, damage)


def refusal_of(objects: ObjectStore, paths: JobPaths, table: str) -> Board[VersionRefusal]:
    """The last refusal, unless a later version was accepted. It only informs."""
    damage = "is damaged, it does not say why a table was refused"
    return Board(objects, paths.metadata("table-refused", table), VersionRefusal, damage)
