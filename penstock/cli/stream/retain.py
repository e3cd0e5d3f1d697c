"""`penstock stream retain`."""

from __future__ import annotations

import typer

from penstock.admin.stream.names import open_stream
from penstock.admin.stream.streams import set_retention, stream_retention
from penstock.cli.shared.confirm import Yes, confirm
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_json
from penstock.cli.stream.options import RetentionAge, RetentionBytes, StreamName, retention_of


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

    A limit that is not given stays as it is. Messages beyond the limits are deleted now and with later appends. A job
    that has not read one of them ends with an error that names its offset and the oldest one, or skips them if
    `streams.<id>.on.data.loss` is `skip`.
    """
    if age is None and size is None:
        raise typer.BadParameter("give --retention, --retention-bytes, or both")
    found = open_stream(name, config, assignments)
    before = stream_retention(found)
    after = retention_of(age, size, before)
    if after.is_limited and after != before:
        confirm(
            f"Keep the messages of stream `{found.stream}`: {after} (now: {before}), and delete the others?", yes=yes
        )
    deleted = set_retention(found, after)
    if as_json:
        facts = {"retentionMs": after.max_age_ms, "retentionBytes": after.max_bytes, "deleted": deleted}
        print_json({"stream": str(found.stream), **facts})
    else:
        typer.echo(f"`{found.stream}` keeps its messages: {after}; {deleted:,} were deleted now")
