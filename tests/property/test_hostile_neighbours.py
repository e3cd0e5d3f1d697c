"""Neighbours of reported attacks, from the side of somebody who writes messages, state or files."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import fs

import penstock as ps
from penstock.base.exact_json import exact_value
from penstock.base.secrets import is_secret
from penstock.errors import CorruptError
from penstock.system.files import formats
from penstock.system.files.formats import SourceFile, read_columns, read_rows
from penstock.testing import TestRunner

pytestmark = pytest.mark.attack
MODULUS = (1 << 61) - 1
KEYS = [str(MODULUS * count) for count in range(1, 3000)]


def source(path: Path) -> SourceFile:
    return SourceFile(fs.LocalFileSystem(), str(path), str(path), path.name, {})


def escaped(text: str) -> str:
    return f"{text[:-1]}\\u{ord(text[-1]):04x}"


def listed(texts: Iterable[str]) -> bytes:
    return f"""["{'","'.join(texts)}"]""".encode()


def wide(text: str) -> str:
    return "".join(chr(0x660 + int(digit)) for digit in text)


def test_numbers_of_one_hash_in_any_spelling_are_refused() -> None:
    members = {
        "escapes": [*map(escaped, KEYS)],
        "other scripts": [*map(wide, KEYS)],
        "underscores": ["_".join(each) for each in KEYS],
        "exponents": [
            f"{7 * pow(10, e, MODULUS) % MODULUS + q * MODULUS}e-{e}" for e in range(1, 900) for q in range(3)
        ],
    }
    for each in members.values():
        with pytest.raises(ValueError, match="have the same hash"):
            ps.Struct(set[Decimal]).from_bytes(listed(each))
    with pytest.raises(ValueError, match="have the same hash"):
        ps.Struct(dict[int, int]).from_bytes(("{" + ",".join(f'"{escaped(x)}":1' for x in KEYS) + "}").encode())
    uuids = [escaped(str(UUID(int=7 + MODULUS * count))) for count in range(1, 3000)]
    with pytest.raises(ValueError, match="have the same hash"):
        ps.Struct(set[UUID]).from_bytes(listed(uuids))
    others = listed(f"{number}.25e3" for number in range(10**12, 10**12 + 3000))
    assert len(ps.Struct(set[Decimal]).from_bytes(others)) == 3000


@pytest.mark.parametrize(
    "data", [b'!{"$Fraction":["1e300000000"]}', b'!{"$Fraction":["1e300000000",1]}', b'!{"$Decimal":"1e-300000000"}']
)
def test_state_with_an_exponent_of_any_size(data: bytes) -> None:
    with pytest.raises((TypeError, ValueError, IndexError)):
        exact_value(data)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["fixed", "prefixes"])
def test_parquet_that_repeats_bytes_in_other_ways(tmp_path: Path, kind: str, nested: bool) -> None:
    count, size = 2000, 100_000
    values = [b"x" * size] * count
    column: pa.Array = pa.array(values, pa.binary(size) if kind == "fixed" else pa.binary())
    if nested:
        column = pa.StructArray.from_arrays([column], ["a"])
    table, path = pa.table({"c": column}), tmp_path / "a.parquet"
    how = {"use_dictionary": False, "column_encoding": {"c.a" if nested else "c": "DELTA_BYTE_ARRAY"}}
    pa.parquet.write_table(table, path, compression="zstd", **({} if kind == "fixed" else how))
    assert path.stat().st_size < 2000
    chunks = list(read_columns(source(path), 0, table.schema, 1 << 15))
    assert max(each.nbytes for each in chunks) < 80 << 20
    assert sum(map(len, chunks)) == count


def test_a_cell_of_any_number_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "BLANK_LINES", 1000)
    path = tmp_path / "a.csv"
    path.write_bytes(b'k\n"' + b"\n" * 900 + b'"\n')
    assert len(list(read_rows(source(path), "csv"))) == 1
    path.write_bytes(b'k\n"' + b"\n" * 1100 + b'"\n')
    with pytest.raises(CorruptError, match=r"the row in line 2 of .* has 1,001 lines or more"):
        list(read_rows(source(path), "csv"))


@pytest.mark.parametrize("cut", [False, True])
def test_distinct_counts_nan_once_however_batches_fall(cut: bool) -> None:
    app = ps.StreamApplication("distinct")
    counted = app.input("local.i", value=ps.Double()).aggregate({"n": ps.Distinct()}, id="n")
    counted.map(lambda row: row["n"]).send_to(app.output("local.o"))
    runner = TestRunner(app, partitions=1)
    for value in (float("nan"), float("nan"), 1.0):
        runner.input("local.i", [("a", value)])
        if cut:
            runner.run().commit().crash().restore()
    runner.run()
    assert runner.output("local.o")[-1].value == 2
    runner.close()


@pytest.mark.parametrize(
    "name", ["app.creds", "fernet.key", "auth_key", "x-functions-key", "consumer_key", "unseal.key"]
)
def test_more_names_of_secrets(name: str) -> None:
    assert is_secret(name)
