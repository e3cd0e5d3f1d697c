"""The kept inputs of parsers, as files: those that failed once, and those that reach other code than valid bytes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.tools.places import ROOT

CORPUS = ROOT / "tests" / "support" / "parsers" / "corpus"


def folder_of(name: str) -> Path:
    """The kept inputs of a parser."""
    return CORPUS / re.sub(r"\W+", "-", name)


def kept(name: str) -> list[bytes]:
    """The kept inputs of a parser: those that failed once, and those that reach other code than the seeds."""
    folder = folder_of(name)
    return [file.read_bytes() for file in sorted(folder.iterdir())] if folder.exists() else []
