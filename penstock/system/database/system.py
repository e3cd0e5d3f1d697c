"""The system `database`: an output is a table, and a message an upsert or a delete of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.errors import ConfigError
from penstock.system.base import System, SystemReader, WriterIdentity, check_options
from penstock.system.contract.definition import positive_option
from penstock.system.database.connection import PARTITIONS, DatabaseSettings

if TYPE_CHECKING:
    from penstock.system.database.outputs import DatabaseAdmin, DatabaseWriter


class DatabaseSystem(DatabaseSettings, System):
    """The tables of a database as outputs.

    Example:
        >>> options = {"url": "sqlite:////srv/shop.db", "key.totals": "shop, hour_ms"}
        >>> system = DatabaseSystem.configured("db", options)
        >>> system.keys["totals"], system.partitions
        (('shop', 'hour_ms'), 4)
    """

    __slots__ = ()

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    commits_atomically: ClassVar[bool] = True

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> DatabaseSystem:
        """The options are in docs/databases.md."""
        keys = {key.partition(".")[2]: text for key, text in options.items() if key.startswith("key.")}
        rest = {key: text for key, text in options.items() if not key.startswith("key.")}
        check_options(name, rest, ("url", "password", "partitions", "key.<table>"))
        if not options.get("url"):
            raise ConfigError(
                f"`systems.{name}.url` is missing: the database, as in "
                "`postgresql+psycopg://penstock@db.example.com/shop`, or `sqlite:////srv/shop.db`"
            )
        system = cls(
            name,
            options["url"],
            options.get("password"),
            positive_option(name, options, "partitions") or PARTITIONS,
            {table: _names(f"systems.{name}.key.{table}", text) for table, text in keys.items()},
        )
        try:
            from penstock.system.database.connection import check_url
        except ImportError as error:
            raise ConfigError(
                f"the system `{name}` needs SQLAlchemy: pip install penstock-streams[database]"
            ) from error
        check_url(system)
        return system

    def admin(self) -> DatabaseAdmin:
        from penstock.system.database.outputs import DatabaseAdmin  # late: SQLAlchemy is an extra

        return DatabaseAdmin(self)

    def reader(self) -> SystemReader:
        raise ConfigError(self.not_read)

    def writer(self, identity: WriterIdentity | None) -> DatabaseWriter:
        from penstock.system.database.outputs import DatabaseWriter

        return DatabaseWriter(self, identity)


def _names(key: str, text: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"`{key}` = `{text}` names no columns: it reads as `shop, hour_ms`")
    return names
