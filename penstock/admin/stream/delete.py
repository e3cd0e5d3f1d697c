"""Deletes a stream that no job needs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from penstock.admin.jobs import load_without_job, open_all_jobs
from penstock.admin.stream.audited import audited_stream, is_position, is_side_input
from penstock.admin.stream.changelogs import is_restored_from
from penstock.admin.stream.names import FoundStream
from penstock.admin.stream.streams import DeletedStream, existing_stream
from penstock.api.ssp import SystemStream
from penstock.checkpoint.log import CheckpointLog
from penstock.errors import ConfigError
from penstock.job.identity import known_uid
from penstock.state.backends.changelog_stream.owner import owner_uid
from penstock.wording import flag, listed, owned_stream


@dataclass(frozen=True, slots=True)
class StreamUse:
    """The users of a stream: `readers` are the jobs whose last checkpoint has a position in it, or that have it as a
    side input; `owner` is that of a changelog. If the owner's job is gone, `note` says so, and `readers` includes jobs
    whose state may be in it. If `only_fills` is true, the stream is only a side input for all readers."""

    readers: tuple[str, ...]
    owner: str | None
    note: str | None = None
    only_fills: bool = False


def refuse_used(found: FoundStream, use: StreamUse) -> None:
    """Raise ConfigError, with who needs the stream, if anybody does."""
    if use.readers or use.owner is not None:
        raise ConfigError(_used(found.stream, use))


def delete_stream(found: FoundStream, *, force: bool = False) -> DeletedStream:
    """Delete a stream and all its messages. Jobs that only write to it, or that have another `job.root`, are not found.

    Args:
        found: the stream.
        force: delete the stream even if a job under `job.root` has a position in it, or it is a job's side input or a
            store's changelog.

    Raises:
        NotFoundError: the stream does not exist.
        ConfigError: a job needs the stream. Nothing was deleted.

    Example:
        >>> admin.delete_stream(admin.open_stream("trips"))
        Traceback (most recent call last):
        ...
        penstock.errors.ConfigError: stream `local.trips` is read by job flights-1. ...
        >>> admin.delete_stream(admin.open_stream("trips"), force=True).messages
        4
    """
    messages = existing_stream(found).messages
    if not force:
        refuse_used(found, stream_use(found))
    change = {"messages": f"{'unknown' if messages is None else messages} -> none"}
    with audited_stream([found], "stream delete", change), closing(found.system.admin()) as admin:
        admin.delete_stream(found.stream.stream)
    return DeletedStream(str(found.stream), deleted=True, messages=messages)


def stream_use(found: FoundStream) -> StreamUse:
    """The jobs under `job.root` that need a stream.

    Args:
        found: the stream.

    Raises:
        NotFoundError: the stream does not exist.

    Example:
        >>> admin.stream_use(admin.open_stream("trips")).readers
        ('flights-1',)
    """
    stream, sources = found.stream, found.sources
    with closing(found.system.admin()) as admin:
        owner = admin.owner(stream.stream)
    with open_all_jobs(sources.file, sources.assignments, overrides=sources.overrides) as jobs:
        latest = {job.paths.root: CheckpointLog(job.objects, job.paths).read("report").latest for job in jobs}
        uids = {known_uid(job.objects, job.paths) for job in jobs}
        filled = {job.paths.root for job in jobs if is_side_input(stream, job)}
    records = [(name, record) for name, record in latest.items() if record is not None]
    positions = {name for name, record in records if is_position(stream, record)}
    readers = [name for name, _ in records if name in positions or name in filled]
    uid = None if owner is None else owner_uid(owner)
    if owner is None or uid is None or uid in uids:
        return StreamUse(tuple(readers), owner, only_fills=bool(readers) and not positions)
    root = load_without_job(sources.file, sources.assignments, sources.overrides).job.root
    note = f"`{stream}` is {_of(owner)}, which is gone: no job in job.root {root} has this uid"
    copies = [name for name, record in records if name not in readers and is_restored_from(stream, record)]
    return StreamUse((*readers, *copies), None, note)


def _used(stream: SystemStream, use: StreamUse) -> str:
    readers, owner = use.readers, use.owner
    uses = []
    if use.only_fills and owner is None:
        return (
            f"stream `{stream}` is a side input of {'job' if len(readers) == 1 else 'jobs'} {listed(readers)}. To "
            f"fill it again, give {flag('force')}, and create it again at once: its stores are then filled from the "
            "new stream. Without it they cannot be updated, and the jobs cannot start"
        )
    if readers:
        uses.append(f"is read by {'job' if len(readers) == 1 else 'jobs'} {listed(readers)}")
    if owner is not None:
        uses.append(f"is {_of(owner)}")
    first = "the job" if len(readers) < 2 else "the jobs"
    return (
        f"stream `{stream}` {listed(uses)}. Delete {first} first (`penstock job delete`), or give {flag('force')}: "
        f"{first} cannot continue then"
    )


def _of(owner: str) -> str:
    what = owned_stream(owner).partition(" ")[2]
    return f"the {what} of {owner.removesuffix(f', {what}')}"
