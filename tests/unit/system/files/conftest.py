"""Tests of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.streams.folder import Room


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)
