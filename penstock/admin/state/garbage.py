"""Deletes what no retained checkpoint needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from penstock.admin.job.audit import audited
from penstock.admin.job.ownership import owned_job
from penstock.admin.jobs import FoundJob
from penstock.admin.state.version import choose_version
from penstock.admin.table import side_stores, table_names
from penstock.base.wording import counted
from penstock.errors import CorruptError, NotFoundError
from penstock.facts import Facts, FactTable
from penstock.job.identity import known_uid
from penstock.notebook import Shown
from penstock.outbox.driver import outbox_garbage
from penstock.outbox.wing import owed_of
from penstock.side.start import BACKUP, is_backed_up
from penstock.state.backends.base import Garbage
from penstock.state.backends.registry import BackendAdmins
from penstock.system.registry import open_systems
from penstock.tables.registry import TableRegistry

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

    def as_facts(self) -> Facts:
        kinds = {backend: found.names for backend, found in self.backends.items()}
        kinds |= {kind: names for kind, names in (("pushed tables", self.tables), ("outbox", self.outbox)) if names}
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

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.collect_garbage(job).backends
        {'changelog-files': Garbage(names=(), size_bytes=None)}
    """
    if dry_run:
        return _collect(job, dry_run=True)
    with audited(job, "state gc") as change:
        found = _collect(job, dry_run=False)
        deleted = {**{name: each.names for name, each in found.backends.items()}, "tables": found.tables}
        counts = {name: len(names) for name, names in {**deleted, "outbox": found.outbox}.items()}
        change.changes |= {name: f"{counted(count, 'object')} deleted" for name, count in counts.items() if count}
    return found


def _collect(job: FoundJob, *, dry_run: bool) -> CollectedGarbage:
    last = choose_version(job, "latest")
    admins = BackendAdmins(
        job.config,
        job.paths,
        job.objects,
        last.task_count,
        sorted(last.stores),
        open_systems(job.config),
        known_uid(job.objects, job.paths),
        others={BACKUP: copied} if (copied := _copied_side_stores(job)) else {},
    )
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
    return CollectedGarbage(dry_run, found, tables, outbox=outbox)


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
