"""The file with the address of a driver's dashboard."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.dashboard.access import AddressFile
from penstock.errors import ConfigError

pytestmark = pytest.mark.attack


def test_only_the_user_can_read_the_address_whatever_the_umask_and_what_was_there(tmp_path: Path) -> None:
    place, victim = tmp_path / "logs" / "dashboard.address", tmp_path / "victim"
    victim.write_text("kept")
    place.parent.mkdir()
    place.symlink_to(victim)
    before = os.umask(0)
    try:
        made = AddressFile(place, "http://127.0.0.1:1/#token=a")
    finally:
        os.umask(before)
    assert (place.read_text(), place.is_symlink()) == ("http://127.0.0.1:1/#token=a\n", False)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert victim.read_text() == "kept"
    assert list(place.parent.iterdir()) == [place]
    made.remove()
    assert not place.exists()


def test_the_file_of_a_later_dashboard_stays(tmp_path: Path) -> None:
    place = tmp_path / "dashboard.address"
    first, second = AddressFile(place, "first"), AddressFile(place, "second")
    first.remove()
    assert place.read_text() == "second\n"
    second.remove()
    second.remove()
    assert not place.exists()


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot be written to .*logs/dashboard\.address"):
        AddressFile(tmp_path / "logs" / "dashboard.address", "address")
