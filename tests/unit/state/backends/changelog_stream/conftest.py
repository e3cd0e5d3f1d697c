"""A changelog stream in memory and one on disk, and a backend over each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.system.base import System
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from tests.support.stores.changelog_stream import make_harness
from tests.support.tools.fixtures import fixture_of


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    with closing(open_store(f"memory://{id(request)}-{request.node.nodeid}")) as store:
        yield store


@pytest.fixture(params=["memory", "local"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    return MemorySystem("local") if request.param == "memory" else LocalSystem("local", str(tmp_path / "streams"))


harness = fixture_of(make_harness, using=("objects", "tmp_path", "system"))
