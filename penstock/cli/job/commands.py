"""`penstock job`: what is done to a job as a whole."""

from __future__ import annotations

import typer

from penstock.cli.job import adopt, audit, delete, sign

app = typer.Typer(help="Delete, adopt or sign a job, or show its audit log.", no_args_is_help=True)
app.command("delete")(delete.delete)
app.command("adopt")(adopt.adopt)
app.command("sign")(sign.sign)
app.command("audit")(audit.audit)
