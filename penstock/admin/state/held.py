"""Lists what the backends of a job hold. Reads the checkpoint log and lists objects, but reads no state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.admin.jobs import FoundJob
from penstock.admin.state.version import choose_version
from penstock.admin.table import side_stores
from penstock.base.wording import size_text
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_versions import markers_of
from penstock.config.model import JobConfig
from penstock.facts import Facts, FactTable
from penstock.notebook import Shown
from penstock.side.wing import SideStoreFacts
from penstock.state.backends.registry import StoredObjects, marker_text, span_text, stored_objects, summed
from penstock.state.backends.roots import BackendRoots


@dataclass(frozen=True, slots=True)
class TaskVersion:
    """One task's store in one backend: its marker, and the marker for people."""

    task: int
    version: str
    marker: str


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """A store in one backend for a checkpoint; None, and no tasks, if no backend has a marker of it. A task
    whose base is still being made is not among `versions`."""

    checkpoint: str
    batch: int
    store: str
    backend: str | None
    tasks: int
    versions: tuple[TaskVersion, ...]

    def row(self) -> tuple[object, ...]:
        """All tasks, in a table for people."""
        span = span_text(each.version for each in self.versions) if self.versions else None
        return (self.checkpoint, self.batch, self.store, self.backend, f"{len(self.versions)}/{self.tasks}", span)

    def task_rows(self) -> list[tuple[object, ...]]:
        """Each task, in a table for people."""
        there = {each.task: each.version for each in self.versions}
        place = (self.checkpoint, self.batch, self.store, self.backend)
        return [(*place, task, there.get(task)) for task in range(self.tasks)]


@dataclass(frozen=True, slots=True)
class StateFacts(Shown):
    """The versions of every store, oldest first, and the objects that all of them together have under the job root and
    the roots of backends."""

    job: str
    root: str
    versions: tuple[HeldVersion, ...]
    objects: tuple[StoredObjects, ...]
    damaged: bool
    """True if the checkpoint log is damaged, so that this may not be all."""
    side_stores: tuple[SideStoreFacts, ...] = ()
    """The stores that the last run only read, and what fills them. A checkpoint has at most copies of them."""

    @property
    def copied(self) -> frozenset[str]:
        """The stores that a backend has something of."""
        return frozenset(held.store for held in self.versions if held.backend is not None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about stores that the job only reads."""
        return tuple(f"note: {each.note(self.copied)}" for each in self.side_stores)

    def as_facts(self) -> Facts:
        return self.facts_by(task=False)

    def facts_by(self, *, task: bool) -> Facts:
        """The state for people.

        Args:
            task: True for one row a task, False for one row for all tasks.
        """
        versions = [row for held in self.versions for row in (held.task_rows() if task else [held.row()])]
        objects = list(self.objects) if task else summed(self.objects)
        kinds = [(e.store, *([e.task] if task else []), e.backend, e.kind, *_amount([e])) for e in objects]
        if objects:
            kinds.append(("total", *[""] * (3 if task else 2), *_amount(objects)))
        one, some = ("task>, ", "task>") if task else ("", "tasks>")
        headings = f"checkpoint, batch>?1, store, backend, {some}, version?2"
        held = FactTable.of(f"State of {self.job}", headings, versions)
        stored = FactTable.of(f"Under {self.root}", f"store, {one}backend, kind, objects>, size>", kinds)
        return Facts({}, (held, stored), self.notes)


def _amount(objects: Sequence[StoredObjects]) -> tuple[str, str]:
    return f"{sum(each.count for each in objects):,}", size_text(sum(each.size_bytes for each in objects))


def state_versions(found: FoundJob, version: str | None = None) -> StateFacts:
    """The versions that each backend holds of each store, for every retained checkpoint. Restores nothing.

    Args:
        found: the job.
        version: the id of a single checkpoint, the number of its batch, `latest` or `latest-N`; None for all.

    Raises:
        ConfigError, NotFoundError: no retained checkpoint has this name.
        CorruptError: a task's value does not decode.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     held = admin.state_versions(job)
        >>> [(each.store, each.backend, each.batch, len(each.versions)) for each in held.versions if each.batch]
        [('miles', 'changelog-files', 1, 2), ('miles', 'changelog-files', 2, 2)]
    """
    view = found.log.read("report")
    records = view.restorable if version is None else [choose_version(found, version)]
    side = side_stores(found)
    versions = tuple(held for record in records for held in held_versions(found.config, record))
    backends = {held.backend for held in versions if held.backend is not None}
    stores = {store for record in view.restorable for store in record.stores}
    stores |= {held.store for held in versions} | {each.store for each in side}
    folders = {store: found.paths.store_folder(store) for store in sorted(stores)}
    with closing(BackendRoots(found.config, found.objects)) as roots:
        places = [found.objects, *(objects for _, objects in roots.separate())]
        stored = tuple(
            each
            for store, folder in folders.items()
            for objects in places
            for each in stored_objects(store, folder, objects.sizes(folder), backends)
        )
    return StateFacts(found.paths.root, found.config.job.root, versions, stored, bool(view.faults), side)


def held_versions(config: JobConfig, record: CheckpointRecord) -> list[HeldVersion]:
    """The content of the backends for one checkpoint, by store, with copies of stores that the job only reads. Raises
    CorruptError if a task's value does not decode."""
    found: dict[str, dict[str | None, list[TaskVersion]]] = {store: {} for store in sorted(record.stores)}
    for task in range(record.task_count):
        own = markers_of(record, task, config.changelog_partitions(record.stores, task))
        for backend, stores in sorted(own.items()):
            for store, marker in stores.items():
                versions = found.setdefault(store, {}).setdefault(backend, [])
                versions.append(TaskVersion(task, marker_text(backend, marker), marker))
    return [
        HeldVersion(str(record.id), record.batch, store, backend, record.task_count, tuple(versions))
        for store, backends in sorted(found.items())
        for backend, versions in (backends or {None: []}).items()
    ]
