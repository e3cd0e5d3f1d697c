"""Deletes a job, and lists what that deletes."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.admin.job.fork import refuse_forked, unpin
from penstock.admin.job.logs import audited
from penstock.admin.job.ownership import held_job
from penstock.admin.jobs import FoundJob
from penstock.admin.stream.found import changelogs_of
from penstock.base.wording import counted, size_text
from penstock.checkpoint.forks import pinned, read_home
from penstock.checkpoint.log_view import LogView
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, PenstockError
from penstock.facts import Facts, Shown
from penstock.host.logs import log_directory
from penstock.job.identity import check_root, known_uid
from penstock.objects.store import ObjectStore
from penstock.outbox.wing import owed_of
from penstock.shadow.wing import SHADOW
from penstock.state.backends.resources import BackendRoots

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobContent(Shown):
    """Everything of a job that is deleted with it, under the job root and on this host. Its streams and its audit log
    are not."""

    job: str
    root: str
    checkpoints: int
    state_objects: int
    state_bytes: int
    metadata_objects: int
    roots: tuple[str, ...]
    """The URLs of backends' roots that have state of the job. The numbers of the state include this state."""
    folders: tuple[str, ...]
    """Folders of this host with copies of its stores, logs, and what a shadow holds back."""
    changelogs: tuple[str, ...]
    """The streams that the job owns, which are not deleted."""
    table_objects: int = 0
    """Manifests and files of pushed tables. Their sources are not deleted."""
    table_bytes: int = 0
    outbox_objects: int = 0
    """Objects with exactly-once output, published or not."""
    unpublished_messages: int = 0
    """Messages that the last checkpoint holds for exactly-once outputs. Those that are not published yet never will
    be."""

    def as_facts(self) -> Facts:
        lines: dict[str, object] = {
            "job": self.job,
            "job root": self.root,
            "root of a backend": self.roots,
            "checkpoints": self.checkpoints,
            "state": f"{counted(self.state_objects, 'object')}, {size_text(self.state_bytes)}",
        }
        if self.table_objects:
            lines["pushed tables"] = f"{counted(self.table_objects, 'object')}, {size_text(self.table_bytes)}"
        if self.outbox_objects:
            left = f", with {counted(self.unpublished_messages, 'message')} that may not be published yet"
            objects = counted(self.outbox_objects, "object")
            lines["outbox"] = f"{objects}{left if self.unpublished_messages else ''}"
        lines["metadata"] = counted(self.metadata_objects, "object")
        return Facts({**lines, "folder of this host": self.folders, "stream that stays": self.changelogs})


def job_content(found: FoundJob) -> JobContent:
    """List everything that `delete_job` deletes. Changes nothing.

    Args:
        found: the job.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     content = admin.job_content(job)
        >>> content.job, content.checkpoints
        ('flights-1', 4)
    """
    paths = found.paths
    state = list(found.objects.sizes(f"{paths.root}/state").values())
    with closing(BackendRoots(found.config, found.objects)) as roots:
        own = _own_roots(found, roots)
        state += [size for objects in own.values() for size in objects.sizes(f"{paths.root}/state").values()]
    tables = found.objects.sizes(paths.tables)
    view = found.log.read("report")
    metadata = [key for key in found.objects.list(f"{paths.root}/metadata") if key != paths.lease]
    return JobContent(
        job=paths.root,
        root=found.config.job.root,
        checkpoints=len(view.checkpoints),
        state_objects=len(state),
        state_bytes=sum(state),
        metadata_objects=len(metadata),
        roots=tuple(own),
        folders=tuple(str(folder) for folder in _folders(found, view) if folder.is_dir()),
        changelogs=changelogs_of(found, uid) if (uid := _own_uid(found)) else (),
        table_objects=len(tables),
        table_bytes=sum(tables.values()),
        outbox_objects=len(found.objects.list(paths.outbox())),
        unpublished_messages=owed_of(view).messages,
    )


def delete_job(found: FoundJob, content: JobContent | None = None) -> JobContent:
    """Delete a job that does not run, but none of its streams. Its audit log stays. A call that was interrupted can be
    repeated.

    Args:
        found: the job.
        content: what `job_content` returned; None to look again.

    Returns:
        What was deleted.

    Raises:
        LeaseHeldError: the job runs; the message names the holder. Nothing was deleted.
        IncompatibleError: forks need objects of the job; the message names them. Nothing was deleted.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.delete_job(job).checkpoints
        4
        >>> with admin.open_all_jobs() as jobs:
        ...     jobs
        []
    """
    content = content or job_content(found)
    changes = {
        "checkpoints": str(content.checkpoints),
        "state": f"{counted(content.state_objects, 'object')}, {size_text(content.state_bytes)}",
    }
    with audited(found, "job delete", changes), held_job(found, "delete"):
        _mark(found)
        home = read_home(found.objects, found.paths)
        held = None if home is None else pinned(found.objects, found.paths, home)
        _delete(found, content)
        if home is not None and held is not None:
            unpin(found, home, held)
    return content


def _mark(found: FoundJob) -> None:
    """Say that the job is being deleted, and then look for forks that need it. A fork that is made at this time looks
    for the mark after it has pinned, so that one of the two sees the other. From here on nothing starts."""
    found.objects.put_if_absent(found.paths.deleting, b"")
    try:
        refuse_forked(found)
    except IncompatibleError:
        found.objects.delete(found.paths.deleting)
        raise


def _delete(found: FoundJob, content: JobContent) -> None:
    """Delete everything, in an order that leaves nothing that could be started; the caller holds the lease.

    The log goes after the state, its newest record first: as long as something is left of it, it names state that is
    gone, and a start fails. The uid goes before it: who starts once the log is gone is another job. The lease is last.
    """
    paths, objects = found.paths, found.objects
    for folder in content.folders:
        shutil.rmtree(folder, ignore_errors=True)
    with closing(BackendRoots(found.config, objects)) as roots:
        for root in _own_roots(found, roots).values():
            for key in root.list(f"{paths.root}/state"):
                root.delete(key)
            root.delete(paths.uid)
            root.remove_empty_folders(paths.root)
    for key in objects.list(f"{paths.root}/state"):
        objects.delete(key)
    objects.delete(paths.uid)
    for key in reversed(objects.list(paths.checkpoints)):
        objects.delete(key)
    for key in objects.list(paths.root):
        if key not in {paths.lease, paths.deleting} and not key.startswith(f"{paths.audit_log}/"):
            objects.delete(key)
    objects.delete(paths.deleting)
    objects.delete(paths.lease)
    objects.remove_empty_folders(paths.root)


def _own_roots(found: FoundJob, roots: BackendRoots) -> dict[str, ObjectStore]:
    """The roots of backends, by URL, that are bound to this job; none if its folder is a copy that was not adopted."""
    uid = _own_uid(found)
    return {url: objects for url, objects in roots.separate() if uid and known_uid(objects, found.paths) == uid}


def _own_uid(found: FoundJob) -> str:
    """The job's uid. It is empty if there is none, if it cannot be read, and if the folder is a copy, not adopted,
    with the uid of the original."""
    try:
        check_root(found.objects, found.paths, found.config.job.root)
        return known_uid(found.objects, found.paths)
    except (CorruptError, IncompatibleError):
        return ""


def _folders(found: FoundJob, view: LogView) -> list[Path]:
    """The job's folders on this host, and what a shadow holds back. For a copy that was not adopted there are none:
    they are the original's."""
    base = Path(found.config.job.logged_store_base_dir)
    try:
        check_root(found.objects, found.paths, found.config.job.root)
        uid = known_uid(found.objects, found.paths)
    except NotFoundError:
        return []
    except PenstockError as error:
        logger.info("the job's folders on this host were not deleted: %s", error)
        return []
    own = [base / f"{found.paths.root}-{uid}", log_directory(found.config, found.paths, uid)]
    held = view.latest is not None and view.latest.section(SHADOW).held
    return [*own, found.config.job.shadow_folder] if held else own
