"""The pushed tables that a run uses, from its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from penstock.facts import Column
from penstock.metrics.snapshot import GaugeValue, Snapshot

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
