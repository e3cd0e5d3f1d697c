"""Which versions of pushed tables a job uses and loads, as its metrics say."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.metrics.snapshot import GaugeValue, Snapshot

_STORE, _TABLES = "store.", "tables-"


@dataclass(frozen=True, slots=True)
class TableUse:
    """A pushed table as a run uses it."""

    table: str
    in_use: int | None
    """The version that batches read; None before the first one."""
    loading: int | None
    """The version that containers load beside it."""
    percent: int
    """How much of that they have."""
    failing: bool
    """Whether it cannot be loaded, and is tried again."""


def tables_in(metrics: Snapshot) -> tuple[TableUse, ...]:
    """What the metrics of a run say of its pushed tables."""
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
