"""A question before something is deleted."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.shared.errors import say
from penstock.errors import ConfigError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without a question.")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless the answer was given with the call.

    Raises:
        ConfigError: there is nobody to ask.
        typer.Exit: the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("nothing was deleted: there is no terminal to ask on. --yes does it without a question")
    if not typer.confirm(question, err=True):
        say("nothing was deleted")
        raise typer.Exit(1)
