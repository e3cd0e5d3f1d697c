"""The files of locks: whoever can read one can lock it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from penstock.base.files import UMASK, open_lock
from penstock.container.launch import Register
from penstock.host.position_page import PositionPage
from penstock.host.process import HostFolder
from penstock.objects.file import FileObjectStore
from penstock.testing.kafka_jars import locked
from tests.support.tools.strangers import needs_strangers, open_folder, stranger_locks

pytestmark = pytest.mark.attack


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("before", [None, 0o644, 0o666])
@pytest.mark.parametrize("for_writers", [False, True])
@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o027, 0o077])
@pytest.mark.parametrize("chosen", [None, 0, 0o002, 0o022, 0o077])
def test_nobody_can_read_a_lock_who_cannot_write(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mask: int,
    chosen: int | None,
    for_writers: bool,
    before: int | None,
) -> None:
    monkeypatch.delenv(UMASK, raising=False)
    if chosen is not None:
        monkeypatch.setenv(UMASK, f"{chosen:03o}")
    path = tmp_path / "lock"
    if before is not None:
        path.touch()
        path.chmod(before)
    with umask(mask):
        os.close(open_lock(path, for_writers=for_writers))
        os.close(open_lock(path, for_writers=for_writers))
    mode = path.stat().st_mode & 0o777
    assert mode & 0o044 == 0
    if not for_writers:
        assert mode == 0o600
    elif chosen is not None or before is None:
        assert mode == 0o622 & ~(mask if chosen is None else chosen), "writers by the umask of the user can lock"


def _store(folder: Path) -> AbstractContextManager[object]:
    store = FileObjectStore(folder)
    store.put_if_absent("job/a", b"1")
    assert store.put_if_match("job/a", b"2", store.get_with_tag("job/a")[1])
    return closing(store)


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    mine = HostFolder.lock_beside(folder / "copies")
    assert mine is not None
    yield
    mine.release()


@contextmanager
def _page(folder: Path) -> Iterator[None]:
    page = PositionPage.create(folder / "page")
    assert page is not None
    yield
    page.close()


@contextmanager
def _register(folder: Path) -> Iterator[None]:
    register = Register(folder / "register.json")
    with register.locked():
        register.write([])
        yield


@needs_strangers
@pytest.mark.parametrize("holds", [_store, _beside, _page, _register, lambda folder: locked(folder / "jars", 1)])
def test_another_user_locks_nothing_awaited(
    holds: Callable[[Path], AbstractContextManager[object]],
) -> None:
    with open_folder() as folder, holds(folder):
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files
        for path in files:
            with stranger_locks(path) as answer:
                assert "Permission denied" in answer, path
