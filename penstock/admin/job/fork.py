"""Forks a job at a checkpoint, by reference: nothing of its state is copied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from penstock.admin.checkpoint.change import append_record
from penstock.admin.job.logs import audited
from penstock.admin.job.ownership import held_job
from penstock.admin.jobs import FoundJob, backend_admins
from penstock.base.retry import SYSTEM_CLOCK, Retry, retry
from penstock.base.wording import counted, listed
from penstock.batch.batch import QUERY, QuerySection
from penstock.checkpoint import edit
from penstock.checkpoint.forks import EPOCHS_APART, Home, check_whole, fork_of, forks_of, pin_of, pinned, read_home
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import LABELS, CheckpointRecord, Labelled, LabelsSection
from penstock.checkpoint.sections import SectionValues
from penstock.checkpoint.streams import STREAMS, StreamsSection
from penstock.checkpoint.task_versions import only_in_changelogs, refuse_unknown, versions_of
from penstock.deploy.wing import DEPLOY, DeploySection
from penstock.errors import IncompatibleError, NotFoundError
from penstock.job.identity import known_uid, settle
from penstock.job.paths import JobPaths
from penstock.outbox.wing import OUTBOX, OutboxSection
from penstock.replay.wing import REPLAY, Line, ReplaySection
from penstock.shadow.wing import SHADOW, ShadowSection
from penstock.state.backends.resources import BackendRoots
from penstock.wing import known_sections

_RETRY = Retry(pause_s=0.2, tries=5)


@dataclass(frozen=True, slots=True)
class ForkFacts:
    """A fork: its name, and the checkpoint that it begins with, of itself (`checkpoint`) and of its parent."""

    job: str
    parent: str
    parent_checkpoint: str
    checkpoint: str


def fork(job: FoundJob, name: str, from_checkpoint: str | None = None) -> ForkFacts:
    """Make a job that begins with the state and the positions of another one, as of a checkpoint. Both may run from
    then on, and neither disturbs the other one. A fork that was made before is returned as it is.

    Nothing of the state is copied: the fork's first checkpoint names the objects of its parent. A label in the parent's
    log, the fork's pin, keeps them, as long as the fork is there and has not copied them (`detach`). The parent may run
    meanwhile. A call that was interrupted can be repeated; until it is complete, the fork does not start.

    The changelogs and durable streams of the fork have other names, and so has its progress at outputs. It owes no
    output. Its outputs are those of its application: give them other names, unless both jobs are to write to the same
    streams. Give it the configuration of its parent, with another `job.name`.

    Args:
        job: the parent.
        name: the fork: `name-id`, or a name alone, to take the id of its parent.
        from_checkpoint: the checkpoint to fork, by its id or label; the last one, if None.

    Raises:
        NotFoundError: the parent has no such checkpoint.
        IncompatibleError: there is a job of that name, or the checkpoint cannot be forked: a durable stream has
            messages that were not read, or a wing is missing here.
        LeaseHeldError: somebody else forks to this name.
        CorruptError: the log of the parent is damaged where it is needed.
        RetryableError: the store failed; call again.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     made = admin.fork(job, "what-if")
        >>> with admin.open_job("what-if") as what_if:
        ...     [task.next_offsets for task in admin.read_checkpoint(what_if).tasks]
        [{'local.trips.0': 3}, {'local.trips.1': 1}]
    """
    paths = _paths_of(name, job.paths.job_id)
    view = job.log.read()
    begun = read_home(job.objects, paths)
    if from_checkpoint is None and begun is not None and begun.parent == job.paths:
        from_checkpoint = begun.checkpoint  # the call is repeated
    check_whole(job.objects, job.paths)
    base = edit.choose_origin(view, from_checkpoint, job.config.task)
    if base is None:
        raise NotFoundError(f"job `{job.paths.root}` has no checkpoint yet, so there is nothing to fork")
    done = _refuse(job, paths, base)
    if done is not None:
        return ForkFacts(paths.root, job.paths.root, str(base.id), str(done.id))
    home = Home(job.paths, known_uid(job.objects, job.paths), str(base.id))
    new = _job_of(job, paths)
    with audited(job, "fork", {paths.root: f"none -> checkpoint {base.id}"}), held_job(new, "fork") as tenure:
        done = _refuse(job, paths, base)  # somebody else may have forked to this name before
        if done is not None:
            return ForkFacts(paths.root, job.paths.root, str(base.id), str(done.id))
        retry(lambda: _make_home(new, home), _RETRY)  # before the pin: who finds a pin without it may take that off
        _pin(job, paths, base)
        record = _begin(job, new, base, view.next_epoch(), tenure.run_id)
        if pinned(job.objects, paths, home) is None:
            raise IncompatibleError(
                f"job `{job.paths.root}` does not keep checkpoint {base.id} for the fork: somebody deletes the job, or "
                f"took the label off. Delete the fork (`penstock job delete {paths.root}`), and fork again if the job "
                "is still there"
            )
    return ForkFacts(paths.root, job.paths.root, str(base.id), str(record.id))


def _begin(job: FoundJob, new: FoundJob, base: CheckpointRecord, next_epoch: int, run_id: str) -> CheckpointRecord:
    """Append the first record of a fork, which has its home already. `next_epoch`: of the parent."""
    retry(lambda: new.log.begin(next_epoch + EPOCHS_APART, "fork"), _RETRY)
    settle(new.objects, new.paths, new.config.job.root)
    claim = new.log.claim(run_id)
    content = edit.content_of(base, lambda task: job.config.changelog_partitions(base.stores, task))
    sections = base.sections.only(known_sections()).having(_NOT_TAKEN_ALONG)
    sections = sections.having({REPLAY: ReplaySection(line=Line(claim.epoch))})
    now_ms, nanos = SYSTEM_CLOCK.now_ms(), time.monotonic_ns()
    record = edit.successor(base, content, new.log.known(), claim, new.config.task, now_ms, nanos, sections)
    record = replace(record, parent=None, consumed_startpoints=(), ended=base.ended or "stopped")
    append_record(new.log, record, new.paths.root)
    return record


def borrow(job: FoundJob, new: FoundJob, base: CheckpointRecord) -> CheckpointRecord:
    """Make a fork in another root, of which the parent does not know: it keeps nothing for the fork, and nothing is
    written to it. For a run that restores the state at once, and whose root goes with it.

    Args:
        job: the parent.
        new: the fork, in another root, with none of the parent's roots of backends.
        base: the checkpoint of the parent that it begins with.

    Returns:
        The first checkpoint of the fork.

    Raises:
        IncompatibleError: the checkpoint cannot be forked, as in `fork`.
        RetryableError: a store failed.
    """
    check_whole(job.objects, job.paths)
    _refuse_checkpoint(job, base)
    roots = {name: job.config.backend_root(name) for name in job.config.rooted_backends} | {"": job.config.job.root}
    home = Home(job.paths, known_uid(job.objects, job.paths), str(base.id), roots)
    _make_home(new, home)
    return _begin(job, new, base, job.log.read("report").next_epoch(), "fork")


_NOT_TAKEN_ALONG: SectionValues = {
    OUTBOX: OutboxSection(),
    QUERY: QuerySection(),
    STREAMS: StreamsSection(),
    LABELS: LabelsSection(),
    SHADOW: ShadowSection(unsent=True),
    DEPLOY: DeploySection(),
}


def _pin(job: FoundJob, paths: JobPaths, base: CheckpointRecord) -> None:
    """Pin the checkpoint. Another one may be pinned still, by a fork of this name that was deleted."""
    held = job.log.read().labels.get(pin_of(paths))
    # A pin that is there already is set again: `state gc` may be about to take that one off, because it found no home.
    for checkpoint in (base.id,) if held is None else (None, base.id):
        retry(partial(job.log.label, pin_of(paths), checkpoint, SYSTEM_CLOCK.now_ms()), _RETRY)


def _job_of(job: FoundJob, paths: JobPaths) -> FoundJob:
    """Another job, in the same root, with the same configuration."""
    return FoundJob(job.config.of_job(paths.name, paths.job_id), paths, job.objects)


def _paths_of(name: str, job_id: str) -> JobPaths:
    head, _, tail = name.rpartition("-")
    return JobPaths(head, tail) if head and (tail.isdecimal() or tail == job_id) else JobPaths(name, job_id)


def _refuse(job: FoundJob, paths: JobPaths, base: CheckpointRecord) -> CheckpointRecord | None:
    """Raise IncompatibleError if the fork cannot be made. The oldest checkpoint of the fork, if it was made before."""
    if paths == job.paths:
        raise IncompatibleError(f"job `{paths.root}` cannot be a fork of itself: give the fork another name")
    _refuse_checkpoint(job, base)
    home, view = read_home(job.objects, paths), CheckpointLog(job.objects, paths).read("report")
    if home is None and view.end:
        raise IncompatibleError(
            f"there is a job `{paths.root}` already. Give the fork another name, or delete that job (`penstock job "
            f"delete {paths.root}`)"
        )
    if home is not None and (home.parent != job.paths or home.checkpoint != str(base.id)):
        raise IncompatibleError(
            f"job `{paths.root}` is a fork of checkpoint {home.checkpoint} of job `{home.parent.root}`. Give this fork "
            f"another name, or delete that one (`penstock job delete {paths.root}`)"
        )
    return next(iter(view.checkpoints), None)


def _refuse_checkpoint(job: FoundJob, base: CheckpointRecord) -> None:
    """Raise IncompatibleError if no fork can begin with the checkpoint."""
    refuse_unknown(base, known_sections())
    if 2 not in versions_of(base) or 2 not in job.config.task.checkpoint_read_versions:
        raise IncompatibleError(
            f"checkpoint {base.id} cannot be forked without version 2, because version 1 names no changelog of another "
            "job. Run the job once with task.checkpoint.write.versions=1,2 and task.checkpoint.read.versions=2,1"
        )
    partitions = partial(job.config.changelog_partitions, base.stores)
    held = [f"`{store}`" for store in only_in_changelogs(base, partitions)] if base.section(SHADOW).held else []
    if held:
        raise IncompatibleError(
            f"job `{job.paths.root}` is a shadow, and its changelog of store {listed(held)} is held back with its "
            "outputs: nobody else can restore from it. Add another backend to `stores.backup.factories`, and run the "
            "shadow once"
        )
    if unread := [f"`{stream}`" for stream, own in base.section(STREAMS).streams.items() if own.left()]:
        raise IncompatibleError(
            f"the durable stream {listed(unread)} has messages that checkpoint {base.id} has not read, and the fork "
            "has other durable streams. Fork a checkpoint that has read them: start the job once with "
            '`until="latest"` (`penstock run ... --until latest`)'
        )


def _make_home(new: FoundJob, home: Home) -> None:
    if not new.objects.put_if_absent(new.paths.home, home.encode()) and read_home(new.objects, new.paths) != home:
        raise IncompatibleError(f"somebody else forks to job `{new.paths.root}` at the same time")


@dataclass(frozen=True, slots=True)
class DetachedFacts:
    """The objects that `detach` copied, and their bytes. `parent` is None if the job was no fork."""

    job: str
    parent: str | None
    copied: int
    bytes: int


def detach(job: FoundJob) -> DetachedFacts:
    """Copy the objects that a fork still needs of its parents, and take its pin off. From then on it is a job as any
    other, and its parent may be deleted.

    The fork may run. A call that was interrupted can be repeated.

    Args:
        job: the fork.

    Raises:
        NotFoundError, CorruptError: an object of a retained checkpoint is missing or damaged. The pin stays.
        IncompatibleError: a store is in a changelog of the parent alone, which cannot be copied: start the fork once.
        RetryableError: the store failed; call again.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     made = admin.fork(job, "what-if")
        >>> with admin.open_job("what-if") as what_if:
        ...     detached = admin.detach(what_if)
        ...     detached.parent, detached.copied > 0, admin.detach(what_if).parent
        ('flights-1', True, None)
    """
    home = read_home(job.objects, job.paths)
    if home is None:
        return DetachedFacts(job.paths.root, None, 0, 0)
    view = job.log.read()
    last = view.latest
    check_whole(job.objects, job.paths)
    if last is None:
        raise IncompatibleError(f"job `{job.paths.root}` has no checkpoint yet, so there is nothing to copy")
    _refuse_borrowed_changelogs(job, view)
    with audited(job, "job detach", {"parent": f"{home.parent.root} -> none"}) as change:
        held = pinned(job.objects, job.paths, home)
        copied = list(_copies(job, view, last))
        change.changes |= {"copied": counted(len(copied), "object")}
        retry(lambda: job.objects.delete(job.paths.home), _RETRY)
        if held is not None:
            unpin(job, home, held)
    return DetachedFacts(job.paths.root, home.parent.root, len(copied), sum(copied))


def unpin(job: FoundJob, home: Home, held: Labelled) -> None:
    """Take the pin of a fork off, whose home is gone: this pin, and not one that was set since, for a new fork of the
    same name. A pin that stays is found by `state gc` of the parent."""
    log = _job_of(job, home.parent).log
    retry(lambda: log.label(pin_of(job.paths), None, SYSTEM_CLOCK.now_ms(), instead_of=held), _RETRY)


def _refuse_borrowed_changelogs(job: FoundJob, view: LogView) -> None:
    """Only the first checkpoint of a fork is in a changelog of its parent: later ones are in its own."""
    for record in view.restorable:
        for store, streams in only_in_changelogs(record, lambda _: {}).items():
            if other := streams - {job.config.store(store).changelog}:
                raise IncompatibleError(
                    f"checkpoint {record.id} of the fork `{job.paths.root}` has store `{store}` in the changelog "
                    f"`{min(other)}` of its parent alone. Start the fork, and detach it once that checkpoint is no "
                    "longer retained (`penstock checkpoint list`)"
                )


def _copies(job: FoundJob, view: LogView, last: CheckpointRecord) -> Iterator[int]:
    """Copy what retained checkpoints reach and the fork does not have. The sizes, in bytes."""
    with (
        closing(BackendRoots(job.config, job.objects)) as roots,
        closing(backend_admins(job, last)) as admins,
    ):
        for backend, keys in admins.needed(view.restorable).items():
            objects = roots.of(backend)
            there = set(objects.list(job.paths.state))
            for key in sorted(keys - there):
                data = objects.get(key)
                objects.put_if_absent(key, data)
                yield len(data)


def refuse_forked(job: FoundJob) -> None:
    """Raise IncompatibleError if forks need objects of the job."""
    needing = [
        f"`{fork.root}`"
        for label, needed in sorted(forks_of(job.objects, job.paths).items())
        if needed and (fork := fork_of(label)) is not None
    ]
    if needing:
        raise IncompatibleError(
            f"job `{job.paths.root}` cannot be deleted: {'its fork' if len(needing) == 1 else 'its forks'} "
            f"{listed(needing)} {'needs' if len(needing) == 1 else 'need'} objects of it. Delete each fork first "
            "(`penstock job delete`), or let it copy what it needs (`penstock job detach`)"
        )
