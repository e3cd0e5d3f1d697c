"""Lists what the backends of a job hold, and deletes what no retained checkpoint needs. A list reads the checkpoint
log and lists objects, but reads no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from penstock.admin.job.logs import audited
from penstock.admin.job.ownership import owned_job
from penstock.admin.jobs import FoundJob, backend_admins, choose_version
from penstock.admin.table import side_stores, table_names
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import counted, size_text
from penstock.checkpoint.forks import stale_pins
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_versions import markers_of
from penstock.config.model import JobConfig
from penstock.errors import CorruptError, NotFoundError
from penstock.facts import Facts, FactTable, Shown
from penstock.outbox.driver import outbox_garbage
from penstock.outbox.wing import owed_of
from penstock.shadow.wing import refuse_loud
from penstock.side.start import BACKUP, is_backed_up
from penstock.side.wing import SideStoreFacts
from penstock.state.backends.base import Garbage
from penstock.state.backends.registry import StoredObjects, marker_text, span_text, stored_objects, summed
from penstock.state.backends.resources import BackendRoots
from penstock.tables.registry import TableRegistry


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
        version: a single checkpoint: its id or label, the number of its batch, `latest` or `latest-N`; None for all.

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


_SHOWN = 20


@dataclass(frozen=True, slots=True)
class CollectedGarbage(Shown):
    """The deleted objects by backend; with `dry_run`, the objects that would be deleted."""

    dry_run: bool
    backends: Mapping[str, Garbage]
    tables: tuple[str, ...] = ()
    """Files of pushed tables that failed builds left behind."""
    outbox: tuple[str, ...] = ()
    """Exactly-once output that was published, or that no checkpoint ever named."""
    pins: tuple[str, ...] = ()
    """Labels of forks that are gone, or need no object of the job any more. What they kept goes with the next
    checkpoint."""

    def as_facts(self) -> Facts:
        kinds = {backend: found.names for backend, found in self.backends.items()}
        others = (("pushed tables", self.tables), ("outbox", self.outbox), ("pins of forks", self.pins))
        kinds |= {kind: names for kind, names in others if names}
        verb = "would be deleted" if self.dry_run else "deleted"
        tables = [FactTable.of("", kind, ((name,) for name in names[:_SHOWN])) for kind, names in kinds.items()]
        left = {kind: len(names) - _SHOWN for kind, names in kinds.items() if len(names) > _SHOWN}
        notes = [f"{kind}: and {count} more; `penstock state gc --json` lists them all" for kind, count in left.items()]
        return Facts.some({kind: f"{len(names)} {verb}" for kind, names in kinds.items()}, *tables, notes=notes)


def collect_garbage(job: FoundJob, *, dry_run: bool = False) -> CollectedGarbage:
    """Delete objects that no retained checkpoint needs: remains of failed runs, and of backends that are no longer
    used.

    A running job does this by itself.

    Args:
        job: the job. It must be stopped, except for a dry run.
        dry_run: delete nothing; the result is a preview.

    Raises:
        LeaseHeldError: the job runs.
        FencedError: the job was started meanwhile.
        NotFoundError: the job has no checkpoint; or a retained checkpoint names an object that is missing, so nothing
            of its backend was deleted.
        CorruptError: as NotFoundError, for an object that is damaged.
        ConfigError: the job is a shadow, and the configuration does not say so.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.collect_garbage(job).backends
        {'changelog-files': Garbage(names=(), size_bytes=None)}
    """
    refuse_loud(job.config, job.log.read("report"), job.paths.root)
    if dry_run:
        return _collect(job, dry_run=True)
    with audited(job, "state gc") as change:
        found = _collect(job, dry_run=False)
        deleted = {**{name: each.names for name, each in found.backends.items()}, "tables": found.tables}
        counts = {name: len(names) for name, names in {**deleted, "outbox": found.outbox}.items()}
        change.changes |= {name: f"{counted(count, 'object')} deleted" for name, count in counts.items() if count}
        change.changes |= dict.fromkeys(found.pins, "the pin of a fork -> none")
    return found


def _collect(job: FoundJob, *, dry_run: bool) -> CollectedGarbage:
    last = choose_version(job, "latest")
    admins = backend_admins(job, last, {BACKUP: copied} if (copied := _copied_side_stores(job)) else {})
    with closing(admins), owned_job(job, wanted=not dry_run) as epoch:
        view = job.log.read()
        try:
            found = admins.collect(epoch, view.restorable, list(view.left.values()), sweep=True, dry_run=dry_run)
        except (NotFoundError, CorruptError):
            if not dry_run:
                job.log.check_owner()
            raise
        tables = tuple(chain.from_iterable(_of_table(job, name, epoch, dry_run) for name in table_names(job)))
        outbox = tuple(outbox_garbage(job.objects, job.paths, epoch, owed_of(view).names))
        for key in () if dry_run else outbox:
            job.objects.delete(key)
        pins = stale_pins(job.log.read().labels, job.objects, job.paths)
        for label, seen in () if dry_run else pins.items():
            job.log.label(label, None, SYSTEM_CLOCK.now_ms(), instead_of=seen)
    return CollectedGarbage(dry_run, found, tables, outbox=outbox, pins=tuple(pins))


def _copied_side_stores(job: FoundJob) -> list[str]:
    """The stores that side inputs fill and commits copied. No checkpoint lists them, and may not even have a marker."""
    stores = [each.store for each in side_stores(job) if each.side_inputs]
    return [
        store for store in stores if is_backed_up(job.config, store) or job.objects.list(job.paths.store_folder(store))
    ]


def _of_table(job: FoundJob, table: str, epoch: int, dry_run: bool) -> tuple[str, ...]:
    registry = TableRegistry(job.objects, job.paths, table)
    found = registry.garbage(epoch)
    if not dry_run:
        registry.collect(epoch)
    return found
