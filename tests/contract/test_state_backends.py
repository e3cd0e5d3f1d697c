"""Every state backend keeps the contract: blob, changelog files with any number of snapshots, changelog stream."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.blob import BlobFactory
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.state.backends.changelog_stream import ChangelogStreamFactory
from penstock.system.base import System
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from penstock.testing.state_backend_contract import BackendHarness, StateBackendContract
from penstock.testing.system_contract import read_compacted


@pytest.mark.few(1)
class TestBlob(StateBackendContract):
    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        return BlobFactory()


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


@pytest.mark.few(1)
class OnASystem(StateBackendContract):
    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        return ChangelogStreamFactory()

    def written(self, harness: BackendHarness) -> object:
        admin = harness.systems["local"].admin()
        found = {}
        for stream in ("contract-1-first-changelog", "contract-1-second-changelog"):
            for partition, ends in admin.offsets(stream).items():
                ssp = SystemStreamPartition("local", stream, partition)
                found[ssp] = read_compacted(harness.systems["local"], ssp, ends.oldest, ends.upcoming)
        admin.close()
        return found


class TestOnMemory(OnASystem):
    @pytest.fixture
    def systems(self) -> Mapping[str, System]:
        return {"local": MemorySystem("local")}


class TestOnLocal(OnASystem):
    @pytest.fixture
    def systems(self, tmp_path: Path) -> Mapping[str, System]:
        return {"local": LocalSystem("local", str(tmp_path / "streams"))}
