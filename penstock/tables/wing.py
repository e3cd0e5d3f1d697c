"""Pushed tables as a wing: versions of reference data that are built beside the batches, and loaded at a boundary.
Commands see those that a run uses in its metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Literal

from penstock.facts import Column
from penstock.metrics.snapshot import GaugeValue, Snapshot
from penstock.wing import Wing
from penstock.wire.protocol import Call, NoArguments, Request


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
    driver="penstock.tables.driver:Tables",
    container="penstock.tables.loaded:PushedTables",
    on_host={
        "spark": "penstock.tables.spark:tables_on_spark",
        "process": "penstock.testing.runner.sides:tables_in_process",
    },
)


_STORE, _TABLES = "store.", "tables-"


@dataclass(frozen=True, slots=True)
class TableUse:
    """A pushed table as a run uses it."""

    table: Annotated[str, Column("table")]
    in_use: Annotated[int | None, Column("version", absent="none yet", right=True)]
    """The version that batches read; None before the first one."""
    loading: Annotated[int | None, Column("loading", of=lambda each: each.load)]
    """The version that containers load beside it."""
    percent: int
    """The loaded share of that version."""
    failing: bool
    """True while it cannot be loaded, and is tried again."""

    @property
    def load(self) -> str | None:
        """The version that is loaded, and its progress, in words; None if none is."""
        return None if self.loading is None else f"version {self.loading}, {self.percent} %"


def tables_in(metrics: Snapshot) -> tuple[TableUse, ...]:
    """The pushed tables of a run, by name."""
    by_table: dict[str, dict[str, int]] = {}
    for key, value in metrics.items():
        if isinstance(value, GaugeValue) and key.group.startswith(_STORE) and key.name.startswith(_TABLES):
            own = by_table.setdefault(key.group.removeprefix(_STORE), {})
            own[key.name.removeprefix(_TABLES)] = int(value.value)
    return tuple(
        TableUse(
            table,
            own.get("version") or None,
            own.get("loading") or None,
            own.get("loading-percent", 0),
            own.get("failing", 0) > 0,
        )
        for table, own in sorted(by_table.items())
    )
