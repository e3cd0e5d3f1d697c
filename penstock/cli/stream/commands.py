"""`penstock stream`: streams without a job."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.admin.stream.names import open_stream
from penstock.admin.stream.streams import create_stream, describe_stream
from penstock.api.retention import StreamRetention
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_facts, print_json, print_table
from penstock.cli.stream import delete as stream_delete
from penstock.cli.stream import end as stream_end
from penstock.cli.stream import list as stream_list
from penstock.cli.stream import replay as stream_replay
from penstock.cli.stream import retain as stream_retain
from penstock.cli.stream import tail
from penstock.cli.stream.options import RetentionAge, RetentionBytes, StreamName, retention_of
from penstock.wording import counted

app = typer.Typer(help="Create, publish to, read, replay, limit, end and delete streams.", no_args_is_help=True)
app.command("tail")(tail.tail)
app.command("list")(stream_list.list_streams)
app.command("delete")(stream_delete.delete_stream)
app.command("retain")(stream_retain.retain)
app.command("end")(stream_end.end)
app.command("replay")(stream_replay.replay)


class FileFormat(StrEnum):
    """What a file to publish may hold."""

    JSONL = "jsonl"
    CSV = "csv"


@app.command("create")
def create(
    name: StreamName,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", min=1, help="The number of partitions.", show_default=False)
    ],
    age: RetentionAge = None,
    size: RetentionBytes = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Create a stream. If it exists with the same number of partitions, nothing happens.

    With --retention or --retention-bytes, an existing stream must have exactly these limits.
    """
    retention = None if age is None and size is None else retention_of(age, size, StreamRetention())
    found = open_stream(name, config, assignments)
    made = create_stream(found, partitions, retention)
    size = counted(partitions, "partition")
    typer.echo(f"created `{found.stream}` with {size}" if made else f"`{found.stream}` already exists with {size}")


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
    key: Annotated[str | None, typer.Option("--key", metavar="FIELD", help="The field with the key.")] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="FIELD",
            help="The field with the value: a string as it is, for ps.String(), anything else as JSON. Without it, the "
            "whole record.",
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", metavar="FIELD", help="The field with the time, in epoch milliseconds or ISO 8601."
        ),
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer", help="CSV: read numbers as numbers and empty fields as null.")
    ] = False,
    form: Annotated[
        FileFormat | None, typer.Option("--format", help="The file's format, if its name does not show it.")
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Publish every record of a file, in order within each partition."""
    from penstock.admin.stream.publish import PublishOptions
    from penstock.cli.stream.publish_view import publish_with_progress

    found = open_stream(name, config, assignments)
    options = PublishOptions(
        format=None if form is None else form.value,
        key_field=key,
        value_field=value,
        timestamp_field=timestamp,
        infer=infer,
    )
    typer.echo(publish_with_progress(found, file, options))


@app.command("describe")
def describe(
    name: StreamName, config: ConfigFile = None, assignments: Assignments = None, as_json: AsJson = False
) -> None:
    """Show the partitions of a stream and the offsets they hold."""
    facts = describe_stream(open_stream(name, config, assignments))
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
    rows = (
        (p.partition, p.oldest, p.newest, p.upcoming, p.messages, "yes" if p.ended else "no") for p in facts.partitions
    )
    columns = ("partition", "oldest", "newest", "upcoming", "messages")
    print_table("", (*columns, "ended"), rows, right=" ".join(columns))
