"""The contract of every key-value engine, as tests that each engine's own test class inherits.

```
class TestMyEngine(EngineContract):
    @pytest.fixture
    def open_engine(self) -> OpenEngine:
        return MyEngine
```
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import pytest

from penstock.state.engines.engine import Changes, Engine

__all__ = ["EngineContract", "OpenEngine"]

OpenEngine: TypeAlias = Callable[[Path], Engine]
"""Opens an engine over a folder: a new one if the folder does not exist, else what `copy_to` put there."""

_KEYS = [b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\xff"]
"""In the order of unsigned bytes."""
_MANY = 3000
_WAIT_S = 60.0


def _content(engine: Engine) -> dict[bytes, bytes]:
    return dict(engine.scan(None, None))


def _note(model: dict[bytes, bytes], changes: Changes) -> None:
    for key, value in changes.items():
        model.pop(key, None)
        if value is not None:
            model[key] = value


class EngineContract:
    """Inherit, and give a fixture `open_engine`."""

    @pytest.fixture
    def open_engine(self) -> OpenEngine:
        """The engine under test."""
        raise NotImplementedError

    @pytest.fixture
    def engine(self, open_engine: OpenEngine, tmp_path: Path) -> Iterator[Engine]:
        """A new engine, which is empty."""
        engine = open_engine(tmp_path / "engine")
        yield engine
        engine.close()

    @pytest.fixture
    def faulty(self) -> tuple[Engine, Callable[[], None]] | None:
        """A new engine, and a function that makes all its later writes fail. Override it if your engine's writes can
        fail after `apply` has returned."""
        return None

    # -- gets, puts and deletes --

    def test_a_new_engine_is_empty(self, engine: Engine) -> None:
        assert engine.get(b"") is None
        assert list(engine.scan(None, None)) == []

    def test_a_put_is_read_replaced_and_deleted(self, engine: Engine) -> None:
        for value in (b"1", b"", b"\x00" * 10, b"1"):
            engine.apply({b"k": value})
            assert engine.get(b"k") == value
            assert list(engine.scan(None, None)) == [(b"k", value)]
        engine.apply({b"k": None})
        assert engine.get(b"k") is None
        assert list(engine.scan(None, None)) == []

    def test_a_delete_of_what_is_not_there_does_nothing(self, engine: Engine) -> None:
        engine.apply({b"never": None})
        engine.apply({b"a": b"1", b"other": None})
        assert _content(engine) == {b"a": b"1"}

    def test_no_changes_are_no_change(self, engine: Engine) -> None:
        engine.apply({b"a": b"1"})
        engine.apply({})
        engine.load({})
        assert _content(engine) == {b"a": b"1"}

    def test_long_keys_and_values(self, engine: Engine) -> None:
        entries = {b"k" * (64 << 10): b"v", b"k": random.Random(1).randbytes(4 << 20)}  # noqa: S311 - not a secret
        engine.apply(entries)
        assert {key: engine.get(key) for key in entries} == entries == _content(engine)

    def test_the_changes_stay_the_callers(self, engine: Engine) -> None:
        changes: dict[bytes, bytes | None] = {b"a": b"1", b"b": None}
        for write in (engine.apply, engine.load):
            write(changes)
            assert changes == {b"a": b"1", b"b": None}
            changes[b"a"], changes[b"c"] = b"2", b"3"
            assert _content(engine) == {b"a": b"1"}
            changes = {b"a": b"1", b"b": None}

    # -- scans --

    def test_keys_are_in_the_order_of_unsigned_bytes(self, engine: Engine) -> None:
        engine.apply({key: b"v" + key for key in random.Random(2).sample(_KEYS, len(_KEYS))})  # noqa: S311
        assert [key for key, _ in engine.scan(None, None)] == _KEYS
        for start in (None, *_KEYS):
            for end in (None, *_KEYS):
                expected = [k for k in _KEYS if (start is None or start <= k) and (end is None or k < end)]
                assert list(engine.scan(start, end)) == [(key, b"v" + key) for key in expected], (start, end)

    def test_bounds_need_not_be_keys(self, engine: Engine) -> None:
        engine.apply({b"b": b"1", b"d": b"2"})
        assert list(engine.scan(b"a", b"c")) == [(b"b", b"1")]
        assert list(engine.scan(b"c", b"e")) == [(b"d", b"2")]
        assert list(engine.scan(b"e", None)) == []
        assert list(engine.scan(None, b"b")) == []

    def test_a_scan_shows_what_was_there_when_it_began(self, engine: Engine) -> None:
        """Before its first entry is taken, after some, and before its last: of changes before, at and behind it."""
        before = {b"%04d" % (2 * number): b"old" for number in range(_MANY // 2)}
        for taken in (0, 1, 700, len(before) - 1, len(before)):
            engine.apply({**dict.fromkeys(_content(engine)), **before})
            scan = engine.scan(None, None)
            first = list(islice(scan, taken))
            engine.apply({b"%04d" % number: b"new" if number % 3 else None for number in range(_MANY)})
            engine.apply({b"%04d" % number: None for number in range(0, _MANY, 5)})
            assert first + list(scan) == sorted(before.items())

    def test_scans_beside_each_other(self, engine: Engine) -> None:
        expected: list[dict[bytes, bytes]] = []
        scans: list[Iterator[tuple[bytes, bytes]]] = []
        for number in range(6):
            engine.apply({b"%d" % number: b"v", b"0": b"%d" % number, b"%d" % (number - 2): None})
            expected.append(_content(engine))
            scans.append(engine.scan(None, None))
        found: list[dict[bytes, bytes]] = [{} for _ in scans]
        for _ in range(max(map(len, expected)) + 1):  # one entry of each in turn
            for own, scan in zip(found, scans, strict=True):
                own.update(list(islice(scan, 1)))
        assert found == expected

    def test_a_scan_may_be_left(self, engine: Engine) -> None:
        engine.apply({b"%d" % number: b"" for number in range(100)})
        scans = [engine.scan(None, None) for _ in range(10)]
        for scan in scans:
            next(scan)
        del scan
        scans.clear()
        engine.apply({b"new": b"1"})
        assert engine.get(b"new") == b"1"

    # -- batches --

    def test_readers_see_all_of_a_batch_or_nothing(self, engine: Engine) -> None:
        """Several threads scan while one applies."""
        keys = [b"%05d" % number for number in range(0, 2000, 7)]
        engine.apply(dict.fromkeys(keys, b"0"))
        done = threading.Event()

        def scan() -> int:
            scans = 0
            while not done.is_set() or not scans:
                found = list(engine.scan(b"00100", b"01500"))
                assert len(found) == 200
                assert len({value for _, value in found}) == 1
                scans += 1
            return scans

        with ThreadPoolExecutor(3) as threads:
            scanning = [threads.submit(scan) for _ in range(3)]
            try:
                for batch in range(1, 50):
                    others = {b"x%d-%d" % (batch, number): b"" for number in range(20)}
                    engine.apply({**dict.fromkeys(keys, b"%d" % batch), **others})
            finally:
                done.set()
            assert all(each.result(_WAIT_S) for each in scanning)

    @pytest.mark.parametrize("seed", range(6))
    def test_any_changes_read_as_a_dict_does(
        self, engine: Engine, open_engine: OpenEngine, tmp_path: Path, seed: int
    ) -> None:
        """Small and large changes, applied and loaded, with copies in between."""
        rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        model: dict[bytes, bytes] = {}
        for step in range(16):
            count, deletes = rng.choice((0, 1, 40, 999, 1000, 1900)), rng.choice((0.0, 0.2, 1.0))
            changes: dict[bytes, bytes | None] = {
                b"%04d" % key: None if rng.random() < deletes else rng.randbytes(rng.randrange(60))
                for key in rng.sample(range(2000), count)
            }
            changes |= {key: rng.randbytes(3) for key in rng.sample(_KEYS, 2)}
            (engine.load if rng.random() < 0.4 else engine.apply)(changes)
            _note(model, changes)
            for key in (*rng.sample(_KEYS, 3), *(b"%04d" % rng.randrange(2000) for _ in range(5))):
                assert engine.get(key) == model.get(key)
            start, end = sorted((b"%04d" % rng.randrange(2000), b"%04d" % rng.randrange(2000)))
            assert list(engine.scan(start, end)) == sorted((k, v) for k, v in model.items() if start <= k < end)
            assert list(engine.scan(None, None)) == sorted(model.items())
            if step % 5 == 4:
                self._same(open_engine, self._copy(engine, tmp_path / f"copy-{step}"), model)

    def test_everything_can_be_deleted_and_put_again(self, engine: Engine) -> None:
        for value in (b"first", b"second"):
            entries = {b"%05d" % number: value for number in range(_MANY)}
            engine.load(entries)
            assert _content(engine) == entries
            engine.apply(dict.fromkeys(entries))
            assert list(engine.scan(None, None)) == []
            assert engine.get(b"00000") is None

    def test_a_write_that_fails_is_reported_and_nothing_is_lost_meanwhile(
        self, faulty: tuple[Engine, Callable[[], None]] | None, tmp_path: Path
    ) -> None:
        """Changes of an `apply` that returned are seen, changes of one that raised are not. There is no copy without
        them."""
        if faulty is None:
            pytest.skip("the engine's writes fail at once or never")
        engine, fail = faulty
        model: dict[bytes, bytes] = {}
        refused = False
        for number in range(20):
            if number == 5:
                fail()
            changes: Changes = {b"%d" % number: b"v", b"%d" % (number - 3): None}
            try:
                engine.apply(changes)
            except Exception:
                refused = True
            else:
                assert not refused
                _note(model, changes)
            assert _content(engine) == model
            assert engine.get(b"%d" % number) == model.get(b"%d" % number)
        with pytest.raises(Exception):  # noqa: B017, PT011 - every engine has its own
            engine.copy_to(tmp_path / "copy")
        assert _content(engine) == model
        engine.close()

    # -- copies, close and reopen --

    def test_a_copy_is_what_was_there(self, engine: Engine, open_engine: OpenEngine, tmp_path: Path) -> None:
        """Whatever is changed afterwards; a copy of a copy; one that was moved."""
        first = {b"%05d" % number: b"first" for number in range(_MANY)}
        self._same(open_engine, self._copy(engine, tmp_path / "empty"), {})
        engine.load(first)
        copy = self._copy(engine, tmp_path / "not" / "yet" / "copy")
        engine.load(dict.fromkeys(first, b"second"))
        engine.apply({**dict.fromkeys(islice(first, 1000)), b"new": b"1"})
        later = self._copy(engine, tmp_path / "later")
        moved = copy.rename(tmp_path / "moved")
        self._same(open_engine, moved, first)
        self._same(open_engine, later, {**dict.fromkeys(islice(first, 1000, None), b"second"), b"new": b"1"})
        assert engine.get(b"new") == b"1"

    def test_a_copy_outlives_its_engine_and_can_be_continued(self, open_engine: OpenEngine, tmp_path: Path) -> None:
        model: dict[bytes, bytes] = {}
        folder = tmp_path / "0"
        for number in range(4):
            engine = open_engine(folder)
            assert _content(engine) == model
            changes: Changes = {b"%d" % number: b"v", b"%d" % (number - 2): None, b"k": b"%d" % number}
            engine.apply(changes)
            _note(model, changes)
            folder = self._copy(engine, tmp_path / f"{number + 1}")
            engine.apply({b"not in the copy": b""})
            engine.close()
        self._same(open_engine, folder, model)

    def test_a_copy_is_not_put_over_anything(self, engine: Engine, open_engine: OpenEngine, tmp_path: Path) -> None:
        """A copy that fails leaves the engine as it was."""
        engine.apply({b"a": b"1"})
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "file").write_bytes(b"mine")
        (tmp_path / "a file").write_bytes(b"")
        for refused in (tmp_path / "there", tmp_path / "a file" / "copy"):
            with pytest.raises(Exception):  # noqa: B017, PT011 - every engine has its own
                engine.copy_to(refused)
        assert [path.read_bytes() for path in (tmp_path / "there").iterdir()] == [b"mine"]
        engine.apply({b"b": b"2"})
        self._same(open_engine, self._copy(engine, tmp_path / "copy"), {b"a": b"1", b"b": b"2"})

    def test_a_copy_while_others_scan(self, engine: Engine, open_engine: OpenEngine, tmp_path: Path) -> None:
        model = {b"%05d" % number: b"1" for number in range(_MANY)}
        engine.apply(model)
        scan = engine.scan(None, None)
        begun = list(islice(scan, 10))
        copy = self._copy(engine, tmp_path / "copy")
        engine.apply(dict.fromkeys(model))
        assert begun + list(scan) == sorted(model.items())
        self._same(open_engine, copy, model)

    def test_close_with_an_open_scan(self, open_engine: OpenEngine, tmp_path: Path) -> None:
        engine = open_engine(tmp_path / "closed")
        engine.apply({b"%d" % number: b"" for number in range(100)})
        scan = engine.scan(None, None)
        next(scan)
        engine.close()
        del scan

    def _copy(self, engine: Engine, folder: Path) -> Path:
        engine.copy_to(folder)
        return folder

    def _same(self, open_engine: OpenEngine, folder: Path, expected: Changes) -> None:
        copied = open_engine(folder)
        try:
            assert _content(copied) == expected
        finally:
            copied.close()
