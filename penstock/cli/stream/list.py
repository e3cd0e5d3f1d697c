"""`penstock stream list`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.stream.streams import streams
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_json, print_table
from penstock.config.model import DEFAULT_SYSTEM


def list_streams(
    system: Annotated[
        str, typer.Argument(metavar="SYSTEM", help="The system whose streams are listed.")
    ] = DEFAULT_SYSTEM,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the streams of a system."""
    found = streams(system, config, assignments)
    if as_json:
        print_json(found)
        return
    rows = [(each.stream, each.partitions, each.messages, each.retention, each.owner) for each in found]
    columns = ("stream", "partitions", "messages", "retention", "owner")
    print_table(f"Streams of {system}", columns, rows, right="partitions messages", first_to_go="owner,retention")
