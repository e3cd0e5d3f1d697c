"""A pushed table in memory, and views: what a dict holds, in the order of the keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.load import load_config
from penstock.errors import CorruptError, RetryableError
from penstock.state.engines.engine import EngineFailedError
from penstock.state.engines.open import open_rocksdb
from penstock.tables.store import MemoryTable, TableView, open_table

keys = st.binary(max_size=3)


@given(st.dictionaries(keys, st.binary(max_size=2)), st.none() | keys, st.none() | keys, keys)
def test_a_table_is_a_sorted_map(
    content: dict[bytes, bytes], start: bytes | None, end: bytes | None, key: bytes
) -> None:
    table = MemoryTable(sorted(content.items()))
    expected = [
        (each, value)
        for each, value in sorted(content.items())
        if (start is None or start <= each) and (end is None or each < end)
    ]
    assert list(table.scan(start, end)) == expected
    assert table.get(key) == content.get(key)
    assert all(table.get(each) == value for each, value in content.items())
    assert table.statistics() == {"keys": len(content)}
    table.close()
    assert list(table.scan(None, None)) == []


def test_the_filling_of_a_table_can_be_cancelled() -> None:
    def cancel() -> None:
        raise RetryableError("cancelled")

    with pytest.raises(RetryableError):
        MemoryTable([(b"a", b"1")], cancel)


def test_a_view_has_the_version_of_the_table_and_ends_when_it_is_released() -> None:
    damaged: list[str] = []
    view = TableView(MemoryTable([(b"a", b"1")]), "planes", 7, lambda: damaged.append("yes"))
    assert view.version == (7, 0)
    assert view.changed_since((7, 0)) == ()
    assert view.changed_since((6, 0)) is None
    assert view.get(b"a") == b"1"
    view.release()
    view.release()
    with pytest.raises(EngineFailedError, match="after its batch had ended"):
        view.get(b"a")
    with pytest.raises(EngineFailedError):
        view.scan(None, None)
    assert damaged == []


@pytest.mark.parametrize("factory", ["rocksdb", "memory"])
def test_a_table_with_other_rows_than_its_manifest_says_is_not_opened(tmp_path: Path, factory: str) -> None:
    """As after damage of the list of its files."""
    settings = load_config(overrides={"job.name": "j", "stores.planes.factory": factory}, environ={}).store("planes")
    database = open_rocksdb(settings, tmp_path / "db")
    database.load({b"a": b"1", b"b": b"2"})
    database.close()
    for rows in (1, 3):
        with pytest.raises(CorruptError, match=f"has 2 entries, and not {rows} as its manifest says"):
            open_table(settings, tmp_path / "db", rows, lambda: None)
    table = open_table(settings, tmp_path / "db", 2, lambda: None)
    assert dict(table.scan(None, None)) == {b"a": b"1", b"b": b"2"}
    table.close()
