"""`penstock stream end`."""

from __future__ import annotations

import typer

from penstock.admin.stream.names import open_stream
from penstock.admin.stream.streams import end_stream
from penstock.cli.shared.options import Assignments, ConfigFile
from penstock.cli.stream.options import StreamName


def end(name: StreamName, config: ConfigFile = None, assignments: Assignments = None) -> None:
    """Mark the end of a stream, after which no message follows.

    A job that has read all its inputs to such an end closes its windows and ends. A message that is published later
    reopens its partition.
    """
    found = open_stream(name, config, assignments)
    end_stream(found)
    typer.echo(f"`{found.stream}` has ended, until a message is published to it")
