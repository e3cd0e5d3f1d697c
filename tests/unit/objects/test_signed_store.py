"""Stores around stores pass all calls on, and somebody writes to a root without its key."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.base.secrets import RootKeys
from penstock.errors import ConfigError, CorruptError, NotFoundError, RetryableError
from penstock.objects.file import FileObjectStore
from penstock.objects.open import open_root, open_store
from penstock.objects.store import ObjectStore
from penstock.testing.faulty_store import FaultyStore, ForwardingStore

KEY, OTHER = "a key of thirty-two characters...", "another key of some characters..."
SIGNED = RootKeys(KEY)
SIZES = (0, 1, 1000, (256 << 10) - 48, 256 << 10, 1 << 20)
"""In bytes; stores read pieces of 256 KB."""


def whole(store: ObjectStore, key: str) -> bytes:
    return b"".join(map(bytes, store.pieces(key)))


def tagged(store: ObjectStore, key: str) -> bytes:
    return store.get_with_tag(key)[0]


def get(store: ObjectStore, key: str) -> bytes:
    return store.get(key)


Read = Callable[[ObjectStore, str], bytes]
READS = [get, tagged, whole]


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_read_is_what_was_written(url: str, size: int, read: Read) -> None:
    store, data = open_root(url, SIGNED), bytes(range(251)) * (size // 251) + bytes(size % 251)
    assert store.put_if_absent("a/b", data)
    assert read(store, "a/b") == data
    assert store.sizes("a") == {"a/b": size}
    assert open_store(url).get("a/b").endswith(data)
    with pytest.raises(NotFoundError):
        read(store, "a/c")


@pytest.mark.attack
@pytest.mark.few(9)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("size", [0, 1, 300 << 10])
def test_no_changed_bytes_are_read(url: str, size: int, read: Read) -> None:
    store, raw = open_root(url, SIGNED), open_store(url)
    store.put_if_absent("a/b", b"x" * size)
    signed = raw.get("a/b")

    def place(data: bytes) -> None:
        raw.delete("a/b")
        raw.put_if_absent("a/b", data)

    for at in {*range(48), size // 2 + 47, len(signed) - 1}:
        place(signed[:at] + bytes([signed[at] ^ 1]) + signed[at + 1 :])
        with pytest.raises((ConfigError, CorruptError), match="`a/b`"):
            read(store, "a/b")
    for data in (b"", signed[:8], signed[:47], signed[:-1], signed + b"y", signed[48:], b"x" * size):
        place(data)
        with pytest.raises((ConfigError, CorruptError), match="`a/b`"):
            read(store, "a/b")
    place(signed)
    assert read(store, "a/b") == b"x" * size


@pytest.mark.attack
@pytest.mark.parametrize("read", READS)
def test_no_object_is_read_under_another_key(url: str, read: Read) -> None:
    store, raw = open_root(url, SIGNED), open_store(url)
    store.put_if_absent("a/b", b"data")
    raw.put_if_absent("a/c", raw.get("a/b"))
    with pytest.raises(CorruptError, match=r"`a/c` is not what was signed.*moved"):
        read(store, "a/c")


@pytest.mark.attack
@pytest.mark.parametrize("read", READS)
def test_a_stranger_has_another_key(url: str, read: Read) -> None:
    open_root(url, RootKeys(OTHER)).put_if_absent("a/b", b"data")
    with pytest.raises(ConfigError, match="signed with another key") as caught:
        read(open_root(url, SIGNED), "a/b")
    assert KEY not in str(caught.value)
    assert OTHER not in str(caught.value)
    assert KEY not in repr(SIGNED)


@pytest.mark.attack
@pytest.mark.parametrize("read", [get, tagged])
def test_without_a_key_nothing_signed_is_read(url: str, read: Read) -> None:
    open_root(url, SIGNED).put_if_absent("a/b", b"data")
    with pytest.raises(ConfigError, match=r"`a/b` is signed.*no `job\.root\.key`"):
        read(open_root(url, RootKeys()), "a/b")


@pytest.mark.parametrize("read", READS)
def test_keys_change(url: str, read: Read) -> None:
    open_root(url, SIGNED).put_if_absent("old", b"1")
    both = open_root(url, RootKeys(OTHER, KEY))
    both.put_if_absent("new", b"2")
    assert (read(both, "old"), read(both, "new")) == (b"1", b"2")
    new = open_root(url, RootKeys(OTHER))
    assert read(new, "new") == b"2"
    with pytest.raises(ConfigError, match=r"job\.root\.key\.previous"):
        read(new, "old")


def calls_of(store: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(store, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("store", "passed_on"), [(ForwardingStore, set()), (FaultyStore, {"close", "modes_of_others"})]
)
def test_no_call_is_left_to_the_base_class(store: type[ObjectStore], passed_on: set[str]) -> None:
    assert calls_of(ObjectStore) - passed_on == {name for name in calls_of(ObjectStore) if name in vars(store)}


def test_faults_meet_piecewise_reads(tmp_path: Path) -> None:
    """Before the first piece, and between two."""
    inner = FileObjectStore(tmp_path)
    inner.put_if_absent("a/b", bytes(3 << 20))
    store = FaultyStore(inner, seed=7, rate=0.3)
    read: set[int] = set()
    for _ in range(60):
        pieces = 0
        try:
            for _piece in store.pieces("a/b"):
                pieces += 1
        except RetryableError:
            read.add(pieces)
    assert {0, 1} <= read
    store.rate = 0
    assert b"".join(bytes(piece) for piece in store.pieces("a/b")) == bytes(3 << 20)
