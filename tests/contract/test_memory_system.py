"""The memory system keeps the contract of every system."""

from __future__ import annotations

import pickle
import threading

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.base import System
from penstock.system.memory import MemorySystem
from penstock.testing.system_contract import STREAM, SystemContract, append, read, records, ssp


class TestMemorySystem(SystemContract):
    @pytest.fixture
    def system(self) -> System:
        return MemorySystem("memory")

    def truncate(self, system: System, ssp: SystemStreamPartition, before: int) -> None:
        assert isinstance(system, MemorySystem)
        system.truncate(ssp, before)


def test_threads_append_at_once() -> None:
    system = MemorySystem()
    system.admin().create_stream(STREAM, 1)
    threads = [
        threading.Thread(target=lambda: [append(system, ssp(system, 0), records(0, 7)) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(system, ssp(system, 0), 0, 4 * 50 * 7)
    assert [message[2] for message in found] == [key for _, key, _, *_ in records(0, 7)] * 200


def test_it_is_not_copied_to_another_process() -> None:
    with pytest.raises(ConfigError, match="lives in one process"):
        pickle.dumps(MemorySystem())


def test_a_bad_name() -> None:
    with pytest.raises(ConfigError):
        MemorySystem("a.b")
