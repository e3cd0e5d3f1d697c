"""Decides which way a batch takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MOST_MESSAGES = 20_000
MOST_BYTES = 16 << 20
"""A larger batch gains nothing: the work takes longer than Spark's part, and Spark works in parallel."""
LIMIT_BYTES = 4 * MOST_BYTES
"""A direct run breaks off once its messages take more memory: sizes are estimates, and operators may make many of
one."""
_MOST_LEFT_OUT = 1024


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts that decide it."""

    run: int
    is_control: bool
    messages: int
    message_bytes: float
    """The size of a message in the batches before; 0 if it is not known."""
    worker_is_ready: bool
    """False while the direct worker starts."""
    left_out: int
    """So many batches go to Spark because a direct run broke off, or the worker ended."""


def reason_for_spark(facts: BatchFacts) -> str:
    """Why Spark should run the batch, in a word; empty if it should go the direct way."""
    if facts.run > 1:
        return "repeat"
    if facts.is_control:
        return "control"
    if facts.messages > MOST_MESSAGES or facts.messages * facts.message_bytes > MOST_BYTES:
        return "large"
    if facts.left_out:
        return "failure"
    return "" if facts.worker_is_ready else "start"


@dataclass(frozen=True, slots=True)
class Backoff:
    """The batches that go to Spark after a direct run that broke off: twice as many each time, until one succeeds."""

    left_out: int = 0
    next: int = 8

    def failed(self) -> Backoff:
        return Backoff(self.next, min(2 * self.next, _MOST_LEFT_OUT))

    def skipped(self) -> Backoff:
        return Backoff(max(0, self.left_out - 1), self.next)

    def succeeded(self) -> Backoff:
        return Backoff()
