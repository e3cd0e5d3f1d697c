"""`penstock stream delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.stream.names import open_stream
from penstock.admin.stream.streams import existing_stream
from penstock.cli.shared.confirm import Yes, confirm
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_json
from penstock.cli.stream.options import StreamName
from penstock.wording import counted


def delete_stream(
    name: StreamName,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if a job reads or owns it.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Delete a stream and all its messages.

    The command is refused if the last checkpoint of a job under `job.root` has a position in the stream, or if the
    stream is the changelog of such a job. It does not look for jobs that only write to the stream, or for jobs under
    other roots.
    """
    from penstock.admin.stream.streams import delete_stream as delete
    from penstock.admin.stream.streams import refuse_used, stream_use

    found = open_stream(name, config, assignments)
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
    if as_json:
        print_json(deleted)
    else:
        typer.echo(f"deleted `{found.stream}`: {', '.join(size)}")
