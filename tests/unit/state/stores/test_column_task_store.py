"""A store by column beside a dict, over every kind of engine: single keys and many at once see the same entries."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.serdes import Bytes
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Entries
from penstock.graph.stores import StoreSpec
from penstock.state.engines.engine import Engine, EngineFailedError
from penstock.state.engines.memory import ColumnEngine, MemoryEngine
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.stores.columns import ColumnTaskStore

KEYS = st.sampled_from([b"", b"a", b"b", b"ab", b"key-0001", b"key-0002", b"\xff"])
CHANGES = st.dictionaries(KEYS, st.none() | st.sampled_from([b"", b"1", b"22", b"value-01"]), max_size=7)
STEPS = st.lists(st.tuples(st.sampled_from(["many", "single", "end", "discard", "scan"]), CHANGES), max_size=12)


@pytest.fixture(params=["columns", "memory", "rocksdb", "write-behind"], scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made: Engine
    if request.param in ("columns", "memory"):
        made = {"columns": ColumnEngine, "memory": MemoryEngine}[request.param]()
    else:
        made = RocksDbEngine(tmp_path_factory.mktemp("engine"), block_cache_bytes=1 << 20, write_buffer_bytes=1 << 16)
    with ThreadPoolExecutor(1) as writer:
        if request.param == "write-behind":
            made = WriteBehindEngine(made, writer, gather_bytes=1000)
        yield made
        made.close()


def look_up(store: ColumnTaskStore, keys: list[bytes]) -> list[bytes | None]:
    values, present = store.get_many(ByteArray.of_list(keys))
    found: list[bytes | None] = values.to_arrow(present).to_pylist()
    return found


@pytest.mark.few(2)
@given(steps=STEPS)
def test_it_is_a_dict(engine: Engine, steps: list[tuple[str, dict[bytes, bytes | None]]]) -> None:
    engine.apply({key: None for key, _ in list(engine.scan(None, None))})
    store = ColumnTaskStore(StoreSpec("s", Bytes(), Bytes()), engine)
    store.begin()
    ended: dict[bytes, bytes] = {}
    now = dict(ended)
    for step, changes in steps:
        if step in ("many", "single"):
            if step == "many":
                store.put_many(Entries.of(changes))
            else:
                for key, value in changes.items():
                    store.put(key, value)
            now = {key: value for key, value in {**now, **changes}.items() if value is not None}
        elif step == "scan":
            assert dict(store.all()) == now
            assert {k: v for block in store.blocks(2) for k, v in block.items()} == now
            assert [key for key, _ in store.range(b"a", b"b")] == [key for key in sorted(now) if b"a" <= key < b"b"]
        else:
            if step == "end":
                engine.apply(store.overlay.take())
                ended = now
            store.begin()
            now = dict(ended)
        keys = [*changes, b"none", *changes]
        assert look_up(store, keys) == [now.get(key) for key in keys]
        assert [store.get(key) for key in keys] == [now.get(key) for key in keys]
        assert dict(engine.scan(None, None)) == ended


def test_rows_that_are_known_are_not_looked_up_again() -> None:
    engine = ColumnEngine()
    engine.apply({b"a": b"1", b"b": b"2"})
    keys = ByteArray.of_list([b"b", b"c"])
    found = engine.find(keys)
    assert found.rows.tolist() == [1, -1]
    engine.apply(Entries(keys, ByteArray.of_list([b"20", b"30"]), np.ones(2, np.bool_), found))
    assert dict(engine.scan(None, None)) == {b"a": b"1", b"b": b"20", b"c": b"30"}


def test_rows_get_other_numbers_when_most_are_deleted() -> None:
    engine, many = ColumnEngine(), [b"%05d" % number for number in range(20_000)]
    engine.apply(dict.fromkeys(many, b"v"))
    found = engine.find(ByteArray.of_list(many[-2:]))
    before = engine.statistics()["bytes"]
    engine.apply(dict.fromkeys(many[:-10]))
    assert engine.statistics()["keys"] == 10
    assert engine.statistics()["bytes"] < before / 10
    with pytest.raises(KeyError, match="other numbers"):
        engine.at(found)
    # Known rows of before are not used: the keys are looked up again.
    engine.apply(Entries(ByteArray.of_list(many[-2:]), ByteArray.of_list([b"x", b"y"]), np.ones(2, np.bool_), found))
    assert dict(engine.scan(b"19998", None)) == {b"19998": b"x", b"19999": b"y"}
    assert engine.statistics()["keys"] == 10


def test_a_failed_engine_is_not_the_applications_fault() -> None:
    class Failing(MemoryEngine):
        def get(self, key: bytes) -> bytes | None:
            raise OSError("no such device")

    store = ColumnTaskStore(StoreSpec("s", Bytes(), Bytes()), Failing())
    store.begin()
    with pytest.raises(EngineFailedError, match="store `s` cannot be read: OSError: no such device"):
        store.get_many(ByteArray.of_list([b"a"]))
    assert store.failure is not None
