"""Finds the frame of a stack that is the user's code."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

import penstock

_OURS = str(Path(penstock.__file__).parent)
_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def users_frame(frame: FrameType) -> FrameType | None:
    """The nearest frame of the user's code; None if Penstock's comes first. Libraries are neither."""
    found: FrameType | None = frame
    while found is not None:
        kind = _kind(found.f_code.co_filename)
        if kind == "user":
            return found
        if kind == "penstock":
            return None
        found = found.f_back
    return None


def place_of(frame: FrameType) -> str:
    """A frame in words."""
    return f"`{frame.f_code.co_qualname}`, line {frame.f_lineno} of {frame.f_code.co_filename}"


@cache
def _kind(filename: str) -> str:
    if filename.startswith("<frozen "):
        return "library"
    path = str(Path(filename).resolve())
    if path.startswith(_OURS):
        return "penstock"
    return "library" if path.startswith(_LIBRARIES) or "/site-packages/" in path else "user"
