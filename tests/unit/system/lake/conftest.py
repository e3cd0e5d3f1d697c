"""Tests of tables."""

from __future__ import annotations

import pytest

from penstock.system.lake import log


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a table is due whenever a system without `poll_ms` is asked, however long looks take."""
    monkeypatch.setattr(log, "_SHARE", 0)
