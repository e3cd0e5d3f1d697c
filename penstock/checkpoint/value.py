"""What the versions of a task's checkpoint have in common (SEP-28, `Checkpoint`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.api.ssp import SystemStreamPartition


class Checkpoint(Protocol):
    """One task's checkpoint, as Samza writes it. `CheckpointV1` and `CheckpointV2` are the versions there are."""

    @property
    def version(self) -> int:
        """1 or 2."""

    @property
    def offsets(self) -> Mapping[SystemStreamPartition, str | None]:
        """The last processed offsets. In version 1 the positions of changelogs are among them; version 2 has those of
        inputs only, and keeps the stores' markers apart."""

    def encode(self) -> str:
        """The JSON that Samza writes."""
