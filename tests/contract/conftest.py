"""Waits that all contracts have in common here."""

from __future__ import annotations

import pytest

from penstock.state.backends import base_backup
from penstock.testing import state_backend_contract


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload waits less for a base, and a slow object store is slower than that."""
    monkeypatch.setattr(base_backup, "SMALL_BASE_SECONDS", 0.1)
    monkeypatch.setattr(state_backend_contract, "_SLOW_S", 0.4)
