"""Shared fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.containers import ContainerProcess


@pytest.fixture
def own_container(tmp_path: Path) -> Iterator[ContainerProcess]:
    """One for a single test, which may kill it, or wrap faults around what its process has loaded."""
    container = ContainerProcess(tmp_path)
    yield container
    container.kill()


@pytest.fixture
def container(own_container: ContainerProcess) -> ContainerProcess:
    return own_container


@pytest.fixture(scope="module")
def shared_container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerProcess]:
    """One for all tests of a module. Each has its own job, and leaves the container alive."""
    container = ContainerProcess(tmp_path_factory.mktemp("container"))
    yield container
    container.kill()
