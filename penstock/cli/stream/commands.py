"""`penstock stream`; the commands that read or write messages have a separate file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from penstock.admin.stream.streams import (
    create_stream,
    describe_stream,
    end_stream,
    existing_stream,
    set_retention,
    stream_retention,
    streams,
)
from penstock.api.retention import LEAST_RETENTION_BYTES, StreamRetention
from penstock.base.wording import counted
from penstock.cli.shared.errors import say
from penstock.cli.shared.input import Yes, confirm
from penstock.cli.shared.options import Call, JsonCall, StreamName, command
from penstock.cli.shared.output import show
from penstock.cli.stream.messages import publish, replay, tail
from penstock.config.settings import DEFAULT_SYSTEM
from penstock.config.values.kinds import ByteSize, Millis, Number, RefusedError
from penstock.errors import ConfigError
from penstock.facts import Facts, FactTable

app = typer.Typer(help="Create, publish to, read, replay, limit, end and delete streams.", no_args_is_help=True)

RetentionAge = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="AGE",
        help="The time that a message is kept after it was appended, such as 7d or 12h; none: no limit.",
    ),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(
        "--retention-bytes", metavar="SIZE", help="The bytes that each partition keeps, such as 10GB; none: no limit."
    ),
]


def retention_of(age: str | None, size: str | None, before: StreamRetention) -> StreamRetention:
    """The limits that the options ask for. Raises ConfigError for a text that is none."""
    return StreamRetention(
        _limit("--retention", Millis(1), age, before.max_age_ms),
        _limit("--retention-bytes", ByteSize(LEAST_RETENTION_BYTES), size, before.max_bytes),
    )


def _limit(option: str, kind: Number, text: str | None, before: int | None) -> int | None:
    if text is None:
        return before
    if text.strip().lower() == "none":
        return None
    try:
        return kind.parse(text)
    except RefusedError as error:
        reason = f" ({error})" if str(error) else ""
        raise ConfigError(f"`{option} {text}`: expected {kind.expected}, or `none`{reason}") from None


def create(
    name: StreamName,
    partitions: Annotated[int, typer.Option("--partitions", metavar="N", min=1)],
    age: RetentionAge = None,
    size: RetentionBytes = None,
    *,
    call: Call,
) -> None:
    """Create a stream. If it exists with the same number of partitions, nothing happens.

    With --retention or --retention-bytes, an existing stream must have exactly these limits.

    Args:
        partitions: The number of partitions.
    """
    retention = None if age is None and size is None else retention_of(age, size, StreamRetention())
    found = call.stream(name)
    made = create_stream(found, partitions, retention)
    size = counted(partitions, "partition")
    typer.echo(f"created `{found.stream}` with {size}" if made else f"`{found.stream}` already exists with {size}")


def describe(name: StreamName, call: JsonCall) -> None:
    """Show the partitions of a stream and the offsets they hold."""
    call.show(describe_stream(call.stream(name)))


def list_streams(system: Annotated[str, typer.Argument(metavar="SYSTEM")] = DEFAULT_SYSTEM, *, call: JsonCall) -> None:
    """List the streams of a system.

    Args:
        system: The system whose streams are listed.
    """
    found = streams(system, call.config, call.assignments)
    call.tell(found, lambda each: show(Facts({}, (FactTable(f"Streams of {system}", each),))))


def delete_stream(
    name: StreamName, yes: Yes = False, force: Annotated[bool, typer.Option("--force")] = False, *, call: JsonCall
) -> None:
    """Delete a stream and all its messages.

    The command is refused if the last checkpoint of a job under `job.root` has a position in the stream, or if the
    stream is the changelog of such a job. It does not look for jobs that only write to the stream, or for jobs under
    other roots.

    Args:
        force: Delete it even if a job reads or owns it.
    """
    from penstock.admin.stream.streams import delete_stream as delete
    from penstock.admin.stream.streams import refuse_used, stream_use

    found = call.stream(name)
    facts = existing_stream(found)
    if not force:
        use = stream_use(found)
        if use.note is not None:
            say(use.note)
        refuse_used(found, use)
    messages = [] if facts.messages is None else [counted(facts.messages, "message")]
    size = [counted(facts.partition_count, "partition"), *messages]
    confirm(f"Delete stream `{found.stream}` with {' and '.join(size)}?", yes=yes)
    deleted = delete(found, force=True)
    call.tell(deleted, lambda _: typer.echo(f"deleted `{found.stream}`: {', '.join(size)}"))


def retain(
    name: StreamName, age: RetentionAge = None, size: RetentionBytes = None, yes: Yes = False, *, call: JsonCall
) -> None:
    """Change how long a stream keeps its messages.

    A limit that is not given stays as it is. Messages beyond the limits are deleted now and with later appends. A job
    that has not read one of them ends with an error that names its offset and the oldest one, or skips them if
    `streams.<id>.on.data.loss` is `skip`.
    """
    if age is None and size is None:
        raise typer.BadParameter("give --retention, --retention-bytes, or both")
    found = call.stream(name)
    before = stream_retention(found)
    after = retention_of(age, size, before)
    if after.is_limited and after != before:
        confirm(
            f"Keep the messages of stream `{found.stream}`: {after} (now: {before}), and delete the others?", yes=yes
        )
    deleted = set_retention(found, after)
    facts = {"retentionMs": after.max_age_ms, "retentionBytes": after.max_bytes, "deleted": deleted}
    text = f"`{found.stream}` keeps its messages: {after}; {deleted:,} were deleted now"
    call.tell({"stream": str(found.stream), **facts}, lambda _: typer.echo(text))


def end(name: StreamName, call: Call) -> None:
    """Mark the end of a stream, after which no message follows.

    A job that has read all its inputs to such an end closes its windows and ends. A message that is published later
    reopens its partition.
    """
    found = call.stream(name)
    end_stream(found)
    typer.echo(f"`{found.stream}` has ended, until a message is published to it")


_COMMANDS: dict[str, Callable[..., None]] = {
    "tail": tail,
    "list": list_streams,
    "delete": delete_stream,
    "retain": retain,
    "end": end,
    "replay": replay,
    "create": create,
    "publish": publish,
    "describe": describe,
}
for _name, _function in _COMMANDS.items():
    command(app, _name)(_function)
