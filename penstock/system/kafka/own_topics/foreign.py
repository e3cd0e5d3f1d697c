"""Records in Penstock's own topics that it has not written. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST = 300


@dataclass(slots=True)
class ForeignRecords:
    """Their number, and the fault of the last one: a flood of them is one message, and no memory."""

    count: int = 0
    last: str = ""

    def add(self, key: bytes | None, reason: str) -> None:
        self.count += 1
        self.last = f"the key {repr(key)[:_LONGEST]}: {reason[:_LONGEST]}"

    def take(self) -> str:
        """A text about the records since the last call; empty if there are none."""
        if not self.count:
            return ""
        said = f"{self.count} that Penstock has not written, the last one under {self.last}"
        self.count = 0
        return said
