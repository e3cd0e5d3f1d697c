"""Commands in this process and in processes of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app


def own_home(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a Penstock home and a working directory of its own."""
    monkeypatch.setenv("PENSTOCK_HOME", str(directory / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(directory)
    return directory / "home"


def call(*arguments: str, status: int = 0, stdin: str | bytes | None = None) -> tuple[str, str]:
    """Run a command in this process: its standard output and error."""
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == status, result.output + repr(result.exception)
    assert "Traceback" not in result.stderr or status == 1 or "could not be loaded" in result.stderr
    return result.stdout, result.stderr


def call_json(*arguments: str) -> Any:
    """Run a command with --json; nothing but the document may be on standard output."""
    return json.loads(call(*arguments, "--json")[0])


def command(*arguments: str) -> list[str]:
    """The same command for a process of its own."""
    return [sys.executable, "-m", "penstock.cli", *arguments]


def published(count: int = 20, partitions: int = 4) -> None:
    lines = "\n".join(json.dumps({"id": f"k{n}", "n": n, "at": 1000 * (n + 1)}) for n in range(count))
    Path("in.jsonl").write_text(lines)
    call("stream", "create", "flights", "--partitions", str(partitions))
    options = ("--key", "id", "--timestamp", "at")
    said = call("stream", "publish", "flights", "--file", "in.jsonl", *options)[0]
    assert f"published to `local.flights`: {count} message" in said
