"""`Engine.load`, which a restore fills a store with, does what `apply` does: against a plain dict."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.state.engines.rocksdb as rocksdb_engine
from penstock.errors import CorruptError
from penstock.state.engines.engine import Changes, Engine
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from tests.support.tools.profiles import examples

BULK = 1000
"""From so many changes on, RocksDB gets a table."""
KEYS = st.sampled_from([b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\xff"])
STEPS = st.lists(st.tuples(st.booleans(), st.dictionaries(KEYS, st.none() | st.binary(max_size=4))), max_size=8)


def rocksdb(folder: Path) -> Engine:
    return RocksDbEngine(folder / "db", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 16)


def note(model: dict[bytes, bytes], changes: Changes) -> None:
    for key, value in changes.items():
        model.pop(key, None)
        if value is not None:
            model[key] = value


def check(engine: Engine, model: dict[bytes, bytes]) -> None:
    assert list(engine.scan(None, None)) == sorted(model.items())
    for key in (b"", b"00000100", b"00000777", b"00001999"):
        assert engine.get(key) == model.get(key)
    assert list(engine.scan(b"00000500", b"00001500")) == sorted(
        (key, value) for key, value in model.items() if b"00000500" <= key < b"00001500"
    )


def some(rng: random.Random) -> Changes:
    """Puts and deletes in no order: few, or enough for a table; sometimes nothing but deletes."""
    keys = rng.sample(range(2000), rng.choice((0, 1, 50, BULK - 1, BULK, 1900)))
    deletes = rng.choice((0.0, 0.2, 1.0))
    changes: dict[bytes, bytes | None] = {
        b"%08d" % key: None if rng.random() < deletes else rng.randbytes(rng.randrange(60)) for key in keys
    }
    if rng.random() < 0.3:
        changes[b""] = b"the empty key"
    return changes


@pytest.fixture(params=["rocksdb", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    made = rocksdb(tmp_path) if request.param == "rocksdb" else MemoryEngine()
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(12))
def test_loads_and_applies_in_any_order(engine: Engine, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}
    for _ in range(10):
        changes = some(rng)
        before = dict(changes)
        (engine.load if rng.random() < 0.6 else engine.apply)(changes)
        note(model, changes)
        assert changes == before
        check(engine, model)
    engine.copy_to(tmp_path / "copy")
    copied = MemoryEngine(tmp_path / "copy") if isinstance(engine, MemoryEngine) else copy_of(tmp_path)
    check(copied, model)
    copied.close()


def copy_of(folder: Path) -> Engine:
    return RocksDbEngine(folder / "copy", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 16, read_only=True)


@pytest.mark.parametrize("seed", range(6))
def test_what_was_loaded_outlives_compaction_and_reopening(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}
    engine = rocksdb(tmp_path)
    for step in ("load", "compact", "load", "reopen", "load", "load", "compact", "reopen", "apply", "load", "reopen"):
        if step == "compact":
            engine._db.compact_range(None, None)  # type: ignore[attr-defined]
        elif step == "reopen":
            engine.close()
            engine = rocksdb(tmp_path)
        else:
            changes = some(rng)
            getattr(engine, step)(changes)
            note(model, changes)
        check(engine, model)
    engine.close()
    assert [path.name for path in tmp_path.iterdir()] == ["db"], "the loaded table is moved, not left beside the store"


@given(STEPS)
@examples(0.6)
def test_every_load_as_a_table(steps: list[tuple[bool, dict[bytes, bytes | None]]]) -> None:
    """Includes odd keys, tables of deletes only, and keys that the last table has."""
    model: dict[bytes, bytes] = {}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocksdb_engine, "_BULK", 1)
        engine = rocksdb(Path(folder))
        for loaded, changes in steps:
            (engine.load if loaded else engine.apply)(changes)
            note(model, changes)
            check(engine, model)
        engine.close()


def test_a_copy_is_not_changed_by_a_later_load(tmp_path: Path) -> None:
    """The table's file is linked into the copy; the next table has the same name until it is loaded."""
    engine = rocksdb(tmp_path)
    first = {b"%08d" % number: b"first" for number in range(BULK)}
    engine.load(first)
    engine.copy_to(tmp_path / "copy")
    engine.load(dict.fromkeys(first, b"second"))
    engine.apply(dict.fromkeys(first))
    engine.close()
    copied = copy_of(tmp_path)
    check(copied, first)
    copied.close()


def test_a_scan_that_meets_a_damaged_block_says_so(tmp_path: Path) -> None:
    """The binding's own iterator would merely end there."""
    with closing(RocksDbEngine(tmp_path / "db", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)) as engine:
        engine.load({b"%06d" % number: b"x" * 50 for number in range(20_000)})
    table = max((tmp_path / "db").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    with closing(RocksDbEngine(tmp_path / "db", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)) as engine:
        with pytest.raises(CorruptError, match=r"a scan of .* failed: Corruption"):
            list(engine.scan(None, None))
        assert list(engine.scan(None, b"000003")) == [(b"%06d" % number, b"x" * 50) for number in range(3)]
