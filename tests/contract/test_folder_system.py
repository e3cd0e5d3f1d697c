"""The system in a single file that docs/systems.md shows: the contract, what a crash leaves, and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.folder_system import FolderSystem
from penstock.errors import ConfigError
from penstock.system.base import System
from penstock.system.registry import open_system
from penstock.testing.system_contract import STREAM, SystemContract, append, read_all, records, ssp
from tests.support.tools import contracts
from tests.support.tools.configs import load


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
