"""The records by which one job takes over from another one, and what comes next on the way.

The record that hands over is the only decision: before it, the old job is in charge, and after it, the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Literal, TypeAlias

from penstock.admin.checkpoint.change import next_checkpoint
from penstock.admin.job.logs import audited
from penstock.admin.jobs import FoundJob
from penstock.admin.questions import outbox_outputs, read_marks
from penstock.base.wording import counted, listed
from penstock.batch.batch import QUERY
from penstock.checkpoint import edit
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.checkpoint.streams import CHANGELOG_STREAM, STREAMS, StreamsSection
from penstock.checkpoint.task_versions import only_in_changelogs
from penstock.deploy.wing import DEPLOY, DeploySection, handed_to
from penstock.errors import IncompatibleError, NotFoundError
from penstock.job.identity import known_uid
from penstock.outbox.wing import OUTBOX, OutboxSection, owed_of, own_debt, publisher_name
from penstock.replay.lines import accepted_lines, lineage
from penstock.replay.wing import REPLAY, Line, ReplaySection, of_other
from penstock.shadow.wing import SHADOW, ShadowSection

DeployStep: TypeAlias = Literal["fork", "follow", "take over", "take back", "run"]
"""The next step: make the fork; make the batches of the old job; become loud; take the charge back from a job that
has not taken over; or just run."""


class NotYetError(IncompatibleError):
    """A job cannot hand over now, and may later."""


def decide(old: LogView, new: LogView, old_job: str, new_job: str, *, rollback: bool = False) -> DeployStep:
    """Choose the next step on the way to the charge of the new job. Pure.

    Args:
        old: the log of the job that is to hand over.
        new: the log of the one that is to take over.
        old_job: the name and id of the one.
        new_job: those of the other one.
        rollback: the new one may be a job that has handed over to the old one.

    Raises:
        NotFoundError: the old job has no checkpoint.
        IncompatibleError: the new job cannot take over.
    """
    last, begun = old.latest, new.latest
    if last is None:
        raise NotFoundError(f"job `{old_job}` has no checkpoint yet: there is nothing to take over. Start it first")
    charge = last.section(DEPLOY)
    if begun is None:
        if rollback:
            raise NotFoundError(f"job `{new_job}` has no checkpoint, so it cannot come back")
        _refuse_other(charge.handed_to, old_job, new_job)
        return "fork"  # also behind the record that hands over to it: it was deleted meanwhile
    shadow, deploy = begun.section(SHADOW), begun.section(DEPLOY)
    _refuse_own(deploy, old_job, new_job, rollback=rollback)
    if charge.given_up:
        return "take back" if deploy.handed_to == old_job else "run"
    never_took_over = last.section(SHADOW).held or (last.section(SHADOW).unsent and not charge.handed_to)
    if deploy.handed_to == old_job and never_took_over:
        return "take back"
    _refuse_other(charge.handed_to, old_job, new_job)
    if not shadow.held and deploy.took_over == old_job and not deploy.handed_to:
        if charge.handed_to:
            return "run"
    elif shadow.held or shadow.unsent:
        is_made = begun.section(REPLAY).followed.made == str(last.id)
        return "take over" if charge.handed_to and is_made and shadow.held else "follow"
    raise IncompatibleError(
        f"there is a job `{new_job}` already, which has sent output and has not handed over to job `{old_job}`. Give "
        "the new job another name"
    )


def _refuse_own(deploy: DeploySection, old_job: str, new_job: str, *, rollback: bool) -> None:
    if deploy.given_up:
        raise IncompatibleError(
            f"job `{new_job}` has given up, and never takes over. Delete it (`penstock job delete {new_job}`), and "
            "deploy again"
        )
    if deploy.handed_to == old_job and not rollback:
        raise IncompatibleError(
            f"job `{new_job}` has handed over to job `{old_job}`. To bring it back: `penstock deploy {old_job} APP "
            "--rollback`"
        )


def _refuse_other(successor: str, old_job: str, new_job: str) -> None:
    if successor not in ("", new_job):
        raise IncompatibleError(
            f"job `{old_job}` has handed over to job `{successor}`, which is in charge: deploy from that one"
        )


def hand_over(job: FoundJob, to: str, line: int) -> CheckpointRecord:
    """End the charge of a job that does not run: another one takes over just behind its last checkpoint. Idempotent.

    Args:
        job: the job.
        to: the name and id of the other one.
        line: the epoch of the line that the other one follows.

    Raises:
        LeaseHeldError: the job runs.
        NotFoundError: the job has no checkpoint.
        NotYetError: it has not published all output of its last checkpoint, or that is not known; or timers that were
            due have not fired.
        IncompatibleError: it cannot hand over, or another process wrote a checkpoint meanwhile.
        PenstockError: the store failed.
    """
    root, view = job.paths.root, job.log.read()
    base = view.latest
    if base is None:
        raise NotFoundError(f"job `{root}` has no checkpoint yet, so there is nothing to hand over")
    if (before := handed_to(view)) == to:
        return base
    if before:
        raise IncompatibleError(f"job `{root}` has handed over to job `{before}`")
    refuse_to_hand_over(root, base)
    if base.section(REPLAY).line.epoch not in accepted_lines(lineage(view), line):
        raise IncompatibleError(
            f"a command or a start has changed state or positions of job `{root}`, so job `{to}` cannot come to its "
            f"checkpoint {base.id}. Delete that one (`penstock job delete {to}`), and deploy again"
        )
    if base.section(REPLAY).behind:
        raise NotYetError(f"job `{root}` stopped before all timers fired that were due: start it once, and they fire")
    _refuse_unpublished(job, view)
    # What is held back for its successor from here on is not missing anywhere, if the job comes back.
    sections: SectionValues = {
        DEPLOY: DeploySection(handed_to=to),
        SHADOW: ShadowSection(unsent=True),
        OUTBOX: OutboxSection(),
        REPLAY: ReplaySection(line=base.section(REPLAY).line),  # nothing has changed
    }
    return _append(job, view, {"hands over to": to}, lambda record: replace(_having(sections)(record), ended="stopped"))


def take_over(old: FoundJob, new: FoundJob) -> CheckpointRecord:
    """Put a job in charge that has made all batches of one that has handed over to it. It does not run.

    Args:
        old: the job that has handed over.
        new: the other one, with its output held back.

    Raises:
        LeaseHeldError: the new job runs.
        IncompatibleError: the old one has not handed over to it, or not all batches are made.
        PenstockError: the store failed.
    """
    last, view = old.log.read(), new.log.read()
    step = decide(last, view, old.paths.root, new.paths.root, rollback=True)
    if step != "take over" or last.latest is None or view.latest is None:
        raise IncompatibleError(f"job `{new.paths.root}` cannot take over from job `{old.paths.root}` yet")
    base, handed = view.latest, last.latest
    refuse_held_changelogs(new, base)
    content = _content(new, base)
    # Streams that were held back are not those that the job writes from now on.
    real = {
        task: {backend: own for backend, own in markers.items() if backend != CHANGELOG_STREAM}
        for task, markers in content.markers.items()
    }
    inputs = {stream: identity for stream, identity in content.identities.items() if stream in base.streams}
    follows = of_other(old.paths.root, str(handed.id))

    sections: SectionValues = {
        DEPLOY: DeploySection(took_over=old.paths.root),
        SHADOW: ShadowSection(),
        OUTBOX: OutboxSection(),
        STREAMS: StreamsSection(),
    }

    def changed(record: CheckpointRecord) -> CheckpointRecord:
        return _having({**sections, REPLAY: ReplaySection(line=Line(record.epoch, follows))})(record)

    content = replace(content, markers=real, identities=inputs)
    return _append(new, view, {"takes over from": old.paths.root}, changed, content)


def take_back(old: FoundJob, new: FoundJob) -> CheckpointRecord:
    """Put a job in charge again that has handed over to one that has not taken over. Neither runs.

    The other one gives up first, by a record in its log: from then on it never takes over.

    Args:
        old: the job that was to take over, with its output held back.
        new: the job that has handed over to it.

    Raises:
        LeaseHeldError: one of them runs.
        IncompatibleError: the other one has taken over, or another process wrote a checkpoint meanwhile.
        PenstockError: the store failed.
    """
    given, view = old.log.read(), new.log.read()
    step = decide(given, view, old.paths.root, new.paths.root, rollback=True)
    if step != "take back" or given.latest is None or view.latest is None:
        raise IncompatibleError(f"job `{new.paths.root}` cannot be taken back from job `{old.paths.root}`")
    if not given.latest.section(DEPLOY).given_up:
        _append(old, given, {"gives up for": new.paths.root}, _having({DEPLOY: DeploySection(given_up=True)}))
    line = view.latest.section(REPLAY).line
    sections: SectionValues = {DEPLOY: DeploySection(), SHADOW: ShadowSection(), REPLAY: ReplaySection(line=line)}
    return _append(new, view, {"takes the charge back from": old.paths.root}, _having(sections))


def without_stores(job: FoundJob, view: LogView, stores: Set[str]) -> CheckpointRecord:
    """Append a record like the last one, without some stores."""
    base = _last(view)
    content = _content(job, base)
    kept = {
        task: {
            backend: {store: marker for store, marker in own.items() if store not in stores}
            for backend, own in markers.items()
        }
        for task, markers in content.markers.items()
    }
    left = {name: each for name, each in base.stores.items() if name not in stores}
    changes = {"leaves behind": listed(sorted(stores))}
    return _append(job, view, changes, lambda record: replace(record, stores=left), replace(content, markers=kept))


def _append(
    job: FoundJob,
    view: LogView,
    noted: Mapping[str, str],
    changed: Callable[[CheckpointRecord], CheckpointRecord],
    content: edit.CheckpointContent | None = None,
) -> CheckpointRecord:
    """Append a record like the last one, with some changes.

    Args:
        view: the log that all was decided on.
        noted: for the audit log.
        changed: from the record, with its place in the log, to the changed one.
        content: that of the record; by default that of the last one.
    """
    base = _last(view)
    late = f"nothing was changed: another process wrote a checkpoint of job `{job.paths.root}` meanwhile"
    with (
        audited(job, "deploy", dict(noted)) as change,
        next_checkpoint(job, "deploy", view, late, handed=True) as following,
    ):
        record = changed(following.record(base, content or _content(job, base)))
        following.append(record)
        change.changes |= {"checkpoint": f"{base.id} -> {record.id}"}
    return record


def _having(sections: SectionValues) -> Callable[[CheckpointRecord], CheckpointRecord]:
    return lambda record: replace(record, sections=record.sections.having(sections))


def _last(view: LogView) -> CheckpointRecord:
    assert view.latest is not None  # noqa: S101 - asked before
    return view.latest


def _content(job: FoundJob, base: CheckpointRecord) -> edit.CheckpointContent:
    return edit.content_of(base, lambda task: job.config.changelog_partitions(base.stores, task))


def refuse_to_hand_over(root: str, base: CheckpointRecord) -> None:
    """Raise IncompatibleError if a job, whose last checkpoint this is, cannot hand over."""
    if base.section(SHADOW).held:
        raise IncompatibleError(f"job `{root}` is a shadow, whose output was held back: nobody can take over from it")
    if base.closing is not None or base.drained_operators:
        raise IncompatibleError(
            f"job `{root}` has {'drained' if base.closing != 'end-of-stream' else 'come to the end of its inputs'}: "
            "nothing waits in it any more, and the next start may be of a changed program. Start that one in its place"
        )
    if base.section(QUERY).offered is not None:
        raise IncompatibleError(f"job `{root}` runs inside a streaming query, which chooses its batches")
    if base.quiet_until:
        raise IncompatibleError(
            f"job `{root}` sends no output yet, because it reads again what it has sent before: wait until it does"
        )
    if unread := [f"`{stream}`" for stream, own in base.section(STREAMS).streams.items() if own.left()]:
        raise IncompatibleError(f"the durable stream {listed(unread)} has messages that job `{root}` has not read")


def refuse_held_changelogs(job: FoundJob, base: CheckpointRecord) -> None:
    """Raise IncompatibleError if a job that holds back its changelogs has a store there alone."""
    if held := only_in_changelogs(base, lambda task: job.config.changelog_partitions(base.stores, task)):
        raise IncompatibleError(
            f"job `{job.paths.root}` has store {listed([f'`{store}`' for store in held])} in its changelog alone, and "
            "a changelog that is held back cannot be taken over: add another backend to `stores.backup.factories` of "
            "this job, and give the command again"
        )


def _refuse_unpublished(job: FoundJob, view: LogView) -> None:
    """Raise NotYetError if readers do not see all exactly-once output of the last checkpoint: the job alone can
    publish it."""
    uid = known_uid(job.objects, job.paths)
    owed = own_debt(owed_of(view), uid or "", job.paths)
    marks = read_marks(owed.unpublished, publisher_name(owed, uid or "", job.paths), job.config)
    for output in outbox_outputs(owed.unpublished, marks):
        if output.published != output.messages:
            left = output.messages - (output.published or 0)
            raise NotYetError(
                f"job `{job.paths.root}` has not published {counted(left, 'message')} of its last checkpoint to "
                f"`{output.output}`, or it is not known: start it once, and it publishes them"
            )
