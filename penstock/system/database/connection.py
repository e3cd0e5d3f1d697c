"""The connection to a database: one for each admin and each writer, opened when it is first needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from penstock.errors import ConfigError, SystemAwayError
from penstock.system.database.columns import as_json
from penstock.system.database.errors import busy_is_away, missing_folder, place_of, translated
from penstock.system.database.settings import DatabaseSettings

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
        except SQLAlchemyError as error:
            found = translated(error, f"{doing}, in {place_of(self._settings)}")
            if isinstance(found, SystemAwayError) and (why := missing_folder(self._settings)):
                found = SystemAwayError(f"{found}{why}")
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
    except ArgumentError as error:
        raise ConfigError(
            f"`{key}` is no URL of SQLAlchemy, as in `postgresql+psycopg://user@host/database`, or `sqlite:////path` "
            "for a file of SQLite"
        ) from error
    if url.password is not None or any("password" in name for name in url.query):
        raise ConfigError(
            f"`{key}` has a password, which commands would show: give it as `{system}.password`, best as "
            "`${file:PATH}`"
        )
    name = url.get_backend_name()
    if name not in DIALECTS:
        known = ", ".join(DIALECTS.values())
        raise ConfigError(f"`{key}` is of the kind `{name}`, whose upserts are not known: known are {known}")
    if name == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigError(f"`{key}` names no file, and a database in memory is that of one process alone")
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
    except NoSuchModuleError as error:
        raise ConfigError(f"`{key}` names the driver `{url.drivername}`, which SQLAlchemy does not know") from error
    except ImportError as error:
        raise ConfigError(
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
