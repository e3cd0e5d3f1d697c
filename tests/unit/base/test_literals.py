"""Texts that are values: the same ones wherever a text becomes a value, and no other."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.admin.state.serdes import Texts
from penstock.arrays.json_rows import JsonRows
from penstock.base.exact_json import decimal_of, float_of, uuid_of, whole_of
from penstock.errors import ConfigError
from penstock.schemas.avro_values import MisfitError, logical_of
from penstock.system.database.rows import TableColumn
from penstock.system.rows.messages import cell_reader, path_scalar

KIND = pa.decimal128(38, 6)
STRICT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
TEXTS = st.one_of(
    st.text(st.sampled_from("0123459.+-eE_ \t\n\u00a0\uff11\u0663\u00b2"), max_size=8),
    st.decimals(allow_nan=False, places=3, min_value=-(10**9), max_value=10**9).map(str),
)


def in_row(text: str) -> Decimal | None:
    rows, problems = JsonRows([pa.field("d", KIND)]).read([orjson.dumps({"d": text})])
    return None if problems else rows[0]["d"].as_py()


def nested(text: str) -> Decimal | None:
    kind = pa.struct([("s", pa.map_(pa.string(), pa.list_(KIND)))])
    rows, problems = JsonRows([pa.field("d", kind)]).read([orjson.dumps({"d": {"s": {"k": [text]}}})])
    return None if problems else rows[0]["d"]["s"].as_py()[0][1][0]


def in_csv(text: str) -> Decimal | None:
    return in_row(cell_reader(KIND)(text))


def in_path(text: str) -> Decimal | None:
    try:
        found = path_scalar(text, pa.field("d", KIND)).as_py()
    except ValueError:
        return None
    assert isinstance(found, Decimal)
    return found


def in_table(text: str) -> Decimal | None:
    try:
        found = TableColumn("d", "decimal", "DECIMAL(38, 6)", precision=38, scale=6).of_json(text)
    except ValueError:
        return None
    assert isinstance(found, Decimal)
    return found


@given(TEXTS)
@example("1_0.5")
@example(" 1.5")
@example("1.5\n")
@example("\uff11\uff12")
@example("Infinity")
@example("nan")
@example("sNaN1")
@example("1e999999999999")
@example("5.")
def test_a_decimal_is_the_same_wherever_it_comes_from(text: str) -> None:
    expected = None
    if STRICT.fullmatch(text):
        number = Decimal(text)
        if number.adjusted() < 32 and number == round(number, 6):
            expected = number
    assert [read(text) for read in (in_row, nested, in_csv, in_path, in_table)] == [expected] * 5


@pytest.mark.parametrize("literal", ["1.50", "-0.0", "12", "1E2", "1e-6", "12345678901234567890123456789012.123456"])
def test_a_number_keeps_its_digits(literal: str) -> None:
    rows, problems = JsonRows([pa.field("d", KIND)]).read([b'{"d":%b}' % literal.encode()])
    assert (problems, rows[0]["d"].as_py()) == ({}, Decimal(literal))


@pytest.mark.parametrize("value", [True, [1], {"a": 1}, [[1.5]], "", "1,5"])
def test_others_are_no_decimals(value: Any) -> None:
    rows, problems = JsonRows([pa.field("d", KIND)]).read([orjson.dumps({"d": value}), b'{"d":1.5}'])
    assert list(problems) == [0]
    assert "field `d` does not fit decimal128(38, 6)" in problems[0]
    assert "no decimal" in problems[0]
    assert rows[1]["d"].as_py() == Decimal("1.5")


ODD = ["1_0", " 1", "1 ", "\uff11", "\u0663", "\u00b2", "", "0x1", "1_0.5"]


@pytest.mark.parametrize("text", ODD)
def test_odd_numbers_are_none(text: str) -> None:
    for read in (decimal_of, float_of, whole_of):
        with pytest.raises(ValueError, match="is no"):
            read(text)
    for serde in ("long", "integer", "double"):
        with pytest.raises(ConfigError, match="is not a key of the serde"):
            Texts("key", serde).parse(text)


ID = "12345678-1234-5678-1234-567812345678"


@pytest.mark.parametrize("text", [ID, ID.replace("-", ""), f"{{{ID}}}", f"urn:uuid:{ID}", ID.upper()])
def test_uuids(text: str) -> None:
    assert uuid_of(text) == UUID(ID)


@pytest.mark.parametrize(
    "text",
    [
        "1_345678-1234-5678-1234-567812345678",
        f" {ID}",
        f"{ID}\n",
        ID.replace("1", "\uff11"),
        ID[:-1],
        f"-{ID}",
        "+" + ID[1:],
    ],
)
def test_odd_uuids_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no UUID"):
        uuid_of(text)
    with pytest.raises(ValueError, match="is not a UUID"):
        TableColumn("u", "uuid", "UUID").of_json(text)
    logical = logical_of({"type": "string", "logicalType": "uuid"})
    assert logical is not None
    with pytest.raises(MisfitError):
        logical.plain(text)
