"""A store over views: what it reads, and which values it keeps."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStream
from penstock.graph.stores import SideInputs, SideStream, StoreSpec
from penstock.side.engine import SideEngine, SidePositions
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.build import SideInputStore

SIDE = SideInputs((SideStream(SystemStream("m", "planes"), ps.String(), ps.Json()),))
SPEC = StoreSpec("planes", ps.String(), ps.Json(), side=SIDE)


def engine(**entries: bytes) -> SideEngine:
    made = SideEngine(MemoryEngine(), "memory")
    write(made, **entries)
    return made


def write(content: SideEngine, **entries: bytes | None) -> None:
    content.write({key.encode(): value for key, value in entries.items()}, SidePositions())


def test_another_view_shows_what_has_changed_and_reads_nothing_else_again() -> None:
    content = engine(a=b"1", b=b"2")
    store = SideInputStore(SPEC, content.view(), 100)
    store.begin()
    assert [store.get(key) for key in "abc"] == [1, 2, None]
    write(content, a=b"10", c=b"30")
    assert [store.get(key) for key in "abc"] == [1, 2, None], "the running attempt sees one state"
    assert store.take_reads() == (6, 3, 0)
    store.show(content.view())
    store.begin()
    assert [store.get(key) for key in "abc"] == [10, 2, 30]
    assert store.take_reads() == (3, 2, 0)
    assert list(store.all()) == [("a", 10), ("b", 2), ("c", 30)]
    assert store.overlay.take() == {}


def test_a_view_of_other_content_makes_it_forget_everything() -> None:
    store = SideInputStore(SPEC, engine(a=b"1", b=b"2").view(), 100)
    store.begin()
    assert [store.get(key) for key in "ab"] == [1, 2]
    store.show(engine(a=b"1").view())
    assert [store.get(key) for key in "ab"] == [1, None]


@pytest.mark.parametrize(
    "write_to",
    [
        lambda store: store.put("a", 1),
        lambda store: store.delete("a"),
        lambda store: store.put_all({"a": 1}),
        lambda store: store.delete_all(["a"]),
        lambda store: store.__setitem__("a", 1),
        lambda store: store.__delitem__("a"),
    ],
)
def test_every_write_is_refused(write_to: Any) -> None:
    store = SideInputStore(SPEC, engine().view(), 100)
    with pytest.raises(
        ps.ConfigError, match=r"store `planes` is filled by its side inputs `m.planes` and is read-only"
    ):
        write_to(store)
