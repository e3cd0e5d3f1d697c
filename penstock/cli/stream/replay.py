"""`penstock stream replay`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.stream.names import open_stream
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_json
from penstock.cli.stream.options import StreamName
from penstock.errors import IncompatibleError
from penstock.wording import counted


def replay(
    name: StreamName,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="STREAM", help="Put them into this stream, not into the inputs that they came from."
        ),
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back to the input that they came from, each into its partition.

    Every message is put back once, even if the command is run again or was killed. Dead letters stay where they are.
    The command fails if some cannot be put back, such as timers that failed; all others are.
    """
    from penstock.admin.stream.replay import replay as put_back

    dead = open_stream(name, config, assignments)
    done = put_back(dead, None if to is None else open_stream(to, config, assignments))
    if as_json:
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
