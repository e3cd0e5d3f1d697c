"""`penstock job`: what is done to a job as a whole."""

from __future__ import annotations

import typer

from penstock.cli.job import adopt, delete

app = typer.Typer(help="Delete a job, or adopt a copy of one.", no_args_is_help=True)
app.command("delete")(delete.delete)
app.command("adopt")(adopt.adopt)
