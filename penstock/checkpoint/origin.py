"""What the state of an epoch begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.checkpoint.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is no checkpoint: every store begins empty."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """The checkpoint counts, but every store begins empty, and each backend begins with a base."""

    record: CheckpointRecord


@dataclass(frozen=True, slots=True)
class FromRecord:
    """Every store that the checkpoint covers is restored from it, but for those that are to begin empty."""

    record: CheckpointRecord
    emptied: frozenset[str] = frozenset()

    @property
    def restored(self) -> tuple[str, ...]:
        """The stores that are restored."""
        return tuple(store for store in self.record.stores if store not in self.emptied)


Origin: TypeAlias = Nothing | Cleared | FromRecord


def origin_of(record: CheckpointRecord | None, *, cleared: bool, emptied: frozenset[str] = frozenset()) -> Origin:
    """The origin of a start that chose this checkpoint.

    Args:
        cleared: whether the start drops the state.
        emptied: the stores that begin empty in any case.
    """
    if record is None:
        return Nothing()
    return Cleared(record) if cleared else FromRecord(record, emptied)


def record_of(origin: Origin) -> CheckpointRecord | None:
    """The checkpoint that the next one is made on top of."""
    return None if isinstance(origin, Nothing) else origin.record
