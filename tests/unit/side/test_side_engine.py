"""The content of a side store: entries with their positions, seen through views, and continued or not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import CorruptError, IncompatibleError, SerdeError
from penstock.side.engine import (
    POSITIONS_KEY,
    RESERVED,
    ChangedKeys,
    SideEngine,
    SidePositions,
    decode_positions,
    encode_positions,
)
from penstock.side.folders import Decision, ReuseTarget, SideRebuild, SideReuse, decide_reuse
from penstock.state.engines.engine import EngineFailedError
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.system.contract.messages import PartitionOffsets
from tests.support.tools.fixtures import fixture_of

SSP = SystemStreamPartition("local", "dep.planes", 3)
OTHER = SystemStreamPartition("local", "airlines", 0)


def at(offset: int) -> SidePositions:
    return SidePositions({SSP: offset, OTHER: 0}, {SSP.system_stream: "made once"}, "serdes", True, 1234)


def rocksdb(folder: Path) -> RocksDbEngine:
    return RocksDbEngine(folder, block_cache_bytes=1 << 20, write_buffer_bytes=1 << 16)


@pytest.fixture(params=[rocksdb, MemoryEngine], ids=["rocksdb", "memory"])
def below(request: pytest.FixtureRequest) -> Callable[[Path], RocksDbEngine | MemoryEngine]:
    found: Callable[[Path], RocksDbEngine | MemoryEngine] = request.param
    return found


engine = fixture_of(lambda below, tmp_path: SideEngine(below(tmp_path / "side"), str(tmp_path / "side")))


def test_positions_are_written_with_entries_and_never_seen(engine: SideEngine) -> None:
    assert engine.positions == SidePositions()
    engine.write({b"a": b"1", b"\xff" * 15: b"2"}, at(2))
    assert engine.positions == at(2)
    assert engine.get(POSITIONS_KEY) is None
    everything = [(b"a", b"1"), (b"\xff" * 15, b"2")]
    for start, end in ((None, None), (None, b"\xff" * 40), (b"a", None)):
        assert list(engine.scan(start, end)) == everything
        assert list(engine.view().scan(start, end)) == everything
    assert list(engine.scan(RESERVED, None)) == list(engine.view().scan(POSITIONS_KEY, None)) == []
    assert engine.view().get(POSITIONS_KEY) is None
    assert engine.statistics()["keys"] == 2


@pytest.mark.parametrize("write", ["write", "load"])
def test_a_reserved_key_is_refused_and_named(engine: SideEngine, write: str) -> None:
    with pytest.raises(SerdeError, match=r"key b'\\xff.*reserved"):
        getattr(engine, write)({b"a": b"1", RESERVED: b"x"}, at(1))
    assert (engine.positions, engine.get(b"a")) == (SidePositions(), None)


def test_positions_survive_close_and_copies(tmp_path: Path) -> None:
    engine = SideEngine(rocksdb(tmp_path / "side"), "side")
    engine.write({b"a": b"1"}, at(1))
    engine.write({}, at(2))
    engine.copy_to(tmp_path / "copy")
    engine.write({b"a": b"2"}, at(3))
    engine.close()
    engine.close()
    for folder, value, offset in (("side", b"2", 3), ("copy", b"1", 2)):
        again = SideEngine(rocksdb(tmp_path / folder), folder)
        assert (again.get(b"a"), again.positions) == (value, at(offset))
        again.close()


def test_a_view_shows_one_state(engine: SideEngine) -> None:
    """Against dicts: whatever is written or loaded later, in gets and in scans that had begun."""
    rng = random.Random(5)
    model: dict[bytes, bytes] = {}
    views = []
    for step in range(40):
        changes: Mapping[bytes, bytes | None] = {
            b"%03d" % key: None if rng.random() < 0.3 else b"%d" % step
            for key in rng.sample(range(300), rng.choice((1, 20, 200)))
        }
        view, scan = engine.view(), engine.view().scan(b"050", b"250")
        expected = dict(model)
        begun = list(islice(scan, step % 7))
        views.append((view, expected, begun, scan))
        (engine.load if step % 5 == 0 else engine.write)(changes, at(step))
        for key, value in changes.items():
            model.pop(key, None)
            if value is not None:
                model[key] = value
    assert dict(engine.scan(None, None)) == model
    for view, expected, begun, scan in views:
        assert list(view.scan(None, None)) == sorted(expected.items())
        assert begun + list(scan) == [(k, v) for k, v in sorted(expected.items()) if b"050" <= k < b"250"]
        assert all(view.get(b"%03d" % key) == expected.get(b"%03d" % key) for key in range(300))


def test_what_changed_between_two_views(engine: SideEngine) -> None:
    first = engine.view()
    assert first.changed_since(first.version) == ()
    engine.write({}, at(1))
    assert engine.view().version == first.version
    engine.write({b"a": b"1", b"b": None}, at(1))
    engine.write({b"c": b"1"}, at(1))
    second = engine.view()
    assert set(second.changed_since(first.version) or ()) == {b"a", b"b", b"c"}
    assert first.changed_since(second.version) is None
    engine.load({b"d": b"1"}, at(2))
    engine.write({b"e": b"1"}, at(3))
    assert engine.view().changed_since(second.version) is None
    assert SideEngine(MemoryEngine(), "another").view().changed_since(first.version) is None


def test_the_keys_remembered_are_bounded() -> None:
    changed = ChangedKeys(most_keys=5)
    for number in range(4):
        changed.add((b"%d" % number, b"k"))
    assert changed.since(4) == []
    assert changed.since(2) == [b"2", b"k", b"3", b"k"]
    assert changed.since(1) is None
    changed.add(tuple(b"%d" % number for number in range(6)))
    assert changed.since(4) is None
    assert changed.since(5) == []


def test_a_released_view_cannot_be_read(engine: SideEngine) -> None:
    engine.write({b"%d" % number: b"1" for number in range(100)}, at(1))
    view = engine.view()
    scan = view.scan(None, None)
    next(scan)
    view.release()
    view.release()
    for read in (lambda: view.get(b"1"), lambda: list(scan), lambda: list(view.scan(None, None))):
        with pytest.raises(EngineFailedError, match="released"):
            read()


def test_closing_lets_go_of_files_that_views_and_scans_read(tmp_path: Path) -> None:
    """Reading goes on to an error, and the folder can be opened at once."""
    engine = SideEngine(rocksdb(tmp_path / "side"), "side")
    engine.write({b"%04d" % number: b"1" for number in range(3000)}, at(1))
    view = engine.view()
    scan = view.scan(None, None)
    next(scan)
    engine.close()
    again = SideEngine(rocksdb(tmp_path / "side"), "side")
    assert again.positions == at(1)
    with pytest.raises(EngineFailedError):
        list(scan)
    again.close()


def test_positions_of_a_newer_penstock_and_damaged_ones() -> None:
    data = encode_positions(at(7))
    assert decode_positions(data, "x") == at(7)
    assert set(decode_positions(data, "x").identities) == {SystemStream("local", "dep.planes")}
    with pytest.raises(IncompatibleError, match="side store in `x` has format 2"):
        decode_positions(data.replace(b'"format":1', b'"format":2'), "x")
    for damaged in (b"", data[:-1], data.replace(b"dep.planes.3", b"dep.planes.x"), b"{}"):
        with pytest.raises(CorruptError, match="positions of the side store in `x` are damaged"):
            decode_positions(damaged, "x")


def test_a_golden_entry() -> None:
    golden = (
        b'{"format":1,"next":{"local.dep.planes.3":7,"local.airlines.0":0},'
        b'"identities":{"local.dep.planes":"made once"},"fingerprint":"serdes","complete":true,"updated_ms":1234}'
    )
    assert encode_positions(at(7)) == golden
    assert POSITIONS_KEY == b"\xff" * 16 + b"positions"


def test_many_loads_are_merged_once_they_are_complete(tmp_path: Path) -> None:
    engine = SideEngine(rocksdb(tmp_path / "side"), "side")
    model: dict[bytes, bytes] = {}
    for number in range(12):
        entries = {b"%06d" % (key * 7 % 2500): b"%d" % number for key in range(number, number + 2000)}
        engine.load(entries, replace(at(number), complete=False))
        model |= entries
    assert len(list((tmp_path / "side").glob("*.sst"))) == 12
    engine.load({b"last": b"1"}, at(20))
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "side").glob("*.sst"))) > 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(list((tmp_path / "side").glob("*.sst"))) <= 6
    assert dict(engine.scan(None, None)) == {**model, b"last": b"1"}
    engine.close()


def test_after_very_many_files_no_write_waits_for_their_merge(tmp_path: Path) -> None:
    engine = rocksdb(tmp_path / "engine")
    side = SideEngine(engine, "here")
    rows = {b"%06d" % number: b"value" for number in range(1000)}
    for offset in range(1, 41):  # RocksDB itself stops writes at 36
        side.load(rows, replace(at(offset), complete=False))
    engine.compact_in_background(True)  # what the complete load does before it writes
    stopped, delayed = (
        engine._db.property_int_value(f"rocksdb.{name}") for name in ("is-write-stopped", "actual-delayed-write-rate")
    )
    side.write({b"key": b"value"}, at(42))
    assert (stopped, delayed) == (0, 0)
    assert side.get(b"key") == b"value"
    side.close()


A, B = SystemStreamPartition("local", "a", 1), SystemStreamPartition("local", "b", 0)
NOW_MS, DAY_MS = 1_000_000_000, 86_400_000
FOUND = SidePositions({A: 10, B: 0}, {A.system_stream: "uid a", B.system_stream: None}, "serdes", True, NOW_MS - 1000)
WANTED = ReuseTarget(
    "serdes",
    {A: PartitionOffsets(4, 12), B: PartitionOffsets(0, 0)},
    {A: 10, B: 0},
    {A.system_stream: "uid a", B.system_stream: None},
)


def decide(found: SidePositions | None, wanted: ReuseTarget = WANTED) -> Decision:
    return decide_reuse(found, wanted, NOW_MS, DAY_MS)


def test_content_is_continued_where_nothing_was_missed() -> None:
    assert decide(FOUND) == SideReuse()
    assert decide(replace(FOUND, next_offsets={A: 12, B: 0}, complete=False)) == SideReuse()
    assert decide(replace(FOUND, updated_ms=NOW_MS - DAY_MS)) == SideReuse()
    assert decide(replace(FOUND, updated_ms=NOW_MS + 5000)) == SideReuse()
    assert decide(FOUND, replace(WANTED, deletions_kept_ms={A.system_stream: 2000})) == SideReuse()


@pytest.mark.parametrize("found", [None, SidePositions()])
def test_no_content_is_expected(found: SidePositions | None) -> None:
    decision = decide(found)
    assert isinstance(decision, SideRebuild)
    assert decision.expected


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        (replace(FOUND, fingerprint="others"), WANTED, "another processor or with other serdes"),
        (replace(FOUND, next_offsets={A: 10}), WANTED, "without `local.b.0`"),
        (
            replace(FOUND, next_offsets={A: 10, B: 0, replace(A, partition=2): 1}),
            WANTED,
            "`local.a.2` as well, which is no longer",
        ),
        (
            replace(FOUND, identities={A.system_stream: "uid of before", B.system_stream: None}),
            WANTED,
            "stream `local.a` was deleted and created again",
        ),
        (replace(FOUND, identities={A.system_stream: "uid a", B.system_stream: "x"}), WANTED, "`local.b` was deleted"),
        (replace(FOUND, updated_ms=NOW_MS - DAY_MS - 1), WANTED, "side.inputs.max.age.ms=86400000"),
        (
            FOUND,
            replace(WANTED, deletions_kept_ms={A.system_stream: 1998}),
            "half of delete.retention.ms=1998 of `local.a`",
        ),
        (replace(FOUND, next_offsets={A: 13, B: 0}), WANTED, "offset 13 of `local.a.1`, which now ends at 12"),
        (replace(FOUND, next_offsets={A: 9, B: 0}), WANTED, "offset 9 of `local.a.1`, and what followed up to 10"),
    ],
)
def test_other_content_is_made_again(found: SidePositions, wanted: ReuseTarget, reason: str) -> None:
    decision = decide(found, wanted)
    assert isinstance(decision, SideRebuild)
    assert reason in decision.reason
    assert not decision.expected
