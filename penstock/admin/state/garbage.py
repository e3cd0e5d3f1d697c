"""Deleting what no retained checkpoint needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from penstock.admin.job.ownership import owned_job
from penstock.admin.jobs import FoundJob
from penstock.admin.state.version import choose_version
from penstock.checkpoint.log import CheckpointLog
from penstock.metadata.identity import known_uid
from penstock.state.admins import BackendAdmins
from penstock.state.backends.base import Garbage
from penstock.system.registry import open_systems


@dataclass(frozen=True, slots=True)
class CollectedGarbage:
    """What was deleted, or with `dry_run` would be, by backend."""

    dry_run: bool
    backends: Mapping[str, Garbage]


def collect_garbage(job: FoundJob, *, dry_run: bool = False) -> CollectedGarbage:
    """Delete what no retained checkpoint needs: what is left of runs that ended badly, and of backends that were
    dropped. A running job does this by itself.

    Args:
        job: the job, which must be stopped unless it is a dry run.
        dry_run: only find out what would be deleted.

    Raises:
        LeaseHeldError: the job runs.
        NotFoundError: it has no checkpoint.
    """
    log = CheckpointLog(job.objects, job.paths)
    last = choose_version(log, job, "latest")
    admins = BackendAdmins(
        job.config,
        job.paths,
        job.objects,
        last.task_count,
        sorted(last.stores),
        open_systems(job.config),
        known_uid(job.objects, job.paths),
    )
    with closing(admins), owned_job(job, log, wanted=not dry_run) as epoch:
        view = log.read()
        found = admins.collect(epoch, view.restorable, list(view.left.values()), sweep=True, dry_run=dry_run)
    return CollectedGarbage(dry_run, found)
