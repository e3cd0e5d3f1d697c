"""A value in a message that no type holds is one row that does not fit, whatever stands beside it."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps

DEEP = "[" * 1100 + "]" * 1100
MONEY, LONG_MONEY = pa.decimal128(38, 2), pa.decimal256(76, 10)
TOKYO, BERLIN = pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("ns", "Europe/Berlin")
UNFIT = [
    (MONEY, '"1e-300000000"'),
    (MONEY, "1e-300000000"),
    (MONEY, '"1e300000000"'),
    (MONEY, '"-1e-999999999999999999"'),
    (MONEY, f'"{"9" * 1_000_000}"'),
    (MONEY, f'"0.{"1" * 1_000_000}"'),
    (MONEY, '"1.005"'),
    (MONEY, '"NaN"'),
    (MONEY, '"sNaN"'),
    (MONEY, '"-Infinity"'),
    (LONG_MONEY, '"1e-300000000"'),
    (pa.list_(MONEY), '["1e-300000000"]'),
    (pa.struct({"a": pa.map_(pa.string(), MONEY)}), '{"a": {"b": "1e-300000000"}}'),
    (pa.decimal128(5, -3), '"1e300000000"'),
    (TOKYO, '"9999-12-31T23:59:59Z"'),
    (TOKYO, '"0001-01-01T00:00:00+10:00"'),
    (TOKYO, "253402300799000"),
    (TOKYO, "99999999999999999999"),
    (pa.timestamp("s", "UTC"), '"0001-01-01T00:00:00+01:00"'),
    (pa.list_(TOKYO), '["9999-12-31T23:59:59Z"]'),
    (BERLIN, "9223372036855"),
    (BERLIN, "-9223372036855"),
    (BERLIN, '"1677-09-21T00:12:43.145224192Z"'),
    (BERLIN, '"9999-01-01T00:00:00Z"'),
    (BERLIN, '"2024-01-01T00:00:00"'),
    (pa.timestamp("ns"), "0"),
    (pa.time64("us"), "-1"),
    (pa.time64("ns"), "86400000000000"),
    (pa.time32("s"), "86400"),
    (pa.list_(pa.time32("ms")), "[86400000]"),
    (pa.float32(), "1e39"),
    (pa.float16(), "65520"),
    (pa.list_(pa.float32()), "[-1e39]"),
    (pa.float64(), "1e400"),
    (pa.int64(), "9223372036854775808"),
    (pa.uint64(), "18446744073709551616"),
    (pa.uint64(), "9" * 10_000),
    (pa.int64(), DEEP),
    (pa.list_(pa.list_(pa.int64())), DEEP),
]


@pytest.mark.parametrize(("kind", "text"), UNFIT, ids=lambda each: str(each)[:40])
def test_one_that_does_not_fit_is_one_problem(kind: pa.DataType, text: str) -> None:
    serde = ps.Columns(pa.schema({"a": pa.int64(), "v": kind}))
    values = [b'{"a":1}', f'{{"a":2,"v":{text}}}'.encode(), b'{"a":3}']
    rows, problems = serde.read(values)
    assert list(problems) == [1]
    assert 0 < len(problems[1]) < 1000
    assert [row and row["a"] for row in rows.to_pylist()] == [1, None, 3]
    with pytest.raises(ValueError, match=r"."):
        serde.from_bytes(values[1])


FIT: list[tuple[pa.DataType, str, Any]] = [
    (MONEY, '"1.50"', Decimal("1.50")),
    (MONEY, "1e3", Decimal("1000.00")),
    (MONEY, '"0e-300000000"', Decimal("0.00")),
    (MONEY, f'"1.{"0" * 100_000}"', Decimal("1.00")),
    (MONEY, f'"{"9" * 36}.99"', Decimal(f"{'9' * 36}.99")),
    (pa.decimal128(5, -3), "99999000", Decimal("9.9999E+7")),
    (pa.float32(), "3.4028235e38", 3.4028234663852886e38),
    (pa.time64("us"), "86399999999", 86399999999),
    (pa.uint64(), "18446744073709551615", 2**64 - 1),
]


@pytest.mark.parametrize(("kind", "text", "value"), FIT, ids=lambda each: str(each)[:40])
def test_the_greatest_that_fit(kind: pa.DataType, text: str, value: Any) -> None:
    rows, problems = ps.Columns(pa.schema({"v": kind})).read([f'{{"v":{text}}}'.encode()])
    assert problems == {}
    found = rows.field("v").cast(pa.int64())[0].as_py() if pa.types.is_time(kind) else rows[0].as_py()["v"]
    assert repr(found) == repr(value)


def test_what_nobody_declared_may_be_anything() -> None:
    serde = ps.Columns(pa.schema({"a": pa.int64()}))
    rows, problems = serde.read([b'{"a":1,"more":[1e-300000000]}', f'{{"a":2,"more":{DEEP}}}'.encode()])
    assert rows[0].as_py() == {"a": 1}
    assert "recursion" in problems[1]


@given(st.decimals(), st.integers(1, 76), st.integers(-5, 40))
def test_a_decimal_fits_or_does_not(value: Decimal, precision: int, scale: int) -> None:
    kind = pa.decimal256(precision, min(scale, precision))  # Arrow makes no value of a type with a larger scale
    scale = kind.scale
    serde = ps.Columns(pa.schema({"v": kind}))
    text = f'{{"v":"{value}"}}'.encode()
    rows, problems = serde.read([text])
    fits = value.is_finite()
    if fits:
        _, digits, exponent = value.as_tuple()
        whole = int("".join(map(str, digits)))
        shift = int(exponent) + scale
        moved = whole * 10**shift if shift >= 0 else whole // 10**-shift
        fits = moved < 10**precision and (shift >= 0 or whole % 10**-shift == 0)
    assert fits == (not problems)
    if fits:
        assert rows[0].as_py()["v"] == value


DECIMALS = {
    "pa.decimal128(38, 2)": 'Decimal("1e-300000000")',
    "pa.list_(pa.decimal128(38, 2))": '[Decimal("1e-300000000")]',
    'pa.struct({"d": pa.decimal256(76, 2)})': '{"d": Decimal("-1e-300000000")}',
    "pa.map_(pa.string(), pa.decimal128(38, 2))": '{"k": Decimal("1e-300000000")}',
}


def test_a_decimal_of_the_application_does_not_end_the_process() -> None:
    lines = ["import pyarrow as pa, penstock as ps", "from decimal import Decimal"]
    for kind, value in DECIMALS.items():
        lines += ["try:", f'    ps.Columns(pa.schema({{"v": {kind}}})).to_bytes({{"v": {value}}})']
        lines += ["except ValueError as error:", "    print(error)"]
    program = "\n".join(lines)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout.count("digits behind the point") == len(DECIMALS), found
