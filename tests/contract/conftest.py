"""For tests of object stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stores.s3 import S3, s3_server


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
