"""The command line, put together (DESIGN section 11). Every command imports what it needs when it is called, so that
looking at a stream starts neither Spark nor Arrow."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import penstock
from penstock.cli import checkpoint, config, run, startpoint, state, status, stream
from penstock.cli.errors import ReportingGroup, report_unexpected
from penstock.cli.options import Debug

app = typer.Typer(
    name="penstock",
    cls=ReportingGroup,
    help="Stateful stream processing in Python on Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("status")(status.status)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(startpoint.app, name="startpoint")
app.add_typer(state.app, name="state")
app.add_typer(stream.app, name="stream")
app.add_typer(config.app, name="config")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stateful stream processing in Python on Apache Spark."""


def main() -> None:
    """The entry point. Exit status: 0 success, 2 a mistake in the call or the configuration, 1 a failure."""
    try:
        app()
    except Exception as error:
        report_unexpected(error)
        sys.exit(1)
