"""The serde of rows: one row at a time has the same form as many."""

from __future__ import annotations

import math
import pickle
import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.admin.state.serdes import serde_of
from penstock.api.serdes import ColumnSerde, PackedColumns
from tests.support.faults.damaged_bytes import memory_budget
from tests.unit.arrays.arrays import rows, types

PLAIN = [pa.int8(), pa.int64(), pa.uint64(), pa.uint16(), pa.float64(), pa.bool_(), pa.string()]


def flat(value: Any) -> bool:
    return all(not isinstance(each, float) or math.isfinite(each) for each in value.values())


@given(st.lists(st.sampled_from(PLAIN) | types(), min_size=1, max_size=4), st.integers(1, 8), st.randoms())
def test_one_row_has_the_bytes_it_has_among_many(kinds: list[pa.DataType], count: int, chance: random.Random) -> None:
    given_rows = rows(kinds, count, chance)
    serdes: list[ColumnSerde] = [PackedColumns(pa.schema(list(given_rows.type)))]
    if all(kind in PLAIN for kind in kinds):
        serdes.append(ps.Columns(serdes[0].schema))
    for serde in serdes:
        for number, row in enumerate(given_rows.to_pylist()):
            if not flat(row) and isinstance(serde, ps.Columns):
                with pytest.raises(ValueError, match="NaN or an infinity"):
                    serde.to_bytes(row)
                continue
            data = serde.write(given_rows.slice(number, 1))[0] or b""
            assert repr(serde.from_bytes(data)) == repr(row)
            if not any(pa.types.is_nested(kind) or pa.types.is_temporal(kind) for kind in kinds):
                assert serde.to_bytes(row) == data
                assert serde.to_bytes({name: value for name, value in row.items() if value is not None}) == data


SERDES: list[ColumnSerde] = [
    ps.Columns(pa.schema([pa.field("n", pa.int32()), pa.field("s", pa.string(), nullable=False)])),
    PackedColumns(pa.schema([pa.field("n", pa.int32()), pa.field("s", pa.string(), nullable=False)])),
]


@pytest.mark.parametrize("serde", SERDES)
@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"s": "a", "m": 1}, "there is no column `m`; the columns are n, s"),
        ({"n": 1}, "column `s` must not be null"),
        ({"s": None}, "column `s` must not be null"),
        ({"s": "a", "n": 2**31}, "2147483648|out of bounds|too large"),
        ({"s": "a", "n": "1"}, "int"),
        ({"s": 1}, "str|bytes"),
        (["a"], "a row is a dict, not a value of type list"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(serde: ColumnSerde, row: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError), match=text):
        serde.to_bytes(row)


def test_it_is_pickled_and_named() -> None:
    json, packed = (pickle.loads(pickle.dumps(serde)) for serde in SERDES)
    assert json.name == "columns"
    assert packed.name == "columns(n:int32,s:string!)"
    assert ps.Columns(json.declared).for_store_values().name == packed.name
    assert repr(json) == "ps.Columns(n:int32,s:string!)"


def test_a_checkpoint_names_it() -> None:
    schema = pa.schema([pa.field("n", pa.int32()), pa.field("s", pa.string(), nullable=False), ("at", pa.date32())])
    serde = PackedColumns(schema)
    named = serde_of(serde.name)
    assert isinstance(named, PackedColumns)
    assert named.from_bytes(serde.to_bytes({"n": 1, "s": "a"})) == {"n": 1, "s": "a", "at": None}
    assert serde_of(PackedColumns(pa.schema({"d": pa.decimal128(5, 2)})).name) is None, "its type has no name"


def test_dictionaries_are_values() -> None:
    serde = ps.Columns(pa.schema({"a": pa.dictionary(pa.int8(), pa.string())}))
    assert serde.schema.field("a").type == pa.string()
    batch = pa.record_batch({"a": pa.array(["x", None, "x"]).dictionary_encode()})
    assert serde.fitted(batch).to_pylist() == [{"a": "x"}, {"a": None}, {"a": "x"}]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"a": pa.int8()}, "takes a pyarrow.Schema"),
        (pa.schema([]), "at least one column"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "2 columns have the name `a`"),
        (pa.schema({"a": pa.string_view()}), "field `a` has the type string_view, whose values have no JSON"),
    ],
)
def test_schemas_that_cannot_be_written_are_refused(schema: Any, text: str) -> None:
    with pytest.raises(ps.ConfigError, match=text):
        ps.Columns(schema)


FIXED = pa.list_(pa.list_(pa.int8(), 100_000))


@pytest.mark.attack
@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (pa.list_(pa.decimal128(10, 2)), ["1e-300000000"], "more than 2 digits behind the point"),
        (pa.list_(pa.decimal128(10, 2)), ["1e300000000"], "more than 8 digits before the point"),
        (FIXED, [None] * 100, "too many values without bytes"),
        (pa.map_(pa.string(), pa.list_(pa.int8(), 100_000)), {"a": None}, "too many values without bytes"),
        (pa.list_(pa.binary(1_000_000)), [None] * 10, "too many values without bytes"),
        (pa.struct({"a": FIXED}), {"a": [None] * 100}, "too many values without bytes"),
        (pa.list_(pa.struct({f"c{n}": pa.int8() for n in range(500)})), [{}] * 100, "too many values without bytes"),
    ],
)
def test_a_few_bytes_that_would_be_large_columns_are_refused(kind: pa.DataType, value: Any, why: str) -> None:
    schema = pa.schema({"c": kind})
    packs = [[each, item] for each, item in value.items()] if pa.types.is_map(kind) else value
    packed = msgspec.msgpack.encode(packs)
    with memory_budget(32 << 20):
        with pytest.raises(ValueError, match=why):
            ps.Columns(schema).from_bytes(msgspec.json.encode({"c": value}))
        with pytest.raises(ValueError, match=why):
            PackedColumns(schema).from_bytes(b"\x01\x00\x00" + len(packed).to_bytes(4, "little") + packed)


@pytest.mark.attack
def test_what_nobody_could_read_is_not_stored() -> None:
    with pytest.raises(ValueError, match="too many values without bytes"):
        PackedColumns(pa.schema({"c": FIXED})).to_bytes({"c": [None] * 100})


@pytest.mark.attack
def test_numbers_of_one_hash_are_no_keys_of_a_map() -> None:
    keys = b",".join(b'"%d":1' % (number * (2**61 - 1)) for number in range(1, 3000))
    with pytest.raises(ValueError, match="have the same hash"):
        ps.Columns(pa.schema({"m": pa.map_(pa.uint64(), pa.int64())})).from_bytes(b'{"m":{%b}}' % keys)
