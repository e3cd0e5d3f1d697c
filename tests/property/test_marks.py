"""An engine that writes behind goes back to exactly the content that was marked, whatever was written since."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.engines import open as open_module
from penstock.state.engines.open import EngineMark, WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine

KEYS = st.integers(0, 15).map(lambda n: b"k%d" % n)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=8)
STEPS = st.lists(st.one_of(CHANGES, st.sampled_from(["mark", "settle", "forget the oldest"])), max_size=14)
_BUFFER = 1 << 20


@given(steps=STEPS, gather_bytes=st.sampled_from([0, 1000, 1 << 20]), newest=st.booleans())
def test_it_goes_back(steps: list[dict[bytes, bytes | None] | str], gather_bytes: int, newest: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as writer:
        below = RocksDbEngine(Path(folder) / "db", block_cache_bytes=_BUFFER, write_buffer_bytes=_BUFFER)
        engine = WriteBehindEngine(below, writer, gather_bytes)
        content: dict[bytes, bytes] = {}
        marks: list[tuple[EngineMark, dict[bytes, bytes]]] = []
        for step in ["mark", *steps]:
            if isinstance(step, dict):
                engine.apply(step)
                content = {key: value for key, value in (content | step).items() if value is not None}
            elif step == "mark":
                made = engine.mark(_BUFFER)
                assert made is not None
                marks.append((made, content))
            elif step == "settle":
                engine.settle()
            elif len(marks) > 1:
                engine.release(marks.pop(0)[0])
        mark, expected = marks[-1] if newest else marks[0]
        again = engine.go_back(mark, time.monotonic() + 60)
        try:
            assert dict(again.scan(None, None)) == expected
            again.flush()  # type: ignore[attr-defined]
        finally:
            again.close()
        again = RocksDbEngine(Path(folder) / "db", block_cache_bytes=_BUFFER, write_buffer_bytes=_BUFFER)
        assert dict(again.scan(None, None)) == expected
        again.close()


def test_a_mark_behind_too_many_changes_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_module, "_NOTED_BYTES", _BUFFER // 100)
    below = RocksDbEngine(tmp_path / "db", block_cache_bytes=_BUFFER, write_buffer_bytes=_BUFFER)
    with ThreadPoolExecutor(1) as writer:
        engine = WriteBehindEngine(below, writer, _BUFFER)
        first = engine.mark(_BUFFER)
        engine.apply({b"%d" % n: b"" for n in range(60)})
        second = engine.mark(_BUFFER)
        assert first is not None
        assert second is not None
        engine.apply({b"%d" % n: b"" for n in range(50, 120)})
        assert (first.is_lost, second.is_lost) == (True, False)
        assert not first.changed
        assert not first.above
        assert engine.mark(1000) is None, "what is gathered takes more"
        assert len(dict(engine.go_back(second, time.monotonic() + 60).scan(None, None))) == 60
        below.close()
