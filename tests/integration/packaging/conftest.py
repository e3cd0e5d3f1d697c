"""The wheel of the working tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tools import wheels


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, which is beside it."""
    return wheels.build(tmp_path_factory.mktemp("wheel"))
