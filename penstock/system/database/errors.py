"""Errors of databases as errors of Penstock, by what follows: try again, wait, or change something."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from penstock.errors import NotFoundError, PenstockError, RetryableError, SystemAwayError, SystemRefusedError
from penstock.system.database.settings import DatabaseSettings

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


_READ_ONLY = "SQLITE_READONLY"
_REBUILT = "`docs/databases.md` says under `A database that was lost or restored` what to do"


class BusyError(RetryableError):
    """Other transactions had the locks. Nothing was written. Only for code that tries again: see `busy_is_away`."""


@contextlib.contextmanager
def busy_is_away() -> Iterator[None]:
    """Locks that others still hold count as a database that is away: a running job waits for them."""
    try:
        yield
    except BusyError as error:
        raise SystemAwayError(f"{error}. Another program or transaction has held the lock for long") from error


def place_of(settings: DatabaseSettings) -> str:
    """The database in words, without user and options."""
    url = sa.make_url(settings.url)
    if url.host is None:
        return f"the {url.get_backend_name()} database `{url.database}`"
    port = "" if url.port is None else f":{url.port}"
    return f"the {url.get_backend_name()} database `{url.database}` at {url.host}{port}"


def missing_folder(settings: DatabaseSettings) -> str:
    """The reason why a file of SQLite cannot be opened, if its folder does not exist; else an empty text."""
    url = sa.make_url(settings.url)
    if url.get_backend_name() != "sqlite" or not url.database or url.database.startswith("file:"):
        return ""
    folder = Path(url.database).absolute().parent
    if folder.is_dir():
        return ""
    return f". The folder `{folder}` does not exist: create it, or correct `systems.{settings.name}.url`"


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
    if code.startswith(_READ_ONLY):
        return SystemRefusedError(f"{text}. {_unwritable(code)}")
    if code in _NO_TABLE or "no such table" in said:
        return NotFoundError(text)
    if _LOGIN.search(said):
        return SystemRefusedError(f"{text}. Correct the user, its password and its rights, or the name of the database")
    is_away = error.connection_invalidated or _AWAY.fullmatch(code) is not None
    if is_away or (not code and isinstance(error, OperationalError | InterfaceError)):
        return SystemAwayError(text)
    return SystemRefusedError(text)


def is_of_a_row(error: SystemRefusedError) -> bool:
    """False if the database refuses whatever is written."""
    cause = error.__cause__
    return not (isinstance(cause, DBAPIError) and code_of(cause.orig).startswith(_READ_ONLY))


def _unwritable(code: str) -> str:
    if code == "SQLITE_READONLY_DBMOVED":
        return (
            "The file was deleted, moved or replaced while this process had it open. Nothing was written. Put it back, "
            f"and start the job again. If it is lost, {_REBUILT}"
        )
    return (
        "The file, or the folder that it is in, cannot be written. Nothing was written. Give the user of the job the "
        "right to write both, on every host where the job runs, and start the job again"
    )


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
