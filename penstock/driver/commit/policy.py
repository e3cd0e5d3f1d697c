"""Decides when a commit is due, and whether it begins, is skipped, or is waited for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.config.settings import TaskSettings

_BEATS_MS = 10_000
"""Beats after a commit began may be older than the commit for this long."""


class CommitDecision(Enum):
    """The action at a batch boundary."""

    NOT_DUE = "no commit is due"
    SKIP = "one is due, but another is in flight: a later batch boundary commits these changes too"
    BEGIN = "begin one"
    WAIT = "wait for the commit in flight, then begin one"


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """The facts that the decision depends on."""

    requested: bool
    """True if the application has asked for a commit since the last one began."""
    since_last_ms: float
    new_batches: bool
    """True if batches have ended since the last commit began."""
    in_flight_ms: float | None
    """The age of the commit in flight; None if there is none."""
    pending_bytes: int
    """Keys and values written to stores since the last commit began."""
    wanted: bool = False
    """True if a backend waits for a commit, as of the last beats."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Decides by `task.commit.ms`, `task.commit.max.delay.ms` and `task.commit.max.pending.bytes`.

    Example:
        >>> policy = CommitPolicy(every_ms=60_000, max_delay_ms=10_000, max_pending_bytes=1 << 30)
        >>> policy.decide(CommitFacts(False, 61_000, True, None, 0)).name
        'BEGIN'
    """

    every_ms: int
    """0 or less: only the application asks for commits, and an idle job makes one if a backend waits for it."""
    max_delay_ms: int
    max_pending_bytes: int

    @classmethod
    def of(cls, settings: TaskSettings) -> CommitPolicy:
        return cls(settings.commit_ms, settings.commit_max_delay_ms, settings.commit_max_pending_bytes)

    def decide(self, facts: CommitFacts) -> CommitDecision:
        timed = 0 < self.every_ms <= facts.since_last_ms and facts.new_batches
        # It commits nothing that the application has not asked to commit. The beats may be older than the last commit.
        idle = facts.wanted and not facts.new_batches and facts.since_last_ms >= _BEATS_MS
        if not (facts.requested or timed):
            return CommitDecision.BEGIN if idle and facts.in_flight_ms is None else CommitDecision.NOT_DUE
        if facts.in_flight_ms is None:
            return CommitDecision.BEGIN
        if facts.in_flight_ms >= self.max_delay_ms or facts.pending_bytes >= self.max_pending_bytes:
            return CommitDecision.WAIT
        return CommitDecision.SKIP
