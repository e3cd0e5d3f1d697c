"""The systems `delta` and `iceberg`: a stream is a table, and a message a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from penstock.errors import ConfigError
from penstock.system.base import System, WriterIdentity, check_options
from penstock.system.contract.names import absolute_place, positive_option
from penstock.system.lake.admin import LakeAdmin
from penstock.system.lake.log import CHANGES, place_of
from penstock.system.lake.reader import LakeReader
from penstock.system.lake.settings import LakeSettings
from penstock.system.lake.tables import Lake
from penstock.system.lake.writer import LakeWriter
from penstock.system.rows.schema import split_schemas

_PARTITIONS = 4
_POLL_MS = 1000
_OPTIONS = ("changes", "partitions", "poll.ms")
"""The options that both kinds have, with `schema` and `schema.<table>`."""


class LakeSystem(LakeSettings, System):
    """Tables as inputs and outputs. A subclass knows how to open them."""

    __slots__ = ()

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    has_keys: ClassVar[bool] = False
    lag_unit: ClassVar[str] = "commit"

    @classmethod
    def of(cls, name: str, lake: Lake, schemas: Mapping[str, str], options: Mapping[str, str]) -> LakeSystem:
        """The system with the options that all kinds of tables have. Raises ConfigError."""
        changes = next((each for each in CHANGES if each == options.get("changes", CHANGES[0])), None)
        if changes is None:
            raise ConfigError(f"`systems.{name}.changes` = `{options['changes']}`: it is {', '.join(CHANGES)}")
        return cls(
            name,
            lake,
            positive_option(name, options, "partitions") or _PARTITIONS,
            schemas,
            changes,
            positive_option(name, options, "poll.ms") or _POLL_MS,
        )

    def lag(self, position: int, upcoming: int) -> int:
        """In commits that are not read to their end."""
        return max(0, place_of(upcoming).number - place_of(position).number)

    def admin(self) -> LakeAdmin:
        return LakeAdmin(self)

    def reader(self) -> LakeReader:
        return LakeReader(self)

    def writer(self, identity: WriterIdentity | None) -> LakeWriter:
        return LakeWriter(self, identity)


class DeltaSystem(LakeSystem):
    """Delta tables in a folder."""

    __slots__ = ()

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> LakeSystem:
        """The options are in docs/lakes.md."""
        try:
            from penstock.system.lake.delta import DeltaLake
        except ImportError as error:
            raise ConfigError(f"the system `{name}` needs deltalake: pip install penstock-streams[delta]") from error
        schemas, others = split_schemas(name, options)
        storage = {key.partition(".")[2]: text for key, text in others.items() if key.startswith("storage.")}
        rest = {key: text for key, text in others.items() if not key.startswith("storage.")}
        check_options(name, rest, ("folder", *_OPTIONS))
        if not options.get("folder"):
            raise ConfigError(f"`systems.{name}.folder` is missing: the URL or path of the folder with the tables")
        return cls.of(name, DeltaLake(absolute_place(options["folder"]), storage), schemas, rest)


class IcebergSystem(LakeSystem):
    """Iceberg tables of a catalog."""

    __slots__ = ()

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> LakeSystem:
        """The options are in docs/lakes.md."""
        try:
            from penstock.system.lake.iceberg import IcebergLake
        except ImportError as error:
            raise ConfigError(f"the system `{name}` needs pyiceberg: pip install penstock-streams[iceberg]") from error
        schemas, others = split_schemas(name, options)
        catalog = {key.partition(".")[2]: text for key, text in others.items() if key.startswith("catalog.")}
        rest = {key: text for key, text in others.items() if not key.startswith("catalog.")}
        check_options(name, rest, ("namespace", "outside", *_OPTIONS))
        outside = options.get("outside", "refuse")
        if outside not in ("refuse", "read"):
            raise ConfigError(f"`systems.{name}.outside` = `{outside}`: it is refuse or read")
        namespace = options.get("namespace", "default")
        if not catalog:
            raise ConfigError(
                f"`systems.{name}.catalog.*` is missing: PyIceberg's settings of the catalog, such as "
                f"`systems.{name}.catalog.type: rest` and `systems.{name}.catalog.uri`"
            )
        lake = IcebergLake(name, namespace, catalog, "read" if outside == "read" else "refuse")
        return cls.of(name, lake, schemas, rest)
