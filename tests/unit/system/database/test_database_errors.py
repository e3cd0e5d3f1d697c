"""The errors of databases, by what follows from them."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, InvalidRequestError, OperationalError

from penstock.errors import NotFoundError, PenstockError, SystemAwayError, SystemRefusedError
from penstock.system.database.connection import BusyError, code_of, translated


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
