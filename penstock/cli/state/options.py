"""Options of the commands that read a job's state."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.state.version import FORMS

Version = Annotated[
    str, typer.Option("--version", "--checkpoint", metavar="V", help=f"Which retained version: {FORMS}.")
]
SHOWN = 20
"""Rows of a table if no limit is given."""

StoreName = Annotated[str, typer.Argument(metavar="STORE", help="The store.", show_default=False)]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Restore from this backend; by default the first that can."),
]
AppReference = Annotated[
    str | None,
    typer.Option("--app", metavar="APP", help="Take custom serdes from this `module:object` or `file.py:object`."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=0,
        help=f"At most this many entries; by default {SHOWN} in a table, all as JSON.",
        show_default=False,
    ),
]
AsHex = Annotated[bool, typer.Option("--hex", help="Keys are bytes in hexadecimal.")]
