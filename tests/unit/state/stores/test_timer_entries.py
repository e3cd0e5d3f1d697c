"""Both orders of a store of timers must name the same timers."""

from __future__ import annotations

import pytest

from penstock.api.serdes import Bytes
from penstock.graph.stores import StoreSpec
from penstock.runtime.timers import Timers, place_of
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.build import build_store
from penstock.state.stores.timed_entries import timer_problem


def engine_of() -> MemoryEngine:
    engine = MemoryEngine()
    store = build_store(StoreSpec("t.timers", Bytes(), Bytes()), engine, 0, time_ms=0)
    timers = Timers(store)
    for n in range(5):
        timers.set("event", place_of(b"k%d" % n, "name"), 10 * n)
        timers.set("processing", place_of(None, str(n)), n)
    timers.set("event", place_of(b"k1", "name"), 7)
    timers.cancel("event", place_of(b"k2", "name"))
    engine.apply(store.overlay.take())
    return engine


def test_what_timers_leave_is_right() -> None:
    engine = engine_of()
    assert timer_problem(engine) is None
    assert sum(1 for _ in engine.scan(None, None)) == 2 * 9


@pytest.mark.parametrize(
    ("order", "said"), [(b"k", "9 timers are found by their times, and 8"), (b"t", "not by its time")]
)
def test_an_entry_is_missing(order: bytes, said: str) -> None:
    engine = engine_of()
    first = next(key for key, _ in engine.scan(order, None))
    engine.apply({first: None})
    assert said in str(timer_problem(engine))


def test_an_entry_is_of_no_timer() -> None:
    engine = engine_of()
    engine.apply({b"x": b""})
    assert "an entry is of no timer: b'x'" in str(timer_problem(engine))
