"""Stores that pass calls on pass all of them, so that a fault meets every way to read."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from penstock.errors import RetryableError
from penstock.objects.file import FileObjectStore
from penstock.objects.store import ObjectStore
from penstock.testing.faulty_store import FaultyStore
from penstock.testing.forwarding_store import ForwardingStore


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
