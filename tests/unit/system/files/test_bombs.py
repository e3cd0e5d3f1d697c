"""From the side of somebody who may write an input: small files that would make any number of bytes, or nothing."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import fs

from penstock.errors import CorruptError
from penstock.system.files import formats
from penstock.system.files.formats import Format, SourceFile, read_columns, read_rows
from penstock.system.rows import reader

pytestmark = pytest.mark.attack


def source(path: Path) -> SourceFile:
    return SourceFile(fs.LocalFileSystem(), str(path), str(path), path.name, {})


def repeated(count: int, size: int, *, nested: bool, plain: bool, numbers: bool = False) -> bytes:
    """Rows that all have one long text; here and there another, or none."""
    texts = pa.array(["x" * size, "short"])
    indices = pa.array([None if n % 7 == 3 else n % 5 == 4 for n in range(count)], pa.bool_()).cast(pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, texts).dictionary_decode()
    if nested:
        column = pa.StructArray.from_arrays([column], ["a"])
    columns = {"t": column, "n": pa.array(range(count))}
    if numbers:
        columns["k"] = pa.array(["a", "b"] * (count // 2)).dictionary_encode()
    sink = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), sink, compression="zstd", use_dictionary=not plain, row_group_size=300)
    return sink.getvalue()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_batches_have_as_many_rows_as_their_bytes_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool, plain: bool
) -> None:
    count, size = 1000, 50_000
    (tmp_path / "a.parquet").write_bytes(repeated(count, size, nested=nested, plain=plain))
    assert (tmp_path / "a.parquet").stat().st_size < count * size // 100
    monkeypatch.setattr(reader, "BATCH_BYTES", 1 << 20)
    expected = pa.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    found = []
    with reader.opened_parquet(fs.LocalFileSystem().open_input_file(str(tmp_path / "a.parquet")), "a") as file:
        for batch in reader.row_batches(file, 3, 4096):
            assert batch.nbytes < 2 << 20
            found += batch.to_pylist()
    assert found == expected[3:]
    assert len(list(read_rows(source(tmp_path / "a.parquet"), "parquet", 17))) == count - 17
    schema = pa.schema({"n": pa.int64(), "t": pa.struct({"a": pa.string()}) if nested else pa.string()})
    chunks = list(read_columns(source(tmp_path / "a.parquet"), 5, schema, 1 << 15))
    assert [n for chunk in chunks for n in chunk.field("n").to_pylist()] == list(range(5, count))
    assert chunks[0].type == pa.struct(list(schema))


def test_columns_that_arrow_wrote_as_dictionaries_keep_their_values(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(repeated(100, 9000, nested=False, plain=False, numbers=True))
    table = pa.parquet.read_table(tmp_path / "a.parquet")
    table = table.append_column("d", pa.array([5, 6] * 50).dictionary_encode())
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with reader.opened_parquet(fs.LocalFileSystem().open_input_file(str(tmp_path / "a.parquet")), "a") as file:
        found = [row for batch in reader.row_batches(file, 0, 64) for row in batch.to_pylist()]
    assert found == table.to_pylist()


def test_a_list_of_a_hundred_million_values_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller here: the limits are."""
    many = pa.ListArray.from_arrays(pa.array([0, 30_000], pa.int32()), pa.nulls(30_000, pa.int8()))
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"l": many}), path, compression="zstd")
    assert path.stat().st_size < 1000
    assert len(list(read_rows(source(path), "parquet"))) == 1
    monkeypatch.setattr(reader, "GROUP_VALUES", 5000)
    monkeypatch.setattr(reader, "_CHECKED", reader._CheckedFooters())  # as in a process of these limits
    with pytest.raises(CorruptError, match=r"the lists of column `l.list.element` of `.*a.parquet` has 30,000 values"):
        list(read_rows(source(path), "parquet"))


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Format, end: bytes) -> None:
    monkeypatch.setattr(formats, "BLANK_LINES", 1000)
    monkeypatch.setattr("penstock.system.files.formats.BLANK_LINES", 1000)
    path = tmp_path / f"a.{kind}.gz"
    path.write_bytes(gzip.compress(b"1" + end * 1000 + b"2" + end * 1000 + b"3"))
    assert len(list(read_rows(source(path), kind))) == (3 if kind == "json" else 2)
    path.write_bytes(gzip.compress(b"1" + end * 900_000))
    with pytest.raises(CorruptError, match=r"a.*, up to line 1,00\d, has 1,001 blank lines in a row or more"):
        list(read_rows(source(path), kind))


def test_a_header_of_a_million_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"," * 900_000 + b"\n1\n"))
    assert path.stat().st_size < 2000
    with pytest.raises(CorruptError, match=r"the header of .* has 900,001 columns or more; at most 20,000"):
        list(read_rows(source(path), "csv"))
