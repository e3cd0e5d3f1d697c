"""The changelog files backend keeps the contract of every state backend, however often it makes snapshots."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.testing.state_backend_contract import StateBackendContract


@pytest.mark.few(1)
class TestChangelogFiles(StateBackendContract):
    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        return ChangelogFilesFactory()


class TestWithSnapshots(TestChangelogFiles):
    """After every commit or every other one, as the jitter has it."""

    @pytest.fixture
    def overrides(self) -> Mapping[str, object]:
        return {"state.snapshot.interval.commits": 2}


@pytest.mark.quick(
    "test_a_copy_is_brought_from_marker_to_marker",
    "test_every_marker_rebuilds_its_own_version",
    "test_upload_again_after_a_failure_has_the_same_effect",
    "test_what_is_retained_still_restores",
)
class TestSnapshotsOnly(TestChangelogFiles):
    """Each commit that changes a store makes a snapshot, and no delta."""

    @pytest.fixture
    def overrides(self) -> Mapping[str, object]:
        return {"state.changelog.enabled": False}
