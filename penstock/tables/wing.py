"""Pushed tables as a wing: versions of reference data that are built beside the batches, and loaded at a boundary."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Literal

from penstock.wing import Wing
from penstock.wire.calls import Call
from penstock.wire.protocol import NoArguments, Request


@dataclass(frozen=True, slots=True)
class LoadTable(Request):
    """Load this version of a pushed table beside the one in use. All other versions of the table are removed."""

    table: str
    in_use: int | None
    """The version that the next batches read until another one is loaded."""
    manifest: bytes
    """See `penstock.tables.manifest`."""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """A container's progress with a version of a pushed table."""

    table: str
    version: int
    state: Literal["loading", "loaded", "failed"]
    done_bytes: int
    total_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The version of a pushed table that is in use, and the progress of another."""

    table: str
    in_use: int | None
    """None before the first version is loaded."""
    loading: int | None = None
    done_bytes: int = 0
    total_bytes: int = 0
    failure: str = ""
    """The reason why the version was not loaded; it is tried again."""
    note: str = ""
    """A further note, for example that a version was refused."""

    @property
    def percent(self) -> int:
        return 100 * self.done_bytes // self.total_bytes if self.total_bytes else 0

    def __str__(self) -> str:
        found = "no version yet" if self.in_use is None else f"version {self.in_use}"
        if self.loading is not None:
            share = f" ({self.percent} %)" if self.total_bytes else ""
            failed = f", which failed and is tried again: {self.failure}" if self.failure else ""
            found = f"{found}, loading version {self.loading}{share}{failed}"
        return f"{found}; {self.note}" if self.note else found


LOAD_TABLE = Call("load-table", LoadTable, NoneType)
TABLES = Call("tables", NoArguments, list[TableProgress])
TABLES_WING = Wing(
    "tables",
    calls=(LOAD_TABLE, TABLES),
    driver="penstock.tables.driver.run:Tables",
    container="penstock.tables.container.loaded:PushedTables",
    on_host={
        "spark": "penstock.tables.spark:tables_on_spark",
        "process": "penstock.testing.runner.sides:tables_in_process",
    },
)
