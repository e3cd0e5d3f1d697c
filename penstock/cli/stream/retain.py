"""`penstock stream retain`, and the options that say how long a stream keeps its messages."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.api.retention import LEAST_RETENTION_BYTES, StreamRetention
from penstock.cli.shared.confirm import Yes, confirm
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_json
from penstock.cli.stream.names import StreamName, open_stream
from penstock.config.values import Bytes, Millis, Number, RefusedError
from penstock.errors import ConfigError

RetentionAge = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="AGE",
        help="How long a message is kept after it was appended, such as 7d or 12h; none: whatever its age.",
        show_default=False,
    ),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(
        "--retention-bytes",
        metavar="SIZE",
        help="How much each partition keeps, such as 10GB; none: any amount.",
        show_default=False,
    ),
]


def retain(
    name: StreamName,
    age: RetentionAge = None,
    size: RetentionBytes = None,
    yes: Yes = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Change how long a stream keeps its messages.

    What is not given stays as it is. Messages that are too old or too much are deleted now, and with later appends. A
    job that has not read one of them ends with an error that names its offset and the oldest one.
    """
    if age is None and size is None:
        raise typer.BadParameter("give --retention, --retention-bytes, or both")
    system, stream = open_stream(name, config, assignments)
    admin = system.admin()
    try:
        before = admin.retention(stream.stream)
        after = retention_of(age, size, before)
        if after.is_limited and after != before:
            confirm(f"Keep the messages of stream `{stream}`: {after} (now: {before}), and delete the others?", yes=yes)
        deleted = admin.set_retention(stream.stream, after)
    finally:
        admin.close()
    if as_json:
        facts = {"retentionMs": after.max_age_ms, "retentionBytes": after.max_bytes, "deleted": deleted}
        print_json({"stream": str(stream), **facts})
    else:
        typer.echo(f"`{stream}` keeps its messages: {after}; {deleted:,} were deleted now")


def retention_of(age: str | None, size: str | None, before: StreamRetention) -> StreamRetention:
    """The limits that the options ask for. Raises ConfigError for a text that is none."""
    return StreamRetention(
        _limit("--retention", Millis(1), age, before.max_age_ms),
        _limit("--retention-bytes", Bytes(LEAST_RETENTION_BYTES), size, before.max_bytes),
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
