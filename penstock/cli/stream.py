"""`penstock stream`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.admin.stream.found import Message, StreamTail
from penstock.admin.stream.streams import (
    create_stream,
    describe_stream,
    end_stream,
    existing_stream,
    refuse_used,
    set_retention,
    stream_retention,
    stream_use,
    streams,
)
from penstock.admin.stream.streams import delete_stream as delete
from penstock.api.intermediate import MessageType
from penstock.api.retention import LEAST_RETENTION_BYTES, StreamRetention
from penstock.base.documents import text_or_hex
from penstock.base.wording import counted, escaped, printable, size_text, utc_text
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call, JsonCall, StreamName, Yes, command, confirm
from penstock.cli.shared.output import print_json, show, stderr_console
from penstock.config.kinds import ByteSize, Millis, Number, RefusedError
from penstock.config.settings import DEFAULT_SYSTEM
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.facts import Facts, FactTable
from penstock.system.contract.messages import unreadable_row

if TYPE_CHECKING:
    from penstock.admin.stream.found import FoundStream
    from penstock.admin.stream.publish import Published, PublishOptions


_LOG_EVERY_S = 5.0
_LOOK_AGAIN_S = 0.5
_PLAIN_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class FileFormat(StrEnum):
    """The formats of a file to publish."""

    JSONL = "jsonl"
    CSV = "csv"


def publish(
    name: StreamName,
    file: Annotated[str, typer.Option("--file", metavar="FILE")],
    key: Annotated[str | None, typer.Option("--key", metavar="FIELD")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="FIELD")] = None,
    timestamp: Annotated[str | None, typer.Option("--timestamp", metavar="FIELD")] = None,
    headers: Annotated[str | None, typer.Option("--headers", metavar="FIELD")] = None,
    infer: Annotated[bool, typer.Option("--infer")] = False,
    form: Annotated[FileFormat | None, typer.Option("--format")] = None,
    *,
    call: Call,
) -> None:
    """Publish every record of a file, in order within each partition.

    Args:
        file: JSON lines or CSV, also .gz or .zip; - for standard input.
        key: The field with the key.
        value: The field with the value: a string as it is, for ps.String(), anything else as JSON. Without it, the
            whole record.
        timestamp: The field with the time, in epoch milliseconds or ISO 8601.
        headers: The field with the headers: an object from name to text or null.
        infer: CSV: read numbers as numbers and empty fields as null.
        form: The file's format, if its name does not show it.
    """
    from penstock.admin.stream.publish import PublishOptions

    found = call.stream(name)
    options = PublishOptions(
        format=None if form is None else form.value,
        key_field=key,
        value_field=value,
        timestamp_field=timestamp,
        headers_field=headers,
        infer=infer,
    )
    typer.echo(_publish(found, file, options))


class _Rate:
    """The count and speed of publishing, for people."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def text(self, messages: int, size: int) -> str:
        rate = messages / max(time.monotonic() - self._began, 0.001)
        return f"{counted(messages, 'message')}, {size_text(size)}, {rate:,.0f}/s"


def _publish(found: FoundStream, file: str, options: PublishOptions) -> str:
    """Publish the file, and show the progress on standard error. Returns a sentence with the result."""
    rate = _Rate()
    console = stderr_console()
    if console.is_terminal:
        done = _on_terminal(found, file, options, rate)
    else:
        done = _with_log_lines(found, file, options, rate)
    return f"published to `{found.stream}`: {rate.text(done.messages, done.bytes)}"


def _on_terminal(found: FoundStream, file: str, options: PublishOptions, rate: _Rate) -> Published:
    from penstock.admin.stream.publish import publish

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as bar:
        shown = bar.add_task(f"publishing to {found.stream}")

        def progress(messages: int, size: int) -> None:
            bar.update(shown, description=f"publishing to {found.stream}: {rate.text(messages, size)}")

        return publish(found.system, found.stream.stream, file, options, progress)


def _with_log_lines(found: FoundStream, file: str, options: PublishOptions, rate: _Rate) -> Published:
    from penstock.admin.stream.publish import publish

    told = time.monotonic()

    def progress(messages: int, size: int) -> None:
        nonlocal told
        if time.monotonic() - told >= _LOG_EVERY_S:
            told = time.monotonic()
            say(f"publishing to {found.stream}: {rate.text(messages, size)}")

    return publish(found.system, found.stream.stream, file, options, progress)


def tail(
    name: StreamName,
    partition: Annotated[int | None, typer.Option("--partition", metavar="N", min=0)] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning")] = False,
    count: Annotated[int | None, typer.Option("-n", metavar="N", min=0)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
    offset: Annotated[str | None, typer.Option("--offset", metavar="OFFSET")] = None,
    *,
    call: JsonCall,
) -> None:
    """Show the messages of a stream by their timestamps, those of each partition in their order.

    With --from-beginning and -n, the command ends after that many messages, even with --follow. Without
    --from-beginning, -n counts only messages that exist already. --follow waits for a stream that does not exist. In an
    intermediate stream, values are shown without their first byte, and control messages with their kind: WATERMARK,
    END_OF_STREAM or DRAIN. Headers follow the value.

    Args:
        partition: Only this partition.
        from_beginning: Begin with the oldest message instead of the last ones.
        count: At most this many messages; by default 10, or all with --from-beginning.
        follow: Continue with new messages, until Ctrl-C.
        offset: Show the message at this offset, or -n from there on: an integer with --partition or, of a folder, a
            file or FILE:ROW. Its name follows the offset.
    """
    if offset is not None and (from_beginning or follow):
        raise ConfigError("--offset shows messages that exist: leave out --from-beginning and --follow")
    found = StreamTail(call.stream(name), partition, sys.stdout.flush)
    try:
        show = _json_line if call.as_json else _text_line
        typed = _is_intermediate(found, wait=follow)
        if offset is None:
            messages = found.messages(from_beginning=from_beginning, count=count, follow=follow)
        else:
            messages = found.at(offset, 1 if count is None else count)
        for message in messages:
            sys.stdout.write(show(*_typed(message)) if typed else show(message))
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        sys.stdout.flush()
        found.close()


def _is_intermediate(found: StreamTail, *, wait: bool) -> bool:
    """See `StreamTail.is_intermediate`. `wait`: until the stream exists."""
    told = False
    while True:
        try:
            return found.is_intermediate()
        except NotFoundError as error:
            if not wait:
                raise
            if not told:
                say(f"waiting for the stream: {error}")
                told = True
            time.sleep(_LOOK_AGAIN_S)


def _typed(message: Message) -> tuple[Message, MessageType | None]:
    """A message of an intermediate stream without the first byte of its value, and the kind in that byte."""
    try:
        kind = MessageType((message.value or b"\xff")[0])
    except ValueError:
        return message, None
    return replace(message, value=(message.value or b"")[1:]), kind


def _text_line(message: Message, kind: MessageType | None = None) -> str:
    where = f"{message.partition}:{message.offset}" + (f" {escaped(message.name, keep='')}" if message.name else "")
    control = f"{kind.name} " if kind else ""  # a user's message is 0
    headers = "".join(f"\t{escaped(name, keep='')}={_shown(value)}" for name, value in message.headers)
    row = unreadable_row(message.value)
    value = _shown(message.value) if row is None else f"({escaped(row.reason, keep='')}) {_shown(row.data)}"
    return f"{where}\t{utc_text(message.timestamp)}\t{_shown(message.key)}\t{control}{value}{headers}\n"


def _shown(data: bytes | None) -> str:
    if data is None:
        return "-"
    text = printable(data)
    if text is None:
        return f"0x{data.hex()}"
    return "".join(_PLAIN_CONTROLS.get(char, char) for char in text)


def _json_line(message: Message, kind: MessageType | None = None) -> str:
    """`key` and `value` are text or null; other bytes stand as `keyHex`, `valueHex`. A message of an intermediate
    stream has its `type`, one with headers has `headers`, and a row that its system could not read `unreadable`, the
    reason."""
    row = unreadable_row(message.value)
    fields: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        **({} if message.name is None else {"name": message.name}),
        "timestamp": message.timestamp,
        **text_or_hex("key", message.key),
        **text_or_hex("value", message.value if row is None else row.data),
        **({} if row is None else {"unreadable": row.reason}),
        **({} if kind is None else {"type": kind.name}),
    }
    if message.headers:
        fields["headers"] = [{"name": name, **text_or_hex("value", value)} for name, value in message.headers]
    return orjson.dumps(fields).decode() + "\n"


def replay(
    name: StreamName, to: Annotated[str | None, typer.Option("--to", metavar="STREAM")] = None, *, call: JsonCall
) -> None:
    """Put dead letters back to the input that they came from, each into its partition.

    Every message is put back once, even if the command is run again or was killed. Dead letters stay where they are.
    The command fails if some cannot be put back, such as timers that failed; all others are.

    Args:
        to: Put them into this stream, not into the inputs that they came from.
    """
    from penstock.admin.stream.replay import replay as put_back

    dead = call.stream(name)
    done = put_back(dead, None if to is None else call.stream(to))
    if call.as_json:
        print_json(done)
    else:
        for stream, count in sorted(done.messages.items()):
            typer.echo(f"put {counted(count, 'message')} of `{dead.stream}` back to `{stream}`")
        if not done.messages:
            typer.echo(f"there is nothing of `{dead.stream}` to put back")
        if done.earlier:
            say(f"note: {counted(done.earlier, 'letter')} had been handled by an earlier replay")
        if done.repeated:
            say(f"note: {counted(done.repeated, 'letter')} were left out, of messages that have another one")
    for stream in done.unmarked:
        say(f"warning: the system of `{stream}` does not keep what was put back: another replay puts it back again")
    if done.refused:
        more = "" if done.refused == len(done.reasons) else ", and others"
        raise IncompatibleError(
            f"{counted(done.refused, 'dead letter')} cannot be put back: {'; '.join(done.reasons)}{more}"
        )


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
