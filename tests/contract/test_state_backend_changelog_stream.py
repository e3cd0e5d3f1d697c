"""The changelog stream backend keeps the contract of every state backend, on every system that can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.changelog_stream.factory import ChangelogStreamFactory
from penstock.system.base import System
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from penstock.testing.state_backend_contract import BackendHarness, StateBackendContract
from penstock.testing.system_contract import read_compacted


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
