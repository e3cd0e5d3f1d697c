"""Folders of a host and of sockets: who may have one, what is left of it, and who removes it."""

from __future__ import annotations

import fcntl
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.host.process import HostFolder, make_socket_folder, remove_dead_folders


def test_one_holds_it_alone_or_several_share_it(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    assert HostFolder.lock(path) is None
    path.mkdir()
    alone = HostFolder.lock(path)
    assert alone is not None
    assert HostFolder.lock(path, shared=True) is None
    alone.release()
    shared = [HostFolder.lock(path, shared=True) for _ in range(2)]
    for folder in shared:
        assert HostFolder.lock(path) is None
        assert folder is not None
        folder.release()
    assert HostFolder.lock(path) is not None


def test_the_lock_follows_a_folder_that_is_renamed(tmp_path: Path) -> None:
    path, published = tmp_path / "made", tmp_path / "published"
    path.mkdir()
    made = HostFolder.lock(path, shared=True)
    assert made is not None
    made.path = path.rename(published)
    path.mkdir()
    assert HostFolder.lock(path) is not None
    assert HostFolder.lock(published) is None
    made.release()
    assert HostFolder.lock(published) is not None


def test_a_lock_beside_holds_while_the_content_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "below" / "folder"
    folder = HostFolder.lock_beside(path)
    assert folder is not None
    (path / "file").mkdir(parents=True)
    folder.empty()
    assert not path.exists()
    assert HostFolder.lock_beside(path) is None
    path.mkdir()
    folder.remove()
    assert list(path.parent.iterdir()) == []
    assert HostFolder.lock_beside(path) is not None
    folder.remove()
    assert HostFolder.lock_beside(path) is None


@pytest.mark.parametrize("is_beside", [False, True])
def test_what_is_left_of_a_removal_is_no_content_and_goes_with_the_next(tmp_path: Path, is_beside: bool) -> None:
    path = tmp_path / "folder"
    (tmp_path / "folder.leaving" / "file").mkdir(parents=True)
    (path / "file").mkdir(parents=True)
    folder = HostFolder.lock_beside(path) if is_beside else HostFolder.lock(path)
    assert folder is not None
    folder.remove()
    assert list(tmp_path.iterdir()) == []


DEADLINE_S = 60.0
CONTAINER = """
import sys
from penstock.host.process import make_socket_folder
print(make_socket_folder(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a path that is short enough for sockets, wherever the test's own one is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def test_the_folder_of_a_killed_container_is_removed_and_others_are_not(temporary: Path) -> None:
    other = temporary / "somebody-else"
    other.mkdir()
    live = subprocess.Popen([sys.executable, "-c", CONTAINER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert live.stdout is not None
    folder = Path(live.stdout.readline().strip())
    (folder / "s").touch()
    assert remove_dead_folders() == 0
    assert set(temporary.iterdir()) == {other, folder}
    live.kill()
    live.communicate(timeout=DEADLINE_S)
    assert remove_dead_folders() == 1
    assert list(temporary.iterdir()) == [other]


def test_one_container_removes_a_bounded_number(temporary: Path) -> None:
    for number in range(250):
        (temporary / f"pstk.{number}").mkdir()
    mine = make_socket_folder()
    assert [remove_dead_folders() for _ in range(4)] == [100, 100, 50, 0]
    assert list(temporary.iterdir()) == [mine]


def test_a_folder_that_goes_before_it_is_locked_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another container looks between the creation of the folder and its lock, or while it is being locked."""
    make, lock = tempfile.mkdtemp, fcntl.flock
    looks = iter(["before", "during"])
    look = ""

    def made(**arguments: Any) -> str:
        nonlocal look
        look = next(looks, "after")
        folder: str = make(**arguments)
        if look == "before":
            Path(folder).rmdir()
        return folder

    def locked(descriptor: int, kind: int) -> None:
        lock(descriptor, kind)
        if look == "during":
            next(temporary.iterdir()).rmdir()

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    monkeypatch.setattr(fcntl, "flock", locked)
    assert [make_socket_folder()] == list(temporary.iterdir())


def test_containers_that_start_and_look_at_once(temporary: Path) -> None:
    made: list[Path] = []

    def start() -> None:
        for _ in range(20):
            made.append(make_socket_folder())
            remove_dead_folders()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(temporary.iterdir()) == sorted(made)
    assert len(set(made)) == 80


def test_a_long_path_of_temporary_files_makes_no_long_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = make_socket_folder()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
    shutil.rmtree(folder)
