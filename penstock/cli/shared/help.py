"""How commands and their options are shown by `--help`."""

from __future__ import annotations

import inspect
from typing import Any

import typer


def tidy_help(command: Any) -> None:
    """Prepare the help of a command, or of a group with its commands, for any width of the terminal.

    A paragraph is one line, which the terminal breaks; otherwise the breaks of its docstring stay where they are. An
    option that takes no value shows no type.

    Args:
        command: the command, which is changed.
    """
    if command.help:
        command.help = _joined(command.help)
    for param in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    for each in getattr(command, "commands", {}).values():
        tidy_help(each)


def _joined(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))
