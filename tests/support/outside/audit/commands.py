"""The commands: `penstock audit runs JOB`."""

from __future__ import annotations

from typing import Annotated

import typer

from audit.facts import board
from penstock.admin.jobs import open_job

app = typer.Typer(no_args_is_help=True)


@app.callback()
def audit() -> None:
    """Show what the audit has counted."""


@app.command()
def runs(job: str, given: Annotated[list[str] | None, typer.Option("-c", help="Set a key: key=value.")] = None) -> None:
    """Print the runs of batches that the containers of a job's last run had counted."""
    with open_job(job, assignments=given) as found:
        document = board(found.objects, found.paths).get()
        typer.echo("nothing is audited" if document is None else f"{document.runs} runs, {document.commits} commits")
