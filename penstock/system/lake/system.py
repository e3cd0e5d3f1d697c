"""The systems `delta` and `iceberg`: a stream is a table, and a message a row."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.retry import Retry
from penstock.system.base import (
    System,
    WriterIdentity,
    check_options,
)
from penstock.system.files.schema import parse_schema
from penstock.system.lake.admin import LakeAdmin
from penstock.system.lake.log import CHANGES, Changes, place_of
from penstock.system.lake.reader import LakeReader
from penstock.system.lake.tables import ConflictError, Lake, Table
from penstock.system.lake.writer import LakeWriter

_PARTITIONS = 4
_POLL_MS = 1000
_OPTIONS = ("changes", "partitions", "poll.ms")
"""The options that both kinds have, with `schema` and `schema.<table>`."""
_AGAIN = Retry(pause_s=0.01, growth=1.5, longest_pause_s=1.0, within_s=60.0)
"""A commit is tried again while others come first."""


@dataclass(frozen=True, slots=True)
class LakeSystem(System):
    """Tables as inputs and outputs. A subclass knows how to open them."""

    name: str
    lake: Lake
    partitions: int
    """The number for a table that no job has written to."""
    schemas: Mapping[str, str]
    """By stream, of tables to be created; the empty name is for all others."""
    changes: Changes = "refuse"
    """Inputs: the treatment of commits that remove or change rows."""
    poll_ms: int = _POLL_MS
    """Inputs: the time between two looks for new commits."""

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    has_keys: ClassVar[bool] = False
    lag_unit: ClassVar[str] = "commit"

    @classmethod
    def made(cls, name: str, lake: Lake, options: Mapping[str, str]) -> LakeSystem:
        """The system with the options that all kinds of tables have. Raises ConfigError."""
        schemas = {key: text for key, text in options.items() if key.partition(".")[0] == "schema"}
        for key, text in schemas.items():
            try:
                parse_schema(text)
            except ConfigError as error:
                raise ConfigError(f"`systems.{name}.{key}`: {error}") from error
        changes = next((each for each in CHANGES if each == options.get("changes", CHANGES[0])), None)
        if changes is None:
            raise ConfigError(f"`systems.{name}.changes` = `{options['changes']}`: it is {', '.join(CHANGES)}")
        return cls(
            name,
            lake,
            _positive(name, options, "partitions", _PARTITIONS),
            {key.partition(".")[2]: text for key, text in schemas.items()},
            changes,
            _positive(name, options, "poll.ms", _POLL_MS),
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

    def schema_of(self, stream: str) -> pa.Schema:
        """The schema of a table to be created. Raises ConfigError if none is configured."""
        text = self.schemas.get(stream) or self.schemas.get("")
        if text is None:
            raise ConfigError(
                f"the table `{self.name}.{stream}` does not exist: create it, or set `systems.{self.name}.schema` or "
                f"`systems.{self.name}.schema.{stream}`, as in `user STRING, visits BIGINT`, and it is created"
            )
        return parse_schema(text)

    def opened(self, stream: str) -> tuple[Table, int]:
        """The table as it is now, and the number of its partitions, which is noted there. Raises NotFoundError."""
        table = self.lake.open(stream)
        known = table.partitions
        if known is None:
            with suppress(ConflictError):  # another process has noted it
                table.note_partitions(self.partitions)
            table = self.lake.open(stream)
            known = table.partitions or self.partitions
        return table, known


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
        storage = {key.partition(".")[2]: text for key, text in options.items() if key.startswith("storage.")}
        rest = {key: text for key, text in options.items() if not key.startswith(("storage.", "schema"))}
        check_options(name, rest, ("folder", *_OPTIONS))
        if not options.get("folder"):
            raise ConfigError(f"`systems.{name}.folder` is missing: the URL or path of the folder with the tables")
        return cls.made(name, DeltaLake(_absolute(options["folder"]), storage), options)


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
        catalog = {key.partition(".")[2]: text for key, text in options.items() if key.startswith("catalog.")}
        rest = {key: text for key, text in options.items() if not key.startswith(("catalog.", "schema"))}
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
        return cls.made(name, IcebergLake(name, namespace, catalog, "read" if outside == "read" else "refuse"), options)


def _absolute(folder: str) -> str:
    return folder if "://" in folder else str(Path(folder).expanduser().absolute())


def _positive(name: str, options: Mapping[str, str], option: str, default: int) -> int:
    text = options.get(option, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise ConfigError(f"`systems.{name}.{option}` = `{text}` is not a number from 1")
    return int(text)
