"""`penstock state list`. Reads the checkpoint log and lists objects; no state is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.jobs import FoundJob, open_job
from penstock.admin.state.version import FORMS, choose_version
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.markers import markers_of
from penstock.checkpoint.record import CheckpointRecord
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json, print_table
from penstock.config.model import JobConfig
from penstock.wording import size_text

if TYPE_CHECKING:
    from penstock.state.reading.inventory import StoredObjects


@dataclass(frozen=True, slots=True)
class TaskVersion:
    """What one backend holds of one task's store: its marker, and that for people."""

    task: int
    version: str
    marker: str


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """What one backend holds of a store for a checkpoint; None, and no tasks, if no backend has a marker of it. A task
    whose base is still being made is not among `versions`."""

    checkpoint: str
    batch: int
    store: str
    backend: str | None
    tasks: int
    versions: tuple[TaskVersion, ...]


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The versions of every store, oldest first, and the objects that all of them together have under the job root and
    the roots of backends."""

    job: str
    root: str
    versions: tuple[HeldVersion, ...]
    objects: tuple[StoredObjects, ...]


def list_state(
    job: JobName,
    version: Annotated[
        str | None,
        typer.Option("--version", "--checkpoint", metavar="V", help=f"Only this version: {FORMS}.", show_default=False),
    ] = None,
    by_task: Annotated[bool, typer.Option("--tasks", help="List each task; by default they are summed.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List what the backends of each store hold for every retained checkpoint, and what lies under the job root.

    Nothing is restored. --json has every task and whole markers.
    """
    with open_job(job, config, assignments) as found:
        facts, damaged = _facts(found, version)
    if as_json:
        print_json(facts)
    else:
        _show(facts, by_task=by_task)
    if damaged:
        say(f"the checkpoint log is damaged, so this may not be all: `penstock checkpoint list {facts.job}` says where")


def _facts(found: FoundJob, version: str | None) -> tuple[StateFacts, bool]:
    from contextlib import closing

    from penstock.state.backends.roots import BackendRoots
    from penstock.state.reading.inventory import stored_objects

    log = CheckpointLog(found.objects, found.paths)
    view = log.read("report")
    records = view.restorable if version is None else [choose_version(log, found, version)]
    stores = sorted({store for record in view.restorable for store in record.stores})
    versions = tuple(held for record in records for held in held_versions(found.config, record))
    backends = {held.backend for held in versions if held.backend is not None}
    folders = {store: found.paths.store_folder(store) for store in stores}
    with closing(BackendRoots(found.config, found.objects)) as roots:
        places = [found.objects, *(objects for _, objects in roots.separate())]
        stored = tuple(
            each
            for store, folder in folders.items()
            for objects in places
            for each in stored_objects(store, folder, objects.sizes(folder), backends)
        )
    return StateFacts(found.paths.root, found.config.job.root, versions, stored), bool(view.faults)


def held_versions(config: JobConfig, record: CheckpointRecord) -> list[HeldVersion]:
    """What the backends hold for one checkpoint, by store. Raises CorruptError if a task's value does not decode."""
    from penstock.state.reading.inventory import marker_text

    found: dict[str, dict[str | None, list[TaskVersion]]] = {store: {} for store in sorted(record.stores)}
    for task in range(record.task_count):
        own = markers_of(record, task, config.changelog_partitions(record.stores, task))
        for backend, stores in sorted(own.items()):
            for store, marker in stores.items():
                if store in found:
                    found[store].setdefault(backend, []).append(TaskVersion(task, marker_text(backend, marker), marker))
    return [
        HeldVersion(str(record.id), record.batch, store, backend, record.task_count, tuple(versions))
        for store, backends in found.items()
        for backend, versions in (backends or {None: []}).items()
    ]


def _show(facts: StateFacts, *, by_task: bool) -> None:
    from penstock.state.reading.inventory import summed

    columns = ("checkpoint", "batch", "store", "backend", "task" if by_task else "tasks", "version")
    rows = [row for held in facts.versions for row in (_task_rows(held) if by_task else [_row(held)])]
    print_table(f"State of {facts.job}", columns, rows, right="batch task tasks", first_to_go="batch, version")
    objects = facts.objects if by_task else summed(facts.objects)
    print_table(f"Under {facts.root}", *_object_table(objects, by_task=by_task), right="task objects size")


def _row(held: HeldVersion) -> tuple[object, ...]:
    from penstock.state.reading.inventory import span_text

    span = span_text(each.version for each in held.versions) if held.versions else None
    place = (held.checkpoint, held.batch, held.store, held.backend)
    return (*place, f"{len(held.versions)}/{held.tasks}", span)


def _task_rows(held: HeldVersion) -> list[tuple[object, ...]]:
    there = {each.task: each.version for each in held.versions}
    place = (held.checkpoint, held.batch, held.store, held.backend)
    return [(*place, task, there.get(task)) for task in range(held.tasks)]


def _object_table(
    objects: Sequence[StoredObjects], *, by_task: bool
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    columns = ("store", *(["task"] if by_task else []), "backend", "kind", "objects", "size")
    rows: list[tuple[object, ...]] = [
        (
            each.store,
            *([each.task] if by_task else []),
            each.backend,
            each.kind,
            f"{each.count:,}",
            size_text(each.size_bytes),
        )
        for each in objects
    ]
    return columns, [*rows, _total(objects, len(columns))] if rows else rows


def _total(objects: Sequence[StoredObjects], columns: int) -> tuple[object, ...]:
    count, size = sum(each.count for each in objects), sum(each.size_bytes for each in objects)
    return ("total", *[""] * (columns - 3), f"{count:,}", size_text(size))
