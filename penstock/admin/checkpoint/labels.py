"""Labels of checkpoints: they are set and taken off while the job runs, or while it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from penstock.admin.checkpoint.facts import find_checkpoint
from penstock.admin.job.logs import audited
from penstock.admin.jobs import FoundJob
from penstock.api.ssp import SystemStream
from penstock.base.retry import SYSTEM_CLOCK, Retry, retry
from penstock.checkpoint.forks import forks_of
from penstock.checkpoint.record import CheckpointRecord, check_name
from penstock.checkpoint.task_versions import only_in_changelogs
from penstock.errors import IncompatibleError, NotFoundError
from penstock.system.registry import open_system

_APPEND = Retry(pause_s=0.2, tries=5)


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """A label and its checkpoint. `changed` is False if all was so already. `warnings` are sentences for people."""

    job: str
    label: str
    checkpoint: str
    changed: bool
    warnings: tuple[str, ...] = ()


def label_checkpoint(job: FoundJob, checkpoint_id: str | None, name: str) -> LabelFacts:
    """Give a retained checkpoint a label. A checkpoint with a label stays restorable, beside those that
    `task.checkpoint.retained` keeps. A label can be given wherever a checkpoint is named, as in `penstock run --from`.

    The job may run, and is not disturbed. The label keeps the checkpoint once this call has returned.

    Args:
        job: the job.
        checkpoint_id: the checkpoint, by its id or another label; the last one, if None.
        name: up to 64 letters, digits, `.`, `_` and `-`, the first one a letter.

    Raises:
        ConfigError: the name has another form.
        NotFoundError: there is no such checkpoint, or it is not retained any more.
        IncompatibleError: another checkpoint has the label.
        CorruptError: the log is damaged where it is needed.
        RetryableError: the store failed; call again.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.label_checkpoint(job, None, "before-deploy")
        ...     [each.labels for each in admin.checkpoints(job) if each.labels]
        [('before-deploy',)]
    """
    check_name(name)
    view = job.log.read()
    found = find_checkpoint(view, None, job.paths.root) if checkpoint_id is None else view.find(checkpoint_id)
    held = view.labels.get(name)
    warnings = tuple(_warnings(job, found))
    if held is not None and held.checkpoint == found.id:
        return LabelFacts(job.paths.root, name, str(found.id), changed=False, warnings=warnings)
    if held is not None:
        raise IncompatibleError(
            f"`{name}` is the label of checkpoint {held.checkpoint} of job `{job.paths.root}`. Take it off first "
            f"(`penstock checkpoint unlabel {job.paths.root} {name}`), or choose another name"
        )
    with audited(job, "checkpoint label", {name: f"none -> {found.id}"}):
        retry(lambda: job.log.label(name, found.id, SYSTEM_CLOCK.now_ms()), _APPEND)
    return LabelFacts(job.paths.root, name, str(found.id), changed=True, warnings=warnings)


def _warnings(job: FoundJob, record: CheckpointRecord) -> Iterator[str]:
    """The stores that a label cannot keep: they are in a changelog that its system compacts in its own time."""
    partitions = partial(job.config.changelog_partitions, record.stores)
    for store, streams in only_in_changelogs(record, partitions).items():
        system = next((each.system for each in streams if not _compacts_on_request(job, each)), None)
        if system is not None:
            yield (
                f"store `{store}` of checkpoint {record.id} is in a changelog of the system `{system}` alone, which "
                "compacts it in its own time: the label does not keep the store restorable for longer than its "
                "`min.compaction.lag.ms`. Add another backend to `stores.backup.factories`"
            )


def _compacts_on_request(job: FoundJob, changelog: SystemStream) -> bool:
    return open_system(job.config.system(changelog.system)).serving(changelog.stream).compacts_on_request


def unlabel_checkpoint(job: FoundJob, name: str) -> LabelFacts:
    """Take a label off. The checkpoint leaves with one of the next two, unless it has another label or
    `task.checkpoint.retained` keeps it. The job may run.

    Args:
        job: the job.
        name: the label.

    Raises:
        NotFoundError: there is no such label.
        IncompatibleError: it keeps what a fork needs.
        CorruptError: the log is damaged where it is needed.
        RetryableError: the store failed; call again.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.label_checkpoint(job, None, "before-deploy")
        ...     admin.unlabel_checkpoint(job, "before-deploy").changed
        True
    """
    held = job.log.read().labels.get(name)
    if held is None:
        raise NotFoundError(
            f"job `{job.paths.root}` has no label `{name}`; `penstock checkpoint list {job.paths.root}` shows the "
            "labels"
        )
    if forks_of(job.objects, job.paths).get(name):
        raise IncompatibleError(
            f"`{name}` keeps what the fork `{name.partition(':')[2]}` needs. Delete the fork first (`penstock job "
            "delete`), or have it copy what it needs (`penstock job detach`): both take the label off"
        )
    with audited(job, "checkpoint unlabel", {name: f"{held.checkpoint} -> none"}):
        retry(lambda: job.log.label(name, None, SYSTEM_CLOCK.now_ms(), instead_of=held), _APPEND)
    return LabelFacts(job.paths.root, name, str(held.checkpoint), changed=True)
