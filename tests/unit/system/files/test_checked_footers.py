"""Each batch opens its Parquet files again. A file that was checked is not checked again, and any other one is."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import fs

from penstock.errors import CorruptError
from penstock.system.files.formats import SourceFile, read_columns, read_rows
from penstock.system.rows import reader

SCHEMA = pa.schema({"n": pa.int64(), "t": pa.string()})


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of the files that are checked, in a process that has checked none."""
    titles: list[str] = []
    check = reader._check_chunks

    def noted(source: Any, metadata: Any, title: str) -> None:
        titles.append(title)
        check(source, metadata, title)

    monkeypatch.setattr(reader, "_check_chunks", noted)
    monkeypatch.setattr(reader, "_CHECKED", reader._CheckedFooters())
    return titles


def written(first: int, *, text: str = "x", groups: int = 4) -> bytes:
    sink = io.BytesIO()
    rows = range(first, first + 100 * groups)
    table = pa.table({"n": rows, "t": [f"{text}{n:06}" for n in rows]}, SCHEMA)
    pa.parquet.write_table(table, sink, row_group_size=100, compression="none")
    return sink.getvalue()


def damaged(data: bytes) -> Iterator[bytes]:
    """The file with one other byte in its footer, where the check refuses it."""
    for at in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8):
        changed = data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
        try:
            reader.opened_parquet(io.BytesIO(changed), "damaged")
        except CorruptError:
            yield changed
        except Exception:  # Arrow cannot even parse it
            continue


def test_a_file_is_checked_once_for_all_that_read_it(tmp_path: Path, checked: list[str]) -> None:
    for name, first in (("a.parquet", 0), ("b.parquet", 1000)):
        (tmp_path / name).write_bytes(written(first))
    found: dict[str, list[int]] = {}
    for _ in range(3):
        for name in ("a.parquet", "b.parquet"):
            path = tmp_path / name
            source = SourceFile(fs.LocalFileSystem(), str(path), name, name, {})
            rows = pa.array([*read_rows(source, "parquet", 150)]).to_pylist()
            columns = [row["n"] for batch in read_columns(source, 150, SCHEMA, 64) for row in batch.to_pylist()]
            assert [f'{{"n":{n},"t":"x{n:06}"}}'.encode() for n in columns] == rows
            assert found.setdefault(name, columns) == columns
    assert found == {"a.parquet": [*range(150, 400)], "b.parquet": [*range(1150, 1400)]}
    assert checked == ["a.parquet", "b.parquet"]


def test_a_file_that_is_replaced_is_checked_again(tmp_path: Path, checked: list[str]) -> None:
    """The name, the size and the time are those of the file before."""
    path, data = tmp_path / "a.parquet", written(0)
    broken = next(damaged(data))
    path.write_bytes(data)
    before = path.stat()
    source = SourceFile(fs.LocalFileSystem(), str(path), "a", "a.parquet", {})
    assert len([*read_rows(source, "parquet")]) == 400
    for content, is_good in ((broken, False), (broken, False), (written(7), True), (data, True)):
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        if is_good:
            assert len([*read_rows(source, "parquet")]) == 400
        else:
            with pytest.raises(CorruptError, match="`a` is damaged"):
                list(read_rows(source, "parquet"))
    assert checked.count("a") == 4  # not the last one again


def test_a_footer_before_less_data_is_checked_again(checked: list[str]) -> None:
    """Its column chunks may lie outside of the file."""
    data = written(0)
    reader.opened_parquet(io.BytesIO(data), "whole")
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
    with pytest.raises(CorruptError):
        reader.opened_parquet(io.BytesIO(data[:4] + footer), "cut")
    assert checked == ["whole", "cut"]


def test_as_many_as_fit_are_remembered(checked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MOST_CHECKED", 3)
    for number in (0, 1, 2, 3, 1, 2, 3, 0):
        reader.opened_parquet(io.BytesIO(written(1000 * number)), str(number))
    assert checked == ["0", "1", "2", "3", "0"]
    assert len(reader._CHECKED._found) == 3


class CountedFile(io.BytesIO):
    """A file that counts what is read of it."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def test_no_row_is_read_to_open_a_file(checked: list[str]) -> None:
    data = written(0, text="long" * 500)
    assert len(data) > 800_000
    for _ in range(2):
        source = CountedFile(data)
        reader.opened_parquet(source, "a")
        assert source.count < 100_000
    assert checked == ["a"]


def test_a_large_footer_is_read_whole(checked: list[str]) -> None:
    data = written(0, groups=400)
    assert int.from_bytes(data[-8:-4], "little") > reader._END_BYTES
    for _ in range(2):
        with reader.opened_parquet(io.BytesIO(data), "a") as file:
            assert [row["n"] for batch in reader.row_batches(file, 39_990, 64) for row in batch.to_pylist()] == [
                *range(39_990, 40_000)
            ]
    assert checked == ["a"]


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1PAR1", b"x" * 100, b"\xff\xff\xff\xffPAR1", b"\xff\xff\xff\x7fPAR1"]
)
def test_what_is_no_parquet_is_an_error_of_arrow(data: bytes, checked: list[str]) -> None:
    with pytest.raises((pa.ArrowException, OSError)):
        reader.opened_parquet(io.BytesIO(data), "a")
    assert checked == []
