"""The state that an epoch begins with."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint, and the stores that are restored from it. All others begin empty, each backend with a base."""

    record: CheckpointRecord | None = None
    """The next checkpoint is made on top of it. None: there is no checkpoint."""
    cleared: bool = False
    """True if the checkpoint counts, but no store is restored."""
    emptied: frozenset[str] = frozenset()
    """Stores of the checkpoint that begin empty."""

    @property
    def restored(self) -> tuple[str, ...]:
        """The stores that are restored."""
        if self.record is None or self.cleared:
            return ()
        return tuple(store for store in self.record.stores if store not in self.emptied)
