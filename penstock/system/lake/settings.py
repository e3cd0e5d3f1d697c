"""The settings of a system of tables, and the tables by them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.system.lake.log import Changes
from penstock.system.lake.tables import ConflictError, Lake, LakeTable
from penstock.system.rows.schema import parse_schema


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The settings in `systems.<name>.*`."""

    name: str
    lake: Lake
    partitions: int
    """The number for a table that no job has written to."""
    schemas: Mapping[str, str]
    """By stream, of tables to be created; the empty name is for all others."""
    changes: Changes
    """Inputs: the treatment of commits that remove or change rows."""
    poll_ms: int
    """Inputs: the time between two looks for new commits."""

    def schema_of(self, stream: str) -> pa.Schema:
        """The schema of a table to be created. Raises ConfigError if none is configured."""
        text = self.schemas.get(stream) or self.schemas.get("")
        if text is None:
            raise ConfigError(
                f"the table `{self.name}.{stream}` does not exist: create it, or set `systems.{self.name}.schema` or "
                f"`systems.{self.name}.schema.{stream}`, as in `user STRING, visits BIGINT`, and it is created"
            )
        return parse_schema(text)

    def opened(self, stream: str) -> tuple[LakeTable, int]:
        """The table as it is now, and the number of its partitions, which is noted there. Raises NotFoundError."""
        table = self.lake.open(stream)
        known = table.partitions
        if known is None:
            with suppress(ConflictError):  # another process has noted it
                table.note_partitions(self.partitions)
            table = self.lake.open(stream)
            known = table.partitions or self.partitions
        return table, known
