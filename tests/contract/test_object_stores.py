"""Every object store keeps the contract; and what is particular to each."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from penstock.base.secrets import RootKeys
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.objects.file import FileObjectStore
from penstock.objects.open import RemoteObjectStore, open_root, open_store
from penstock.objects.store import ObjectStore
from penstock.testing.object_store_contract import ObjectStoreContract, SharedObjectStoreContract
from tests.support.tools.strangers import needs_strangers, open_folder, stranger_locks


class TestFileStore(SharedObjectStoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return (tmp_path / "not" / "yet").as_uri()

    @pytest.fixture
    def store(self, url: str) -> ObjectStore:
        return open_store(url)


class TestRemoteStoreOverMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return RemoteObjectStore("memory://injected", store=MemoryStore())


class TestMemoryUrl(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return open_store(f"memory://{uuid.uuid4()}")


class TestSignedStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_root(str(tmp_path), RootKeys("a key of thirty-two characters..."))


def test_remote_list_passes_the_page_size() -> None:
    store = RemoteObjectStore("memory://pages", store=MemoryStore())
    keys = [f"d/{number:05d}" for number in range(2500)]
    for key in keys:
        store.put_if_absent(key, b"")
    assert store.list("d") == keys
    assert store.list("d", after=keys[1200]) == keys[1201:]


def test_memory_stores_are_shared_by_name() -> None:
    name = f"memory://{uuid.uuid4()}/sub"
    open_store(name).put_if_absent("k", b"1")
    assert open_store(name).get("k") == b"1"
    with pytest.raises(NotFoundError):
        open_store(f"{name}x").get("k")


def test_open_store_by_scheme(tmp_path: Path) -> None:
    for url in (str(tmp_path), tmp_path.as_uri()):
        store = open_store(url)
        assert isinstance(store, FileObjectStore)
        assert store.root == tmp_path
    spaced = open_store("file:///a%20b")
    assert isinstance(spaced, FileObjectStore)
    assert str(spaced.root) == "/a b"
    for url in ("s3://bucket/path", "gs://bucket/path"):
        assert isinstance(open_store(url), RemoteObjectStore)


@pytest.mark.parametrize("url", ["hdfs://x/y", "", "file://host/path", "ftp://x"])
def test_open_store_refuses_and_lists_what_it_knows(url: str) -> None:
    with pytest.raises(ConfigError, match="file:///"):
        open_store(url)


def test_opening_and_reading_make_no_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    assert store.list("") == []
    store.delete("k")
    assert not (tmp_path / "root").exists()


def test_leftovers_of_dead_writers_go_and_those_of_living_stay(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path)
    store.put_if_absent("d/k", b"1")
    dead = tmp_path / "d" / ".penstock-tmp-1-dead"
    dead.write_bytes(b"half")
    living = tmp_path / "d" / ".penstock-tmp-1-living"
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert store.list("") == ["d/k"]
        assert living.exists()
    assert not dead.exists()
    store.list("d")
    assert not living.exists()


def test_a_removed_root_is_made_again(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path / "root")
    store.put_if_absent("a/b", b"1")
    (tmp_path / "root" / "a" / "b").unlink()
    (tmp_path / "root" / "a").rmdir()
    assert store.put_if_absent("a/b", b"2")


def test_an_object_where_a_folder_is_needed(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path)
    store.put_if_absent("a", b"1")
    with pytest.raises(ConfigError, match="needed"):
        store.put_if_absent("a/b", b"1")
    store.put_if_absent("f/x", b"1")
    with pytest.raises(ConfigError, match="folder"):
        store.put_if_absent("f", b"1")


def test_a_lock_that_is_never_given_back_is_named(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path, lock_timeout_s=0.05)
    store.put_if_absent("k", b"1")
    _, tag = store.get_with_tag("k")
    with (tmp_path / ".penstock-lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RetryableError, match="lslocks"):
            store.put_if_match("k", b"2", tag)
        assert store.put_if_absent("other", b"1"), "creating waits for no lock"
    assert store.put_if_match("k", b"2", tag)


@needs_strangers
def test_another_user_can_lock_nothing_of_a_store() -> None:
    """A lock needs only the right to read: whoever could read a lock's file would stop all who wait for it.
    Folders of earlier versions can be entered."""
    with open_folder() as folder:
        (folder / "job").mkdir()
        store = FileObjectStore(folder, lock_timeout_s=0.05)
        store.put_if_absent("job/lease", b"1")
        assert store.put_if_match("job/lease", b"2", store.get_with_tag("job/lease")[1])
        (lock,) = folder.rglob(".penstock-lock")
        with stranger_locks(lock) as answer:
            assert "Permission denied" in answer
        with lock.open("rb") as ours:
            fcntl.flock(ours, fcntl.LOCK_EX)
            with pytest.raises(RetryableError, match="lslocks"):
                store.put_if_match("job/lease", b"3", store.get_with_tag("job/lease")[1])
        store.delete("job/lease")
        store.remove_empty_folders("job")
        assert list(folder.iterdir()) == [], "no lock is left"


@needs_strangers
def test_another_user_holds_up_no_output_that_is_for_others() -> None:
    with open_folder() as folder:
        os.umask(0o022)
        store = FileObjectStore(folder / "out", lock_timeout_s=0.05, is_for_others=True)
        store.put_if_absent("part/a", b"1")
        assert store.put_if_match("part/a", b"2", store.get_with_tag("part/a")[1])
        with stranger_locks(folder / "out" / "part" / "a") as answer:
            assert answer == "locked", "everybody may read it"
            assert store.put_if_match("part/a", b"3", store.get_with_tag("part/a")[1])
        with stranger_locks(folder / "out" / "part" / ".penstock-lock") as answer:
            assert "Permission denied" in answer


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; the fault tests use a read-only mount")
def test_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match=r"job\.root"):
            FileObjectStore(tmp_path).put_if_absent("k", b"1")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.attack
def test_nobody_else_reads_what_is_in_a_folder_but_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with a private umask, too."""
    before = os.umask(0o022)
    try:
        FileObjectStore(tmp_path / "root").put_if_absent("job/checkpoints/1", b"1")
        FileObjectStore(tmp_path / "out", is_for_others=True).put_if_absent("a/1", b"1")
        os.umask(0o077)
        monkeypatch.setenv("PENSTOCK_UMASK", "027")
        FileObjectStore(tmp_path / "out", is_for_others=True).put_if_absent("b/1", b"1")
    finally:
        os.umask(before)

    def mode(path: str) -> int:
        return (tmp_path / path).stat().st_mode & 0o777

    assert [mode(path) for path in ("root/job", "root/job/checkpoints", "root/job/checkpoints/1")] == [
        0o700,
        0o700,
        0o600,
    ]
    assert mode("root") == 0o755, "jobs of others may have folders there"
    assert [mode(path) for path in ("out", "out/a", "out/a/1")] == [0o755, 0o755, 0o644]
    assert [mode(path) for path in ("out/b", "out/b/1")] == [0o750, 0o640]
