"""The graph of a job's run, on a board for commands and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.documents import Count
from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class GraphOperator:
    """An operator of a stage."""

    id: str
    kind: str
    """In words, such as `partition by`."""
    stores: tuple[str, ...] = ()
    stream: str = ""
    """The stream that an input reads; empty for other operators, and in what an earlier Penstock wrote."""


@dataclass(frozen=True, slots=True)
class GraphStage:
    """The operators between two exchanges, in order."""

    number: Count
    operators: tuple[GraphOperator, ...]


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Messages from a stage or a stream to another one. Ends are a stage's number, or a stream `system.stream`."""

    source: Count | str
    target: Count | str
    channel: str = ""
    """The operator that sends the messages; empty where a stage reads a stream."""


@dataclass(frozen=True, slots=True)
class JobGraph:
    """The stages of a run, and what flows between them and the streams."""

    run_id: str
    stages: tuple[GraphStage, ...]
    edges: tuple[GraphEdge, ...]


def graph_board(objects: ObjectStore, paths: JobPaths) -> Board[JobGraph]:
    """The board that a run replaces as it begins."""
    damage = "does not hold the graph of a run. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "graph"), JobGraph, damage)
