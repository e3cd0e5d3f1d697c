"""Folders of a host: who may have one, and what is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.host.process import HostFolder


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
