"""Shared fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.containers import ContainerProcess


@pytest.fixture
def container(tmp_path: Path) -> Iterator[ContainerProcess]:
    """One of its own for each test: faults are wrapped around what its process has loaded."""
    container = ContainerProcess(tmp_path)
    yield container
    container.kill()
