"""The wing's document in the job's folder, and its facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from penstock.facts import Column, Facts, FactTable
from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class RunsOf:
    """The runs of one container."""

    container: Annotated[str, Column("container")]
    runs: Annotated[int, Column("runs", right=True)]


@dataclass(frozen=True, slots=True)
class Audited:
    """The wing's document about a run."""

    run_id: str
    commits: int
    runs: int
    containers: tuple[RunsOf, ...] = ()


def board(objects: ObjectStore, paths: JobPaths) -> Board[Audited]:
    return Board(objects, last_run(paths, "audit"), Audited, "is no audit")


def audit_facts(objects: ObjectStore, paths: JobPaths, run_id: str | None) -> Facts:
    found = board(objects, paths).get()
    if found is None:
        return Facts()
    lines = {"audited commits": found.commits, "audited runs": found.runs}
    return Facts(lines, (FactTable("Audit", found.containers),) if found.containers else ())
