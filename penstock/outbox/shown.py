"""The publication of exactly-once output, as a run shows it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.wording import counted


@dataclass(frozen=True, slots=True)
class PublishingProgress:
    """The publication of exactly-once output that checkpoints have and readers do not see yet."""

    messages: int
    done: int
    outputs: tuple[str, ...]
    began: float
    """On the run's monotonic clock, in seconds."""
    waits_for: str = ""
    """The reason why it does not go on, in words; empty if there is none."""

    @property
    def left(self) -> int:
        return self.messages - self.done

    def __str__(self) -> str:
        waits = f", waits for {self.waits_for}" if self.waits_for else ""
        return f"{self.done:,} of {counted(self.messages, 'message')} to {', '.join(self.outputs)}{waits}"
