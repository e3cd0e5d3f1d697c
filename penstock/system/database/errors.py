"""Errors of databases as errors of Penstock, by what follows: try again, wait, or change something."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from penstock.errors import NotFoundError, PenstockError, RetryableError, SystemAwayError, SystemRefusedError

if TYPE_CHECKING:
    from penstock.system.database.system import DatabaseSystem

_SHOWN = 300
_BUSY = {"40001", "40P01", "55P03", "1205", "1213", "SQLITE_BUSY", "SQLITE_LOCKED"}
"""Serialization failures, deadlocks, and locks that others have held for too long."""
_NO_TABLE = {"42P01", "3F000", "1146"}
_AWAY = re.compile(
    r"08...|53...|57...|58...|25006|25P0[34]"  # PostgreSQL; 25006: it is a replica for now, 25P03: it ended a pause
    r"|1040|1053|1290|1836|2\d\d\d|4031"  # MySQL
    r"|SQLITE_(CANTOPEN|IOERR|FULL|PROTOCOL).*"
)
_LOGIN = re.compile(
    r"authentication failed|no password supplied|(role|database) .* does not exist|no pg_hba\.conf entry|access denied",
    re.IGNORECASE,
)
"""A connection that a server of PostgreSQL refuses has no code in psycopg."""


class BusyError(RetryableError):
    """Other transactions had the locks. Nothing was written."""


def place_of(system: DatabaseSystem) -> str:
    """The database in words, without user and options."""
    url = sa.make_url(system.url)
    if url.host is None:
        return f"the {url.get_backend_name()} database `{url.database}`"
    port = "" if url.port is None else f":{url.port}"
    return f"the {url.get_backend_name()} database `{url.database}` at {url.host}{port}"


def translated(error: SQLAlchemyError, doing: str) -> PenstockError:
    """The error of Penstock that tells what to do about one of a database.

    Args:
        error: the error.
        doing: what failed, and in which database.
    """
    if not isinstance(error, DBAPIError):
        return SystemRefusedError(f"{doing}: {type(error).__name__}: {_first_line(error)}")
    code, said = code_of(error.orig), _first_line(error.orig)
    text = f"{doing}: {said}"
    if code in _BUSY or code.startswith("SQLITE_BUSY"):
        return BusyError(text)
    if code in _NO_TABLE or "no such table" in said:
        return NotFoundError(text)
    if _LOGIN.search(said):
        return SystemRefusedError(f"{text}. Correct the user, its password and its rights, or the name of the database")
    is_away = error.connection_invalidated or _AWAY.fullmatch(code) is not None
    if is_away or (not code and isinstance(error, OperationalError | InterfaceError)):
        return SystemAwayError(text)
    return SystemRefusedError(text)


def code_of(error: BaseException | None) -> str:
    """The code of a driver's error: an SQLSTATE, a number of MySQL, or a name of SQLite; empty if it has none."""
    for name in ("sqlstate", "pgcode", "sqlite_errorname"):
        if found := getattr(error, name, None):
            return str(found)
    first: Any = (getattr(error, "args", None) or ("",))[0]
    if isinstance(first, dict):  # pg8000
        return str(first.get("C", ""))
    return str(first) if isinstance(first, int) else ""


def _first_line(error: object) -> str:
    """The first line: the others of PostgreSQL show the row."""
    args: Any = getattr(error, "args", ())
    if args and isinstance(args[0], dict):
        text = str(args[0].get("M", ""))
    elif len(args) == 2 and isinstance(args[0], int):  # MySQL
        text = str(args[1])
    else:
        text = str(error)
    return (text.strip().splitlines() or ["it said nothing"])[0][:_SHOWN]
