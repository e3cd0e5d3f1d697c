"""The changelog files backend keeps the contract of every state backend."""

from __future__ import annotations

import pytest

from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.changelog_files import ChangelogFilesFactory
from penstock.testing.state_backend_contract import StateBackendContract


class TestChangelogFiles(StateBackendContract):
    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        return ChangelogFilesFactory()
