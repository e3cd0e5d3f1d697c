"""`penstock job`: what is done to a job as a whole."""

from __future__ import annotations

import typer

from penstock.cli.job import adopt, delete, sign

app = typer.Typer(help="Delete a job, adopt a copy of one, or sign its objects.", no_args_is_help=True)
app.command("delete")(delete.delete)
app.command("adopt")(adopt.adopt)
app.command("sign")(sign.sign)
