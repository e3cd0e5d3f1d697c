"""`penstock stream list` and `penstock stream delete`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.admin.jobs import load_without_job, open_all_jobs
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream
from penstock.cli.shared.confirm import Yes, confirm
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_json, print_table
from penstock.cli.stream.names import StreamName, no_stream, open_stream
from penstock.config.model import DEFAULT_SYSTEM
from penstock.errors import ConfigError, NotFoundError
from penstock.system.registry import open_system
from penstock.wording import counted, listed


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream of a system. `owner` alone writes it: the changelog of a store has one."""

    stream: str
    partitions: int
    messages: int | None
    owner: str | None
    retention_ms: int | None
    retention_bytes: int | None

    @property
    def retention(self) -> StreamRetention:
        """How long the stream keeps its messages."""
        return StreamRetention(self.retention_ms, self.retention_bytes)


def list_streams(
    system: Annotated[
        str, typer.Argument(metavar="[SYSTEM]", help="The system whose streams are listed.")
    ] = DEFAULT_SYSTEM,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the streams of a system."""
    opened = open_system(load_without_job(config, assignments).system(system))
    admin, found = opened.admin(), []
    try:
        for name in admin.streams():
            try:
                ends, owner, retention = admin.offsets(name), admin.owner(name), admin.retention(name)
            except NotFoundError:
                continue  # deleted meanwhile
            messages = opened.messages_in(ends.values())
            age, size = retention.max_age_ms, retention.max_bytes
            found.append(ListedStream(f"{system}.{name}", len(ends), messages, owner, age, size))
    finally:
        admin.close()
    if as_json:
        print_json(found)
        return
    rows = [(each.stream, each.partitions, each.messages, each.retention, each.owner) for each in found]
    columns = ("stream", "partitions", "messages", "retention", "owner")
    print_table(f"Streams of {system}", columns, rows, right="partitions messages", first_to_go="owner,retention")


def delete_stream(
    name: StreamName,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Delete it although a job has a position in it.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Delete a stream and all its messages.

    It is refused if the last checkpoint of a job under `job.root` has a position in it, or if it is the changelog of a
    store of such a job. Jobs that write to it, or are elsewhere, are not looked for.
    """
    system, stream = open_stream(name, config, assignments)
    admin = system.admin()
    try:
        try:
            ends = admin.offsets(stream.stream)
        except NotFoundError:
            raise no_stream(stream) from None
        if not force:
            readers, owner = _users(stream, admin.owner(stream.stream), config, assignments)
            if readers or owner is not None:
                raise ConfigError(_used(stream, readers, owner))
        messages = system.messages_in(ends.values())
        size = [counted(len(ends), "partition"), *([] if messages is None else [counted(messages, "message")])]
        confirm(f"Delete stream `{stream}` with {' and '.join(size)}?", yes=yes)
        admin.delete_stream(stream.stream)
    finally:
        admin.close()
    if as_json:
        print_json({"stream": str(stream), "deleted": True, "messages": messages})
    else:
        typer.echo(f"deleted `{stream}`: {', '.join(size)}")


def _used(stream: SystemStream, readers: list[str], owner: str | None) -> str:
    uses = []
    if readers:
        uses.append(f"is read by {'job' if len(readers) == 1 else 'jobs'} {listed(readers)}")
    if owner is not None:
        uses.append(f"is the changelog of {owner}")
    first = "the job" if len(readers) < 2 else "the jobs"
    return (
        f"stream `{stream}` {listed(uses)}. Delete {first} first (`penstock job delete`), or add --force: {first} can "
        "then not continue"
    )


def _users(
    stream: SystemStream, owner: str | None, config: Path | None, assignments: list[str] | None
) -> tuple[list[str], str | None]:
    """Who still needs the stream: the names of the jobs whose last checkpoint has a position in it, and its owner. If
    the owner's job is gone, the readers are also jobs made of copies of it, whose state may be in the stream."""
    from penstock.admin.stream.changelogs import is_restored_from
    from penstock.checkpoint.log import CheckpointLog
    from penstock.metadata.identity import known_uid
    from penstock.state.backends.changelog_stream.owner import owner_uid

    with open_all_jobs(config, assignments) as jobs:
        latest = {job.paths.root: CheckpointLog(job.objects, job.paths).read("report").latest for job in jobs}
        uids = {known_uid(job.objects, job.paths) for job in jobs}
    records = [(name, record) for name, record in latest.items() if record is not None]
    readers = [
        name
        for name, record in records
        if stream in {ssp.system_stream for own in record.next_offsets.values() for ssp in own}
    ]
    uid = None if owner is None else owner_uid(owner)
    if uid is None or uid in uids:
        return readers, owner
    root = load_without_job(config, assignments).job.root
    say(f"`{stream}` is the changelog of {owner}, which is gone: no job in job.root {root} has this uid")
    copies = [name for name, record in records if name not in readers and is_restored_from(stream, record)]
    return [*readers, *copies], None
