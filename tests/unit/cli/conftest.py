"""A home of its own for a test of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tools.cli import own_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_home(tmp_path, monkeypatch)
