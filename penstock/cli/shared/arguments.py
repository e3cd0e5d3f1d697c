"""The library names its arguments as Python has them; what the command line prints names its options."""

from __future__ import annotations

import re

OPTIONS = {
    "app": "--app",
    "assignments": "-c",
    "clamp": "--clamp",
    "file": "--config",
    "force": "--force",
    "from_checkpoint": "--from",
    "function": "--map",
    "operator": "--operator",
    "raw": "--raw",
    "replace": "--replace",
    "reset_operators": "--reset-operator",
    "task": "--task",
    "with_state": "--with-state",
}
"""Argument -> option."""
_ARGUMENT = re.compile(rf'`({"|".join(OPTIONS)})=(?:True|\.\.\.|\[?"([^"`]*)"\]?)`')


def with_options(text: str) -> str:
    """A message of the library with options in place of arguments (`penstock.wording.argument`).

    Example:
        >>> with_options('to begin without state, give `with_state="clear"`')
        'to begin without state, give --with-state clear'
    """
    return _ARGUMENT.sub(lambda found: " ".join(filter(None, (OPTIONS[found[1]], found[2]))), text)
