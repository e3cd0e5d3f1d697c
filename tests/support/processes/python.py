"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PENSTOCK = ("-m", "penstock.cli")


def variables(others: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of this process with these variables. Without one that is None."""
    found: dict[str, str | None] = {**os.environ, **others}
    return {name: text for name, text in found.items() if text is not None}


def run_python(
    *arguments: str,
    folder: Path | None = None,
    environ: Mapping[str, str | None] | None = None,
    given: str | None = None,
    status: int | None = 0,
    timeout_s: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, and check its exit status, unless that is None."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=variables(environ or {}), input=given, capture_output=True,
        text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done
