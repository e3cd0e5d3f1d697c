"""The changelog files backend keeps the contract of every state backend, however often it makes snapshots."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.testing.state_backend_contract import StateBackendContract


class TestChangelogFiles(StateBackendContract):
    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        return ChangelogFilesFactory()


class TestWithSnapshots(TestChangelogFiles):
    """After every commit or every other one, as the jitter has it."""

    @pytest.fixture
    def overrides(self) -> Mapping[str, object]:
        return {"state.snapshot.interval.commits": 2}


class TestSnapshotsOnly(TestChangelogFiles):
    """Each commit that changes a store makes a snapshot, and no delta."""

    @pytest.fixture
    def overrides(self) -> Mapping[str, object]:
        return {"state.changelog.enabled": False}
