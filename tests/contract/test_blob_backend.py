"""The blob backend keeps the contract of every state backend."""

from __future__ import annotations

import pytest

from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.blob import BlobFactory
from penstock.testing.state_backend_contract import StateBackendContract


@pytest.mark.few(1)
class TestBlob(StateBackendContract):
    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        return BlobFactory()
