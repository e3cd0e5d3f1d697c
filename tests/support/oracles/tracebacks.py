"""Frames of Penstock in a traceback, wherever the repository is."""

from __future__ import annotations

import re
from pathlib import Path

import penstock

_PACKAGE = Path(penstock.__file__).parent


def frames_of_penstock(text: str) -> list[str]:
    """The places in the package that the traceback names, such as `runtime/context.py:41`."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', text)
    return [
        f"{Path(file).relative_to(_PACKAGE)}:{line}" for file, line in frames if Path(file).is_relative_to(_PACKAGE)
    ]
