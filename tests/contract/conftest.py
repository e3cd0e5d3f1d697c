"""The waits that all contracts have in common here, and a server for those of object stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.state.backends import base_backup
from penstock.testing import state_backend_contract
from tests.support.stores.s3 import S3, s3_server


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload waits less for a base, and a slow object store is slower than that."""
    monkeypatch.setattr(base_backup, "SMALL_BASE_SECONDS", 0.1)
    monkeypatch.setattr(state_backend_contract, "_SLOW_S", 0.4)


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3]:
    """One server for all tests of this process."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(running_s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A server behind a healthy line. Stores that are opened find it."""
    for name, value in running_s3.environment.items():
        monkeypatch.setenv(name, value)
    yield running_s3
    running_s3.line.restore()
