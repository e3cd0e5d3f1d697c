"""The connection to a database, by the settings of its system: one for each admin and each writer, opened when it is
first needed.

Errors of databases become errors of Penstock, by what follows: try again, wait, or change something.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from penstock import errors
from penstock.system.database.rows import as_json

PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """The settings in `systems.<name>.*`."""

    name: str
    url: str
    """SQLAlchemy's, without a password."""
    password: str | None = field(default=None, repr=False)
    partitions: int = PARTITIONS
    """The number of partitions of each table."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By table, the columns of its key; a table that is missing here has a primary key."""

    @property
    def not_read(self) -> str:
        """The reason why its tables are no inputs."""
        return (
            f"the system `{self.name}` writes tables of a database and does not read them: send its changes to Kafka, "
            "or read the table in a query of PySpark, as in docs/databases.md"
        )


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


class BusyError(errors.RetryableError):
    """Other transactions had the locks. Nothing was written. Only for code that tries again: see `busy_is_away`."""


@contextlib.contextmanager
def busy_is_away() -> Iterator[None]:
    """Locks that others still hold count as a database that is away: a running job waits for them."""
    try:
        yield
    except BusyError as error:
        raise errors.SystemAwayError(f"{error}. Another program or transaction has held the lock for long") from error


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


def translated(error: exc.SQLAlchemyError, doing: str) -> errors.PenstockError:
    """The error of Penstock that tells what to do about one of a database.

    Args:
        error: the error.
        doing: what failed, and in which database.
    """
    if not isinstance(error, exc.DBAPIError):
        return errors.SystemRefusedError(f"{doing}: {type(error).__name__}: {_first_line(error)}")
    code, said = code_of(error.orig), _first_line(error.orig)
    text = f"{doing}: {said}"
    if code in _BUSY or code.startswith("SQLITE_BUSY"):
        return BusyError(text)
    if code.startswith(_READ_ONLY):
        return errors.SystemRefusedError(f"{text}. {_unwritable(code)}")
    if code in _NO_TABLE or "no such table" in said:
        return errors.NotFoundError(text)
    if _LOGIN.search(said):
        return errors.SystemRefusedError(
            f"{text}. Correct the user, its password and its rights, or the name of the database"
        )
    is_away = error.connection_invalidated or _AWAY.fullmatch(code) is not None
    if is_away or (not code and isinstance(error, exc.OperationalError | exc.InterfaceError)):
        return errors.SystemAwayError(text)
    return errors.SystemRefusedError(text)


def is_of_a_row(error: errors.SystemRefusedError) -> bool:
    """False if the database refuses whatever is written."""
    cause = error.__cause__
    return not (isinstance(cause, exc.DBAPIError) and code_of(cause.orig).startswith(_READ_ONLY))


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


DIALECTS = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "mysql": "MySQL", "mariadb": "MariaDB"}
"""The databases whose upserts are known, by SQLAlchemy's names."""
_DRIVERS = {
    "postgresql": "or another one, as with pip install psycopg[binary] and `postgresql+psycopg://`",
    "sqlite": "or leave the driver out of the URL: Python has one",
    "mysql": "or another one, as with pip install pymysql and `mysql+pymysql://`",
    "mariadb": "or another one, as with pip install pymysql and `mariadb+pymysql://`",
}
"""The drivers that are known to work, for people who lack one."""
_LIBPQ = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A host that is gone is noticed within about a minute."""
_WAITS: Mapping[str, Mapping[str, Any]] = {
    "psycopg": _LIBPQ,
    "psycopg2": _LIBPQ,
    "pymysql": {"connect_timeout": 10, "read_timeout": 120, "write_timeout": 120},
    "mysqldb": {"connect_timeout": 10},
    "pysqlite": {"timeout": 30.0},
}
"""By driver, its own options, where the URL does not give them."""
_LOCK_S = 30
"""A statement waits so long for the lock of another transaction."""
_IDLE_S = 60
"""A server ends a transaction of a process that has stopped for so long: its locks would keep everybody waiting."""
_LIMITS = (
    f"SELECT set_config('lock_timeout', '{_LOCK_S}s', true), "
    f"set_config('idle_in_transaction_session_timeout', '{_IDLE_S}s', true)"
)
"""The same for PostgreSQL, for one transaction: a pooler gives the next one another connection."""


def check_url(settings: DatabaseSettings) -> None:
    """Check that the database is one that Penstock writes to, and that its driver is there. Opens nothing.

    Raises:
        ConfigError: it is not. The message does not show the URL, which may hold a secret.
    """
    _engine(settings).dispose()


class Database:
    """A connection that is opened when it is needed, and kept. Used by one thread at a time."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._settings = settings
        self._engine: sa.Engine | None = None

    @contextlib.contextmanager
    def transaction(self, doing: str) -> Iterator[sa.Connection]:
        """A transaction, which commits at the end, and is rolled back after an error.

        Args:
            doing: what fails if it fails, for the message: `the table ... cannot be written`.

        Raises:
            BusyError: others had the locks. Nothing was written.
            SystemAwayError: the database does not answer. If that was at the end, the transaction may have committed.
            SystemRefusedError, NotFoundError: the database refuses it.
        """
        try:
            with self._connected() as connection, connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(_LIMITS)
                yield connection
        except exc.SQLAlchemyError as error:
            found = translated(error, f"{doing}, in {place_of(self._settings)}")
            if isinstance(found, errors.SystemAwayError) and (why := missing_folder(self._settings)):
                found = errors.SystemAwayError(f"{found}{why}")
            raise found from error

    @contextlib.contextmanager
    def look(self, doing: str) -> Iterator[sa.Connection]:
        """A transaction that is not tried again, as `transaction`. Raises SystemAwayError in place of BusyError."""
        with busy_is_away(), self.transaction(doing) as connection:
            yield connection

    def close(self) -> None:
        """Close the connection. The next transaction would open another one."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _connected(self) -> sa.Connection:
        if self._engine is None:
            self._engine = _engine(self._settings)
        return self._engine.connect()


def _checked_url(settings: DatabaseSettings) -> sa.URL:
    """The URL with the password. Raises ConfigError."""
    system = f"systems.{settings.name}"
    key = f"{system}.url"
    try:
        url = sa.make_url(settings.url)
    except exc.ArgumentError as error:
        raise errors.ConfigError(
            f"`{key}` is no URL of SQLAlchemy, as in `postgresql+psycopg://user@host/database`, or `sqlite:////path` "
            "for a file of SQLite"
        ) from error
    if url.password is not None or any("password" in name for name in url.query):
        raise errors.ConfigError(
            f"`{key}` has a password, which commands would show: give it as `{system}.password`, best as "
            "`${file:PATH}`"
        )
    name = url.get_backend_name()
    if name not in DIALECTS:
        known = ", ".join(DIALECTS.values())
        raise errors.ConfigError(f"`{key}` is of the kind `{name}`, whose upserts are not known: known are {known}")
    if name == "sqlite" and url.database in (None, "", ":memory:"):
        raise errors.ConfigError(f"`{key}` names no file, and a database in memory is that of one process alone")
    return url if settings.password is None else url.set(password=settings.password)


def _engine(settings: DatabaseSettings) -> sa.Engine:
    """An engine with at most one connection, which is checked before each use. Raises ConfigError."""
    key, url = f"systems.{settings.name}.url", _checked_url(settings)
    name = url.get_backend_name()
    try:
        own = _WAITS.get(url.get_dialect().driver, {})
        engine = sa.create_engine(
            url,
            connect_args={option: value for option, value in own.items() if option not in url.query},
            poolclass=sa.QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            hide_parameters=True,
            json_serializer=as_json,
            use_insertmanyvalues=False,  # one row each, in their order: a row may come twice for the database
            **({} if name == "sqlite" else {"isolation_level": "READ COMMITTED"}),
        )
    except exc.NoSuchModuleError as error:
        raise errors.ConfigError(
            f"`{key}` names the driver `{url.drivername}`, which SQLAlchemy does not know"
        ) from error
    except ImportError as error:
        raise errors.ConfigError(
            f"the driver of `{key}`, `{url.drivername}`, is not installed: No module named `{error.name}`. Install it "
            f"here and on every host, {_DRIVERS[name]}"
        ) from error
    if name == "sqlite":
        _lock_at_begin(engine)
    if name in ("mysql", "mariadb"):
        _wait_shortly(engine)
    return engine


def _lock_at_begin(engine: sa.Engine) -> None:
    """Let SQLite lock the file when a transaction begins: one that reads first could not get the lock later."""

    @sa.event.listens_for(engine, "connect")
    def _(connection: Any, record: object) -> None:
        connection.isolation_level = None  # it begins nothing by itself

    @sa.event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _wait_shortly(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "connect")
    def _(connection: Any, record: object) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {_LOCK_S}, wait_timeout = {_IDLE_S}")
