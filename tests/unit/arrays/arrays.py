"""Random columns of Arrow, for tests that compare what is done to them with a plain computation."""

from __future__ import annotations

import math
import random
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

FLAT = [
    pa.int8(),
    pa.int64(),
    pa.uint16(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.binary(5),
    pa.date32(),
    pa.date64(),
    pa.timestamp("ms"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.timestamp("ns", "UTC"),
    pa.duration("ms"),
    pa.time32("s"),
    pa.time64("us"),
    pa.decimal128(20, 3),
    pa.decimal256(50, 2),
]


def types() -> st.SearchStrategy[Any]:
    """Types of a schema's fields, nested ones among them."""

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            inner.map(pa.list_),
            inner.map(lambda kind: pa.struct([("x", kind), ("y", pa.int32())])),
            inner.map(lambda kind: pa.map_(pa.string(), kind)),
            inner.map(lambda kind: pa.list_(kind, 2)),
            inner.map(pa.large_list),
        )

    return st.recursive(st.sampled_from(FLAT), nested, max_leaves=3)


def column(kind: pa.DataType, count: int, chance: random.Random, *, nulls: float = 0.3) -> pa.Array:
    """So many values of the type, some of them null."""
    null = np.array([chance.random() < nulls for _ in range(count)], bool)
    if pa.types.is_struct(kind):
        fields = [column(field.type, count, chance) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(null))
    if pa.types.is_fixed_size_list(kind):
        elements = column(kind.value_type, 2 * count, chance)
        return pa.FixedSizeListArray.from_arrays(elements, 2, mask=pa.array(null)).cast(kind)
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _varying(kind, null, chance)
    if (steps := _STEPS.get(kind.id)) is not None:
        numbers = [None if skipped else chance.randint(*steps[1]) for skipped in null]
        return pa.array(numbers, steps[0]).cast(kind)
    return pa.array([None if skipped else _value(kind, chance) for skipped in null], kind)


def _varying(kind: pa.DataType, null: Any, chance: random.Random) -> pa.Array:
    lengths = [0 if skipped else chance.randint(0, 3) for skipped in null]
    ends = np.cumsum([0, *lengths])
    if pa.types.is_map(kind):
        keys = pa.array([f"k{number}" for number in range(ends[-1])], pa.string())
        entries = column(kind.item_type, int(ends[-1]), chance)
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, entries).cast(kind)
    wide = pa.types.is_large_list(kind)
    starts = [None if n < len(null) and null[n] else int(end) for n, end in enumerate(ends)]
    made = (pa.LargeListArray if wide else pa.ListArray).from_arrays(
        pa.array(starts, pa.int64() if wide else pa.int32()), column(kind.value_type, int(ends[-1]), chance)
    )
    return made.cast(kind)


_STEPS = {
    pa.date32().id: (pa.int32(), (-80_000, 80_000)),
    pa.time32("s").id: (pa.int32(), (0, 86_399)),
    pa.time64("us").id: (pa.int64(), (0, 86_399_999_999)),
    pa.timestamp("ms").id: (pa.int64(), (-(8 * 10**10), 8 * 10**10)),
    pa.duration("ms").id: (pa.int64(), (-(10**15), 10**15)),
}


def _value(kind: pa.DataType, chance: random.Random) -> Any:
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_floating(kind):
        return chance.choice([0.0, -0.0, 1.5, math.nan, math.inf, -2.25])
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        least = -(2 ** (kind.bit_width - 1)) if signed else 0
        most = 2 ** (kind.bit_width - signed) - 1
        return chance.choice([least, most, 1, chance.randint(least, most)])
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return chance.randbytes(kind.byte_width)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "".join(chance.choices("aé€\0😀", k=chance.randint(0, 6)))
    if pa.types.is_binary(kind):
        return chance.randbytes(chance.randint(0, 6))
    if pa.types.is_decimal(kind):
        return Decimal(chance.randint(-(10**9), 10**9)).scaleb(-kind.scale)
    return date(1970, 1, 1) + timedelta(days=chance.randint(-100_000, 100_000))


def rows(kinds: list[pa.DataType], count: int, chance: random.Random) -> pa.StructArray:
    """Rows of a schema with these types, as a slice of a longer array."""
    fields = [pa.field(f"c{number}", kind) for number, kind in enumerate(kinds)]
    columns = [column(kind, count + 3, chance) for kind in kinds]
    return pa.StructArray.from_arrays(columns, fields=fields).slice(1, count)
