"""An extension of Griffe, which reads the docstrings: their examples are code, not text."""

from __future__ import annotations

import re
from typing import Any

import griffe

_HEADING = re.compile(r"^Example:$", re.MULTILINE)
_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.MULTILINE)


class Examples(griffe.Extension):
    """Changes docstrings to what Griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called with each object that is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = for_griffe(obj.docstring.value)


def for_griffe(text: str) -> str:
    """The docstring with `Examples` for `Example`, and with a line for each of several arguments.

    Example:
        >>> print(for_griffe("Args:" + chr(10) + "    low, high: bounds."))
        Args:
            low: bounds.
            high: bounds.
    """
    return _SEVERAL.sub(_one_by_one, _HEADING.sub("Examples:", text))


def _one_by_one(found: re.Match[str]) -> str:
    return "\n".join(f"{found[1]}{name}: {found[3]}" for name in found[2].split(", "))
