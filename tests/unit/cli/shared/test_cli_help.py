"""The output of `--help` in a terminal of 80 columns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from penstock.cli.main import COMMANDS, app


def calls() -> list[tuple[str, ...]]:
    """The command line, every command, and every command of a group."""
    found: list[tuple[str, ...]] = [()]
    for name, entry in COMMANDS.items():
        own: dict[str, Any] = getattr(entry.load(name), "commands", {})
        found += [(name,), *((name, each) for each in own)]
    return found


@pytest.mark.few(25)
@pytest.mark.parametrize("call", calls(), ids=lambda call: " ".join(("penstock", *call)))
def test_the_help_fits_and_reads_well(call: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*call, "--help"], env={"COLUMNS": "80"})
    lines = [line.rstrip() for line in done.output.splitlines()]
    assert done.exit_code == 0, done.output
    assert max(cell_len(line) for line in lines) <= 80
    assert "<bool>" not in done.output, "what takes no value has no type"
    assert "[[" not in done.output, "an argument in twice the brackets"
    prose = [line.strip() for line in lines[2 : next(n for n, line in enumerate(lines) if line.startswith("╭"))]]
    for line, following in pairwise(prose):
        if line and following:
            word = following.split()[0]
            assert len(line) + 1 + len(word) > 78, f"`{line}` is broken before `{word}`, which fits"
