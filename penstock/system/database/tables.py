"""A table of a database: its form as the database knows it, and the statements that change its rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import NoSuchTableError

from penstock.errors import ConfigError, NotFoundError
from penstock.system.database.connection import DatabaseSettings, place_of
from penstock.system.database.rows import Kind, RowChange, TableColumn, TableForm, alike

_KINDS: Sequence[tuple[type[Any], Kind]] = (
    (mysql.TINYINT, "flag"),
    (sa.Boolean, "boolean"),
    (sa.Integer, "integer"),
    (sa.Float, "float"),
    (sa.Numeric, "decimal"),
    (sa.Enum, "choice"),
    (sa.Uuid, "uuid"),
    (sa.LargeBinary, "bytes"),
    (sa.types._Binary, "bytes"),  # noqa: SLF001 - BINARY and VARBINARY have no other class in common
    (sa.String, "text"),
    (sa.DateTime, "local"),
    (sa.Date, "date"),
    (sa.Time, "time"),
    (sa.JSON, "json"),
    (sa.ARRAY, "array"),
)
"""The first class that fits says how values are read."""


class TableTarget:
    """A table with its form and its statements.

    Args:
        settings: those of the system.
        stream: the table's name, perhaps with that of its schema and a dot.
        connection: the database. The table is read from it.

    Raises:
        NotFoundError: there is no such table.
        ConfigError: its key is not known, or is not unique.
    """

    def __init__(self, settings: DatabaseSettings, stream: str, connection: sa.Connection) -> None:
        schema, _, name = stream.rpartition(".")
        where = f"{settings.name}.{stream}"
        try:
            self._table = sa.Table(
                _stored_name(connection, schema, name),
                sa.MetaData(),
                schema=schema or None,
                autoload_with=connection,
                resolve_fks=False,
                implicit_returning=False,
            )
        except NoSuchTableError as error:
            raise NotFoundError(
                f"there is no table `{stream}` in {place_of(settings)}: create it, with a primary key, or correct the "
                "output's name"
            ) from error
        self._dialect = connection.dialect.name
        columns = [_column(column, self._dialect) for column in self._table.columns]
        key = self._key(settings, stream, sa.inspect(connection))
        for column in self._table.columns:
            if isinstance(column.type, sa.JSON):
                column.type.none_as_null = True
        self.form = TableForm(where, columns, key)
        self._upserts: dict[frozenset[str], Any] = {}
        matches = [
            self._table.c[name] == sa.bindparam(f"k{n}", type_=self._table.c[name].type) for n, name in enumerate(key)
        ]
        self._delete = self._table.delete().where(*matches)

    def change(self, connection: sa.Connection, changes: Sequence[RowChange]) -> None:
        """Make the changes, in their order."""
        for names, run in alike(changes):
            if names is None:
                connection.execute(self._delete, [{f"k{n}": part for n, part in enumerate(each.key)} for each in run])
            else:
                if names not in self._upserts:
                    self._upserts[names] = self._upsert(names)
                connection.execute(self._upserts[names], [dict(each.row or {}) for each in run])

    def _upsert(self, names: frozenset[str]) -> Any:
        """Inserts these columns of a row. If there is a row of the key, they are set there, and no others."""
        table, key = self._table, list(self.form.key)
        columns = [column.name for column in table.columns if column.name in names]
        others = [name for name in columns if name not in key]
        if self._dialect in ("mysql", "mariadb"):
            insert = mysql.insert(table).values({name: sa.bindparam(name) for name in columns})
            return insert.on_duplicate_key_update({name: insert.inserted[name] for name in others or key[:1]})
        make: Callable[[sa.Table], Any] = postgresql.insert if self._dialect == "postgresql" else sqlite.insert
        given = make(table).values({name: sa.bindparam(name) for name in columns})
        if not others:
            return given.on_conflict_do_nothing(index_elements=key)
        return given.on_conflict_do_update(index_elements=key, set_={name: given.excluded[name] for name in others})

    def _key(self, settings: DatabaseSettings, stream: str, inspector: sa.Inspector) -> tuple[str, ...]:
        table, name, setting = self._table, f"{settings.name}.{stream}", f"systems.{settings.name}.key.{stream}"
        primary = tuple(column.name for column in table.primary_key.columns)
        key = settings.keys.get(stream, primary)
        if not primary and _is_view(inspector, table):
            raise ConfigError(
                f"`{name}` is a view in {place_of(settings)}, and an upsert needs a table with a key: "
                "name the output after the table that the view shows"
            )
        if not key:
            raise ConfigError(
                f"the table `{name}` has no primary key, so it is not known which row an upsert "
                f"replaces: give it one, or name the columns of a unique index, as in `{setting}: shop, hour_ms`"
            )
        if unknown := [each for each in key if each not in table.columns]:
            raise ConfigError(
                f"`{setting}` names `{unknown[0]}`, and the table has the columns {', '.join(table.columns.keys())}"
            )
        unique = {frozenset(primary), *_unique(inspector, table)} - {frozenset()}
        if frozenset(key) not in unique:
            raise ConfigError(
                f"`{setting}` = `{', '.join(key)}` is no key of the table: it has no unique index of exactly these "
                "columns, without which an upsert does not find the row that it replaces. Create one"
            )
        if self._dialect in ("mysql", "mariadb") and len(unique) > 1:
            other = next(each for each in unique if each != frozenset(key))
            raise ConfigError(
                f"the table `{name}` has another unique index, of {', '.join(sorted(other))}: an "
                "upsert of MySQL would change the row that is equal there. Drop the index, or write to another table"
            )
        return key


def _stored_name(connection: sa.Connection, schema: str, name: str) -> str:
    """The table's name as the database has it. SQLite finds tables in any case, and SQLAlchemy their keys by the exact
    name alone."""
    if connection.dialect.name != "sqlite":
        return name
    names = sa.inspect(connection).get_table_names(schema or None)
    alike = [each for each in names if each.encode().lower() == name.encode().lower()]  # of ASCII alone, as there
    return name if name in alike or not alike else alike[0]


def _is_view(inspector: sa.Inspector, table: sa.Table) -> bool:
    views = inspector.get_view_names(table.schema)
    with contextlib.suppress(NotImplementedError):
        views += inspector.get_materialized_view_names(table.schema)
    return table.name.encode().lower() in (view.encode().lower() for view in views)


def _unique(inspector: sa.Inspector, table: sa.Table) -> Iterator[frozenset[str]]:
    """The columns of every unique index that holds for all rows."""
    for constraint in inspector.get_unique_constraints(table.name, table.schema):
        yield frozenset(constraint["column_names"])
    for index in inspector.get_indexes(table.name, table.schema):
        options: Mapping[str, Any] = index.get("dialect_options", {})
        is_partial = any(name.endswith("_where") for name in options)
        names = index["column_names"]
        if index["unique"] and not is_partial and None not in names:
            yield frozenset(name for name in names if name is not None)


def _column(column: sa.Column[Any], dialect: str) -> TableColumn:
    kind = column.type
    found = TableColumn(
        column.name,
        _kind(kind, dialect),
        _words(kind),
        nullable=bool(column.nullable),
        required=not column.nullable and column.server_default is None and column.identity is None,
        computed=column.computed is not None or (column.identity is not None and bool(column.identity.always)),
        bounds=_bounds(kind, dialect),
    )
    return _detailed(found, kind, dialect)


def _detailed(found: TableColumn, kind: Any, dialect: str) -> TableColumn:
    """The column with the limits of its type."""
    if found.kind == "text" and dialect != "sqlite":  # which has no limits
        return replace(found, length=kind.length)
    if found.kind == "decimal":
        return replace(found, precision=kind.precision, scale=kind.scale)
    if found.kind == "choice":
        return replace(found, choices=tuple(kind.enums))
    if found.kind == "array":
        own = kind.item_type
        item = TableColumn(found.name, _kind(own, dialect), _words(own), bounds=_bounds(own, dialect))
        return replace(found, item=_detailed(item, own, dialect))
    return found


def _kind(kind: Any, dialect: str) -> Kind:
    found: Kind = next((name for known, name in _KINDS if isinstance(kind, known)), "other")
    if found == "decimal" and dialect == "sqlite":
        return "float"  # it has no decimals
    if found == "flag" and kind.display_width != 1:
        return "integer"
    if found == "local" and kind.timezone:
        return "timestamp"
    if found == "array" and (kind.dimensions or 1) > 1:
        return "other"
    return found


def _bounds(kind: Any, dialect: str) -> tuple[int, int]:
    if isinstance(kind, mysql.TINYINT):
        bits = 8
    elif isinstance(kind, mysql.MEDIUMINT):
        bits = 24
    elif isinstance(kind, sa.SmallInteger):
        bits = 16
    elif isinstance(kind, sa.BigInteger) or dialect == "sqlite" or not isinstance(kind, sa.Integer):
        bits = 64
    else:
        bits = 32
    if getattr(kind, "unsigned", False):
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _words(kind: Any) -> str:
    with contextlib.suppress(Exception):  # a type that SQLAlchemy does not know has no words
        return str(kind)
    return "a type that SQLAlchemy does not know"
