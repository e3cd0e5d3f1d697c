"""Messages as changes of rows, the values that columns take, and errors of databases."""

from __future__ import annotations

import pickle
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, InvalidRequestError, OperationalError

from penstock.errors import NotFoundError, PenstockError, SystemAwayError, SystemRefusedError
from penstock.system.database.connection import BusyError, code_of, translated
from penstock.system.database.rows import RowChange, TableColumn, TableForm, TableLimits, needed

COLUMNS = (
    TableColumn("shop", "text", "TEXT", nullable=False, required=True),
    TableColumn("hour", "integer", "INTEGER", nullable=False, required=True),
    TableColumn("amount", "integer", "BIGINT"),
    TableColumn("state", "text", "TEXT", nullable=False, required=True),
    TableColumn("twice", "integer", "BIGINT", computed=True),
)
TWO = TableForm("db.totals", COLUMNS, ["shop", "hour"])
ONE = TableForm("db.shops", [COLUMNS[0], COLUMNS[2]], ["shop"])
NUMBERED = TableForm("db.hours", COLUMNS[1:3], ["hour"])
DAYS = TableForm("db.days", [TableColumn("day", "date", "DATE")], ["day"])


def test_a_value_is_the_row_of_its_key() -> None:
    row = {"shop": "s", "hour": 1, "amount": None, "state": "x"}
    value = b'{"shop": "s", "hour": 1, "amount": null, "state": "x"}'
    assert TWO.change(b"any", value) == RowChange(("s", 1), row)
    key = b'{"shop": "s", "hour": 1}'
    assert TWO.change(key, b'{"amount": null, "state": "x"}') == RowChange(("s", 1), row)
    assert TWO.change(key, b'{"hour": 2, "state": "x"}').key == ("s", 2)
    assert ONE.change(b"s1", b'{"amount": 2}') == RowChange(("s1",), {"shop": "s1", "amount": 2})


@pytest.mark.parametrize(
    ("form", "key", "expected"),
    [
        (TWO, b'{"hour": 1, "shop": "s"}', ("s", 1)),
        (ONE, b'{"shop": "s"}', ("s",)),
        (ONE, b"s", ("s",)),
        (ONE, b"5", ("5",)),
        (ONE, b"null", ("null",)),
        (ONE, b"", ("",)),
        (ONE, b"a b", ("a b",)),
        (NUMBERED, b"5", (5,)),
        (DAYS, b"2026-01-31", (date(2026, 1, 31),)),
        (DAYS, b'"2026-01-31"', (date(2026, 1, 31),)),
    ],
)
def test_a_delete_has_the_row_in_its_key(form: TableForm, key: bytes, expected: tuple[Any, ...]) -> None:
    assert form.change(key, None) == RowChange(expected, None)


@pytest.mark.parametrize(
    ("form", "key", "value", "said"),
    [
        (TWO, None, None, "it has no value, so it deletes the row of its key: the message's key must be a JSON object"),
        (TWO, b"s", None, "must be a JSON object with `shop`, `hour`: it is"),
        (TWO, b'{"shop": "s"}', None, "and no others"),
        (TWO, b'{"shop": "s", "hour": 1, "amount": 2}', None, "and no others"),
        (TWO, b'{"shop": "s", "hour": null}', None, "`hour` of the key of `db.totals` is null"),
        (ONE, b'"s"', None, "may be text that has quotes, or JSON"),
        (ONE, b"\xff", None, "is not text"),
        (NUMBERED, b"\x00\x00\x00\x05", None, "is not an integer"),
        (TWO, None, b'{"shop": "s", "state": "x"}', "its value lacks columns of the key (`shop`, `hour`)"),
        (TWO, None, b'{"shop": "s", "hour": 1}', "no `state`, a column of `db.totals` that is NOT NULL"),
        (TWO, None, b'{"shop": "s", "hour": 1, "state": null}', "is null, and must not be"),
        (TWO, None, b'{"shop": "s", "hour": 1, "state": "x", "summe": 5}', "no column `summe`; it has shop, hour, "),
        (TWO, None, b'{"shop": "s", "hour": 1, "state": "x", "twice": 5}', "computes the column `twice`"),
        (TWO, None, b'{"shop": "s", "hour": null, "state": "x"}', "`hour` of the key of `db.totals` is null"),
        (TWO, None, b"[1]", "its value is [1], and no object"),
        (TWO, None, b"{", "its value is not JSON"),
        (TWO, None, b'{"shop": 5, "hour": 1, "state": "x"}', "column `shop` of `db.totals`, TEXT: 5 is not text"),
    ],
)
def test_a_message_that_fits_no_row_says_why(
    form: TableForm, key: bytes | None, value: bytes | None, said: str
) -> None:
    limits = pickle.loads(pickle.dumps(TableLimits(form=form)))
    assert said in (limits.refused(key, value) or "")
    assert limits.least_bytes == -1


NUMBER = TableColumn("x", "decimal", "NUMERIC(5,2)", precision=5, scale=2)


@pytest.mark.parametrize(
    ("column", "given", "expected"),
    [
        (TableColumn("x", "boolean", ""), "true", True),
        (TableColumn("x", "flag", "", bounds=(-128, 127)), "true", 1),
        (TableColumn("x", "integer", ""), "-9223372036854775808", -(1 << 63)),
        (TableColumn("x", "float", ""), "1", 1.0),
        (NUMBER, "123.45", Decimal("123.45")),
        (NUMBER, '"0.10"', Decimal("0.10")),
        (NUMBER, "1.5e2", Decimal(150)),
        (NUMBER, "0", Decimal(0)),
        (TableColumn("x", "decimal", ""), "0.1234567890123456789012", Decimal("0.1234567890123456789012")),
        (TableColumn("x", "text", "", length=2), '"é€"', "é€"),
        (TableColumn("x", "choice", "", choices=("a", "b")), '"b"', "b"),
        (TableColumn("x", "bytes", ""), '"AP8="', b"\x00\xff"),
        (TableColumn("x", "date", ""), '"2026-01-31"', date(2026, 1, 31)),
        (TableColumn("x", "time", ""), '"12:30:00"', time(12, 30)),
        (TableColumn("x", "timestamp", ""), '"2026-01-31T12:00:00+02:00"', datetime(2026, 1, 31, 10, tzinfo=UTC)),
        (TableColumn("x", "timestamp", ""), "1500", datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        (TableColumn("x", "local", ""), '"2026-01-31 12:00:00"', datetime(2026, 1, 31, 12)),  # noqa: DTZ001
        (TableColumn("x", "uuid", ""), '"00000000-0000-0000-0000-00000000000a"', UUID(int=10)),
        (TableColumn("x", "json", ""), '{"a": [1.50, null]}', {"a": [Decimal("1.50"), None]}),
        (TableColumn("x", "array", "", item=TableColumn("x", "integer", "")), "[1, null]", [1, None]),
        (TableColumn("x", "other", "INET"), '"10.0.0.1"', "10.0.0.1"),
        (TableColumn("x", "integer", ""), "null", None),
    ],
)
def test_a_value_that_fits(column: TableColumn, given: str, expected: Any) -> None:
    row = TableForm("t", [COLUMNS[0], column], ["shop"]).change(b"s", b'{"x": %b}' % given.encode()).row
    found = (row or {})["x"]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("column", "given", "said"),
    [
        (TableColumn("x", "boolean", ""), "1", "true or false"),
        (TableColumn("x", "integer", "", bounds=(0, 255)), "256", "256 is not between 0 and 255"),
        (TableColumn("x", "integer", ""), "9223372036854775808", "is not between"),
        (TableColumn("x", "integer", ""), "1.0", "not an integer"),
        (TableColumn("x", "integer", ""), "true", "not an integer"),
        (TableColumn("x", "flag", "", bounds=(-128, 127)), "128", "is not between"),
        (TableColumn("x", "float", ""), '"1"', "not a number"),
        (TableColumn("x", "float", ""), "1e999", "too large"),
        (NUMBER, "0.001", "more than 2 digits behind the point"),
        (NUMBER, "1000", "more than 3 digits before it"),
        (NUMBER, '"NaN"', "not a decimal"),
        (NUMBER, '"x"', "not a decimal"),
        (TableColumn("x", "text", "", length=2), '"abc"', "3 characters, and the column takes 2"),
        (TableColumn("x", "text", ""), '"\\u0000"', "zero byte"),
        (TableColumn("x", "choice", "", choices=("a", "b")), '"c"', '"c" is not one of a, b'),
        (TableColumn("x", "bytes", ""), '"?"', "not Base64"),
        (TableColumn("x", "bytes", ""), "5", "not Base64"),
        (TableColumn("x", "date", ""), '"31.1.2026"', "not a date"),
        (TableColumn("x", "time", ""), "1", "not a time of day"),
        (TableColumn("x", "timestamp", ""), '"2026-01-31T12:00:00"', "text with a zone"),
        (TableColumn("x", "timestamp", ""), "99999999999999999", "not a time"),
        (TableColumn("x", "local", ""), '"2026-01-31T12:00:00Z"', "without a zone"),
        (TableColumn("x", "uuid", ""), '"x"', "not a UUID"),
        (TableColumn("x", "array", "", item=TableColumn("x", "integer", "")), '["a"]', '"a" is not an integer'),
        (TableColumn("x", "array", "", item=TableColumn("x", "integer", "")), "5", "not an array"),
        (TableColumn("x", "other", "INET"), "[]", "not a text or a number"),
    ],
)
def test_a_value_that_does_not_fit(column: TableColumn, given: str, said: str) -> None:
    form = TableForm("t", [COLUMNS[0], column], ["shop"])
    assert said in (form.problem(b"s", b'{"x": %b}' % given.encode()) or "")


@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_of_changes_comes_to_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        changes = []
        for _ in range(rng.randrange(8)):
            key = (rng.randrange(2),)
            row = {name: rng.randrange(9) for name in "ab" if rng.random() < 0.6}
            changes.append(RowChange(key, None if rng.random() < 0.3 else {"k": key[0], **row}))
        start = {(0,): {"k": 0, "a": 1, "b": 1}} if rng.random() < 0.5 else {}
        left = needed(changes)
        assert after(start, left) == after(start, changes)
        assert len(left) <= len(changes)
    assert needed([RowChange((1,), {"k": 1, "a": n}) for n in range(5)]) == [RowChange((1,), {"k": 1, "a": 4})]


def after(start: dict[Any, dict[str, Any]], changes: list[RowChange]) -> dict[Any, dict[str, Any]]:
    rows = {key: dict(row) for key, row in start.items()}
    for key, row in changes:
        if row is None:
            rows.pop(key, None)
        else:
            rows.setdefault(key, {}).update(row)
    return rows


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (b"a", b'{"v":%b}' % (b"[" * 5000 + b"]" * 5000), "its value is not JSON"),
        (b"[" * 5000, b"{}", None),
        (b"a", b'{"d":1e99999999999999999999999}', "its value is not JSON"),
        (b"a", b'{"d":"1e999999999999"}', "more than 22 digits before it"),
        (b"a", b'{"d":"1_0.5"}', "is not a decimal"),
        (b"a", b'{"d":1234567890123456789012.1234567890}', None),
        (b"a", b'{"d":1234567890123456789012.12345678901}', "more than 10 digits behind the point"),
        (b"a", b'{"d":0.00000000000000000000000000000000001}', "more than 10 digits behind the point"),
        (b"a", b'{"t":"0001-01-01T00:00:00+01:00"}', "is not a time"),
        (b"a", b'{"t":"9999-12-31T23:59:59-01:00"}', "is not a time"),
    ],
)
def test_extremes_are_problems_of_one_message(key: bytes, value: bytes, problem: str | None) -> None:
    columns = (
        TableColumn("k", "text", "TEXT"),
        TableColumn("v", "json", "JSON"),
        TableColumn("d", "decimal", "DECIMAL(32, 10)", precision=32, scale=10),
        TableColumn("t", "timestamp", "TIMESTAMPTZ"),
    )
    found = TableForm("t", columns, ["k"]).problem(key, value)
    assert problem in found if problem is not None and found is not None else problem is found


class DriverError(Exception):
    sqlstate: str | None = None


def driver_error(code: str, text: str = "said") -> DriverError:
    error = DriverError(text)
    error.sqlstate = code
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((code, BusyError) for code in ("40001", "40P01", "55P03")),
        *((code, SystemAwayError) for code in ("08006", "53300", "57P01", "57014", "58030", "25006", "25P03")),
        *((code, NotFoundError) for code in ("42P01", "3F000")),
        *((code, SystemRefusedError) for code in ("23505", "22P02", "42501", "54000")),
    ],
)
def test_a_code_of_postgresql(code: str, kind: type[PenstockError]) -> None:
    assert type(translated(OperationalError("", {}, driver_error(code)), "it failed")) is kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1205, BusyError),
        (1213, BusyError),
        (1146, NotFoundError),
        (1062, SystemRefusedError),
        (3819, SystemRefusedError),
    ]
    + [(code, SystemAwayError) for code in (1040, 1053, 1290, 2003, 2006, 2013)],
)
def test_a_number_of_mysql(code: int, kind: type[PenstockError]) -> None:
    found = translated(OperationalError("", {}, Exception(code, "said")), "it failed")
    assert (type(found), str(found)) == (kind, "it failed: said")


def test_errors_without_a_code() -> None:
    for error in (OperationalError, InterfaceError):
        assert type(translated(error("", {}, Exception("gone")), "it failed")) is SystemAwayError
    refused = Exception('FATAL: password authentication failed for user "me"')
    assert type(translated(OperationalError("", {}, refused), "it failed")) is SystemRefusedError
    assert type(translated(IntegrityError("", {}, Exception("odd")), "it failed")) is SystemRefusedError
    assert type(translated(InvalidRequestError("odd"), "it failed")) is SystemRefusedError
    lost = DBAPIError("", {}, Exception("odd"), connection_invalidated=True)
    assert type(translated(lost, "it failed")) is SystemAwayError


def test_the_row_that_a_server_shows_is_left_out() -> None:
    text = 'violates "small"\nDETAIL:  Failing row contains (secret).'
    for error in (driver_error("23514", text), Exception({"C": "23514", "M": text})):
        assert str(translated(IntegrityError("", {}, error), "it failed")) == 'it failed: violates "small"'
        assert code_of(error) == "23514"
