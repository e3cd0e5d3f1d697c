"""CSV and lines of JSON: headers, cells and names of any kind, and rows that cannot be read."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import fs

import penstock as ps
from penstock.errors import CorruptError
from penstock.system.contract.messages import unreadable_row
from penstock.system.files import formats as csv_module
from penstock.system.files.formats import SourceFile, numbered_rows, read_rows
from tests.support.streams.folder import Room, chunks, parquet

CELLS = st.text(st.sampled_from("a1 ,;\"'\r\n\té\ud7ff\0"), max_size=6)


def source(path: Path, **added: str | None) -> SourceFile:
    return SourceFile(fs.LocalFileSystem(), str(path), str(path), path.name, added)


def rows_of(path: Path, schema: pa.Schema | None = None) -> list[Any]:
    return [json.loads(row) for row in read_rows(source(path), "csv", schema=schema)]


@pytest.mark.parametrize("blank", ["\n", "\r\n", "\n\n  \n", "\ufeff\n", "\t\r"])
def test_blank_lines_before_the_header(room: Room, blank: str) -> None:
    room.put("a.csv", f"{blank}k,v\na,1\n\n\nb,2".encode())
    assert room.all() == [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]


@given(
    rows=st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=8),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    blank=st.integers(0, 3),
    first=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cells_of_any_text(tmp_path: Path, rows: list[list[str]], end: str, blank: int, first: int) -> None:
    """Every cell is quoted, as the rules of CSV have it, so there is one way to read it."""
    quoted = [",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) for row in rows]
    text = end * blank + end.join(['k,"v ""x""",', *quoted])
    (tmp_path / "a.csv").write_bytes(text.encode())
    expected = [{"k": a or None, 'v "x"': b or None, "": c or None} for a, b, c in rows]
    assert rows_of(tmp_path / "a.csv") == expected
    file = source(tmp_path / "a.csv")
    found = list(numbered_rows(file, "csv", None, first))
    assert [json.loads(row) for _, row in found] == expected[first:]
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, row in found:  # the line begins with the first cell of the row
        begin = (json.loads(row)["k"] or "").replace("\r\n", "\n").replace("\r", "\n").split("\n")[0].replace('"', '""')
        assert lines[number - 1].startswith(f'"{begin}')


def test_a_row_that_does_not_fit_is_one_message_and_says_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"k,v\n" + b'g,"1\n2"\n' * 2 + b"b\n" + b"c,1,2\n" + b"d,\xff\n" + b'5\n"x"y,z"z\nlast,1')
    assert [(line, unreadable_row(row) or row) for line, row in numbered_rows(source(path), "csv")] == [
        (2, b'{"k":"g","v":"1\\n2"}'),
        (4, b'{"k":"g","v":"1\\n2"}'),
        (6, ("`a.csv`, line 6: it has 1 cell, and the header has 2", b"b")),
        (7, ("`a.csv`, line 7: it has 3 cells, and the header has 2", b"c,1,2")),
        (8, ("`a.csv`, line 8: it is not UTF-8", b"d,\xff")),
        (9, ("`a.csv`, line 9: it has 1 cell, and the header has 2", b"5")),
        (10, b'{"k":"xy","v":"z\\"z"}'),
        (11, b'{"k":"last","v":"1"}'),
    ]


@pytest.mark.parametrize("size", [130_000, 3_000_000])
@pytest.mark.parametrize("quote", ["", '"'])
def test_large_cells(tmp_path: Path, size: int, quote: str) -> None:
    (tmp_path / "a.csv").write_text(f"k,v\na,{quote}{'x' * size}{quote}\nb,1\n")
    assert rows_of(tmp_path / "a.csv") == [{"k": "a", "v": "x" * size}, {"k": "b", "v": "1"}]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"k,v\na,b\n" + b"x" * 3000, r"the row in line 3 of `.*a.csv` has .* at most 2,000 are read"),
        (b'k,v\na,"' + b"x\n" * 1500 + b'"\n', "the row in line 2 of"),
        (b'k,v\na,b\n"x\ny', "the row in line 3 opens a quote that is not closed"),
        (b"k,k\n1,2\n", "its header, line 1, has the column `k` twice"),
        (b",".join(b"%d" % n for n in range(400)) + b"\n1\n", r"the header of `.*` has 400 columns or more"),
        (b"k\xff\n1\n", "its header, line 1, is not UTF-8"),
    ],
)
def test_files_that_end_a_run_are_named_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, says: str
) -> None:
    monkeypatch.setattr(csv_module, "LINE_BYTES", 2000)
    monkeypatch.setattr(csv_module, "MOST_COLUMNS", 300)
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(CorruptError, match=says) as error:
        rows_of(tmp_path / "a.csv")
    assert str(tmp_path / "a.csv") in str(error.value)


def test_the_text_that_marks_the_end_may_be_a_cell(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"k\n{csv_module._END}\nb\n")
    assert rows_of(tmp_path / "a.csv") == [{"k": csv_module._END}, {"k": "b"}]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("A.JSON.GZ", gzip.compress(b'{"a":1}\n', mtime=0)),
        ("A.Json.Bz2", bz2.compress(b'{"a":1}')),
        ("B.NDJSON", b'{"a":1}'),
        ("a.b.JSONL.gz", gzip.compress(b'{"a":1}', mtime=0)),
        ("A.PARQUET", parquet([{"a": 1}])),
    ],
)
def test_names_in_any_case(room: Room, name: str, data: bytes) -> None:
    room.put(name, data)
    assert room.all() == [{"a": 1}]


def test_csv_names_in_any_case(room: Room) -> None:
    room.put("A.CSV.GZ", gzip.compress(b"a\n1\n"))
    assert room.all() == [{"a": "1"}]


TYPES: dict[str, tuple[pa.DataType, list[tuple[str, Any]], list[str]]] = {
    "amount": (pa.float64(), [("25.88", 25.88), ("-7", -7.0), (".5", 0.5), ("1e3", 1000.0)], ["7,5", "x", "1e999"]),
    "count": (pa.int32(), [("7", 7), ("007", 7), ("+7", 7)], ["7.0", "1_0", "0x10", str(1 << 40), " 7"]),
    "big": (pa.uint64(), [(str((1 << 64) - 1), (1 << 64) - 1)], ["-1", str(1 << 64)]),
    "done": (pa.bool_(), [("true", True), ("False", False)], ["1", "yes"]),
    "text": (pa.string(), [("7", "7"), (" a ", " a "), ("true", "true")], []),
    "at": (
        pa.timestamp("ms", "UTC"),
        [("2024-05-01T12:00:00Z", 1714564800000), ("1714564800000", 1714564800000)],
        ["2024-05-01T12:00:00", "tomorrow"],
    ),
    "day": (pa.date32(), [("2024-05-01", 19844)], ["2024-5-1", "yesterday"]),
    "exact": (pa.decimal128(10, 2), [("12.34", "12.34")], ["x"]),
    "many": (pa.list_(pa.int64()), [("[1, 2]", [1, 2])], ["1;2", "[1,", '["x"]']),
}


def plain(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return value.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32()).as_py()
    return str(value.as_py()) if pa.types.is_decimal(kind) else value.as_py()


@pytest.mark.parametrize("name", TYPES)
def test_declared_types_read_cells(tmp_path: Path, name: str) -> None:
    kind, good, bad = TYPES[name]
    path = tmp_path / "a.csv"
    cells = [text for text, _ in good] + bad + [""]
    path.write_text("".join(['unused,"value"\n', *(f'x,"{cell.replace(chr(34), chr(34) * 2)}"\n' for cell in cells)]))
    serde = ps.Columns(pa.schema({"value": kind, "absent": pa.int64()}))
    rows, problems = serde.read(list(read_rows(source(path), "csv", schema=serde.schema)))
    assert [plain(each, kind) for each in rows.field("value")[: len(good)]] == [value for _, value in good]
    assert sorted(problems) == list(range(len(good), len(good) + len(bad)))
    assert rows[len(cells) - 1].as_py() == {"value": None, "absent": None}


@pytest.mark.parametrize(
    ("ending", "data"),
    [("csv", b"n\n1\n"), ("json", b'{"n":1}\n'), ("parquet", parquet([{"n": 1}]))],
)
def test_columns_of_the_path_have_declared_types(room: Room, ending: str, data: bytes) -> None:
    room.put(f"year=2024/day=2024-05-01/open=true/note=7/a.{ending}", data)
    serde = ps.Columns(
        pa.schema({"n": pa.int64(), "year": pa.int32(), "day": pa.date32(), "open": pa.bool_(), "note": pa.string()})
    )
    (chunk,) = chunks(room, serde.schema)
    rows = serde.read([message[3] for message in chunk])[0] if isinstance(chunk, list) else chunk.values
    assert [plain(value, value.type) for value in rows[0].values()] == [1, 2024, 19844, True, "7"]
