"""The jobs that use or own a stream; changes of a stream are recorded in their audit logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from penstock.admin.job.audit import audited
from penstock.admin.jobs import FoundJob, open_all_jobs
from penstock.admin.questions import Questions, answer_or_problem
from penstock.admin.stream.names import FoundStream
from penstock.admin.table import side_stores
from penstock.api.ssp import SystemStream
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.streams import CHANGELOG_STREAM, STREAMS, ChangelogStreamMarker
from penstock.checkpoint.task_versions import needed_markers
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, PenstockError
from penstock.job.identity import is_owned_by, known_uid, owner_uid
from penstock.system.registry import open_system

logger = logging.getLogger(__name__)


@contextmanager
def audited_stream(
    streams: Sequence[FoundStream], action: str, changes: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """As `audited`, in the log of each job under `job.root` that uses one of the streams, or that cannot be read. If
    there is none, nothing is recorded. Yields further changes, which are written with the outcome.

    Raises:
        PenstockError: the jobs could not be found, or a record could not be written. The block has not begun.
    """
    if not streams:
        yield {}
        return
    uids = [_owner_uid(each) for each in streams]
    sources = streams[0].sources
    with open_all_jobs(sources.file, sources.assignments, overrides=sources.overrides) as jobs, ExitStack() as stack:
        under_way, more = [], dict[str, str]()
        for job in jobs:
            used = [str(found.stream) for found, uid in zip(streams, uids, strict=True) if _may_use(job, found, uid)]
            if used:
                entry = audited(job, action, {"stream": ", ".join(used), **(changes or {})})
                under_way.append(stack.enter_context(entry))
        yield more
        for change in under_way:
            change.changes |= more


def is_position(stream: SystemStream, record: CheckpointRecord) -> bool:
    """True if a checkpoint has a position in the stream."""
    read = {ssp.system_stream for own in record.next_offsets.values() for ssp in own}
    return stream in read or stream in record.section(STREAMS).streams


def is_side_input(stream: SystemStream, job: FoundJob) -> bool:
    """True if the last run filled a store from the stream."""
    return any(str(stream) in each.side_inputs for each in side_stores(job))


def _may_use(job: FoundJob, found: FoundStream, owner: str | None) -> bool:
    try:
        if owner is not None and known_uid(job.objects, job.paths) == owner:
            return True
        record = job.log.read("report").latest
        used = record is not None and (is_position(found.stream, record) or is_restored_from(found.stream, record))
        return used or is_side_input(found.stream, job)
    except (CorruptError, IncompatibleError):
        return True


def _owner_uid(found: FoundStream) -> str | None:
    with closing(found.system.admin()) as admin:
        try:
            owner = admin.owner(found.stream.stream)
        except NotFoundError:
            return None  # the change itself says so
    return None if owner is None else owner_uid(owner)


def changelogs_of(found: FoundJob, uid: str) -> tuple[str, ...]:
    """The streams that the job with this uid owns, in every system that records owners and can be reached."""
    questions, streams = Questions(within_s=None), list[str]()
    answers = {name: questions.put(name, partial(_owned, found, name, uid)) for name in found.config.system_names}
    questions.await_answers()
    for name, answer in answers.items():
        owned = answer_or_problem(answer)
        if isinstance(owned, PenstockError):
            logger.info("system %s was not searched for the job's changelog streams: %s", name, owned)
        else:
            streams += owned
    return tuple(streams)


def is_restored_from(stream: SystemStream, record: CheckpointRecord) -> bool:
    """True if a store's state at the checkpoint is in the stream."""
    streamed = (needed_markers(record, task, {}).get(CHANGELOG_STREAM, {}) for task in record.tasks)
    texts = (text for stores in streamed for own in stores.values() for text in own)
    return any(ChangelogStreamMarker.parse(text).ssp.system_stream == stream for text in texts)


def _owned(found: FoundJob, name: str, uid: str) -> list[str]:
    system = open_system(found.config.system(name))
    if not system.keeps_owners:
        return []
    with closing(system.admin()) as admin:
        owners = admin.owners()
    return [f"{name}.{stream}" for stream, owner in sorted(owners.items()) if is_owned_by(owner, found.paths.root, uid)]
