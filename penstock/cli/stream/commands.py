"""`penstock stream`: streams without a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_facts, print_json, print_table
from penstock.cli.stream import list as stream_list
from penstock.cli.stream import retain as stream_retain
from penstock.cli.stream import tail
from penstock.cli.stream.names import StreamName, open_stream
from penstock.cli.stream.retain import RetentionAge, RetentionBytes, retention_of
from penstock.system.base import System
from penstock.wording import counted

app = typer.Typer(help="Create, fill, look at, limit and delete streams.", no_args_is_help=True)
app.command("tail")(tail.tail)
app.command("list")(stream_list.list_streams)
app.command("delete")(stream_list.delete_stream)
app.command("retain")(stream_retain.retain)


class FileFormat(StrEnum):
    """What a file to publish may hold."""

    JSONL = "jsonl"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The ends of a partition."""

    partition: int
    oldest: int
    newest: int | None
    upcoming: int
    messages: int | None
    """None where offsets have gaps."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream as `describe` shows it."""

    stream: str
    partition_count: int
    messages: int | None
    retention_ms: int | None
    retention_bytes: int | None
    partitions: tuple[PartitionFacts, ...]

    @property
    def retention(self) -> StreamRetention:
        """How long the stream keeps its messages."""
        return StreamRetention(self.retention_ms, self.retention_bytes)


@app.command("create")
def create(
    name: StreamName,
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="How many partitions.", show_default=False)],
    age: RetentionAge = None,
    size: RetentionBytes = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Create a stream. Nothing happens if it is there with as many partitions.

    With --retention or --retention-bytes, a stream that is there must have exactly these limits.
    """
    retention = None if age is None and size is None else retention_of(age, size, StreamRetention())
    system, stream = open_stream(name, config, assignments)
    admin = system.admin()
    try:
        made = admin.create_stream(stream.stream, partitions, retention)
    finally:
        admin.close()
    size = counted(partitions, "partition")
    typer.echo(f"created `{stream}` with {size}" if made else f"`{stream}` exists with {size}")


@app.command("publish")
def publish(
    name: StreamName,
    file: Annotated[
        str,
        typer.Option(
            "--file",
            metavar="FILE",
            help="JSON lines or CSV, also .gz or .zip; - for standard input.",
            show_default=False,
        ),
    ],
    key: Annotated[str | None, typer.Option("--key", metavar="FIELD", help="The field that holds the key.")] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", metavar="FIELD", help="The field that holds the time: epoch milliseconds or ISO 8601."
        ),
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="CSV: numbers become numbers, empty fields null.")] = False,
    form: Annotated[
        FileFormat | None, typer.Option("--format", help="The file's format, if its name does not tell.")
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Publish every record of a file, in order within each partition."""
    from penstock.admin.stream.publish import PublishOptions
    from penstock.cli.stream.publish_view import publish_with_progress

    system, stream = open_stream(name, config, assignments)
    options = PublishOptions(
        format=None if form is None else form.value, key_field=key, timestamp_field=timestamp, infer=infer
    )
    typer.echo(publish_with_progress(system, stream, file, options))


@app.command("describe")
def describe(
    name: StreamName, config: ConfigFile = None, assignments: Assignments = None, as_json: AsJson = False
) -> None:
    """Show the partitions of a stream and the offsets they hold."""
    system, stream = open_stream(name, config, assignments)
    facts = stream_facts(system, stream)
    if as_json:
        print_json(facts)
        return
    print_facts(
        [
            ("stream", facts.stream),
            ("partitions", facts.partition_count),
            ("messages", facts.messages),
            ("retention", facts.retention),
        ]
    )
    rows = ((p.partition, p.oldest, p.newest, p.upcoming, p.messages) for p in facts.partitions)
    columns = ("partition", "oldest", "newest", "upcoming", "messages")
    print_table("", columns, rows, right=" ".join(columns))


def stream_facts(system: System, stream: SystemStream) -> StreamFacts:
    """Look at a stream. Raises NotFoundError if there is none."""
    admin = system.admin()
    try:
        ends = admin.offsets(stream.stream)
        retention = admin.retention(stream.stream)
    finally:
        admin.close()
    partitions = tuple(
        PartitionFacts(number, end.oldest, end.newest, end.upcoming, system.messages_in([end]))
        for number, end in sorted(ends.items())
    )
    messages = system.messages_in(ends.values())
    age, size = retention.max_age_ms, retention.max_bytes
    return StreamFacts(str(stream), len(partitions), messages, age, size, partitions)
