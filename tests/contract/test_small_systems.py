"""The memory system, and the system in a single file that docs/systems.md shows, keep the contract of every system."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.folder_system import FolderSystem
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.base import System
from penstock.system.memory import MemorySystem
from penstock.system.registry import open_system
from penstock.testing.system_contract import STREAM, SystemContract, append, read, read_all, records, ssp
from tests.support.tools import contracts
from tests.support.tools.configs import load


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


@pytest.mark.quick(*contracts.SYSTEM)
class TestFolderSystem(SystemContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> System:
        return FolderSystem("folder", tmp_path / "streams")


def test_what_an_append_left_that_was_cut_off_is_not_there(tmp_path: Path) -> None:
    system = FolderSystem("folder", tmp_path)
    system.admin().create_stream(STREAM, 1)
    append(system, ssp(system, 0), records(0, 2))
    with (tmp_path / STREAM / "0.jsonl").open("ab") as file:
        file.write(b'[1002, null, "dmFs\n[100')
    assert [message[1:] for message in read_all(system, ssp(system, 0))] == records(0, 2)
    append(system, ssp(system, 0), records(2, 1))
    assert [message[1:] for message in read_all(system, ssp(system, 0))] == records(0, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "`systems.far.folder` is missing"),
        ({"folder": "/x", "foldr": "/x"}, r"unknown options: `systems\.far\.foldr`"),
    ],
)
def test_options_that_are_missing_or_unknown(options: Mapping[str, str], said: str) -> None:
    given = [f"systems.far.{key}={value}" for key, value in options.items()]
    config = load("systems.far.samza.factory=examples.folder_system:FolderSystem", *given)
    with pytest.raises(ConfigError, match=said):
        open_system(config.system("far"))


def test_the_documentation_shows_the_file_that_is_tested() -> None:
    root = Path(__file__).parents[2]
    assert (root / "examples/folder_system.py").read_text() in (root / "docs/systems.md").read_text()
