"""The commits of a run, for the run loop's thread: begins them, waits for them, and notes their results.

The policy decides when a commit is due, and whether it begins, is skipped, or is waited for. It is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.base.retry import SYSTEM_CLOCK
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.config.settings import TaskSettings
from penstock.driver.commit.coordinator import CommitCoordinator, CompletedCommit
from penstock.driver.commit.record import CommitRequest
from penstock.driver.failures import RunFailures
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import RunContext
from penstock.driver.show.metrics import NS_PER_MS
from penstock.driver.show.progress import BatchTimer
from penstock.driver.watches import LeaseGate

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


class CommitSchedule:
    """Begins a commit when the policy says so, and notes complete ones."""

    def __init__(self, run: RunContext, coordinator: CommitCoordinator, gate: LeaseGate, failures: RunFailures) -> None:
        task = run.job.config.task
        self._coordinator = coordinator
        self._policy = CommitPolicy.of(task)
        self._timeout_s = task.commit_timeout_ms / 1000
        self._fleet = run.fleet
        self._gate = gate
        self._failures = failures
        self._board = run.board
        self._stop = run.stop.immediate
        self._clock = run.clock
        self._claim: Claim | None = None
        self._requested = False
        self._began_at = run.clock.monotonic()
        self._last_batch = -1
        """The batch of the last commit that began in this epoch."""
        self.last_ms: dict[str, int] = {}
        """Durations of the last complete commit of this run: `snapshot`, which processing waited for, and `total`."""

    def enter(self, claim: Claim, record: CheckpointRecord | None) -> None:
        """Begin an epoch. `record`: the parent of its first checkpoint; None: there is none."""
        self._claim = claim
        self._coordinator.last = record
        if record is not None:
            self._last_batch = record.batch

    @property
    def last_batch(self) -> int:
        """The batch of the last complete checkpoint; 0 before the first."""
        last = self._coordinator.last
        return 0 if last is None else last.batch

    def request(self) -> None:
        self._requested = True

    def if_due(self, boundary: Boundary, watch: BatchTimer) -> None:
        """At a batch boundary, begin a commit if the policy says so. Raises the error of a commit that failed."""
        self.look()
        decision = self._policy.decide(self._facts(boundary))
        if decision is CommitDecision.SKIP:
            self._board.metrics.commits_skipped.inc()
        if decision in {CommitDecision.BEGIN, CommitDecision.WAIT}:
            watch.lap("other")
            self.wait()
            watch.lap("commitWait")
            self._begin(CommitRequest(boundary, idle=not (self._requested or self._last_batch != boundary.batch)))
            watch.lap("walCommit")

    def make(self, request: CommitRequest) -> None:
        """Wait for the commit in flight, make another, and wait for it."""
        self.wait()
        self._begin(request)
        self.wait()

    def wait(self) -> None:
        """Wait until the commit in flight is complete, then until its output is published; each at most the timeout."""
        while (done := self._coordinator.wait(self._timeout_s, self._stop)) is not None:
            self._note(done)

    def look(self) -> None:
        """Note a commit that has completed meanwhile. Raises the error of one that failed."""
        self._note(self._coordinator.poll())

    def abandon(self) -> None:
        """End the epoch: the commit in flight will not be in the log, unless it is already."""
        self._coordinator.abandon()

    def close(self) -> None:
        """Abandon the commit in flight. No call follows."""
        self._coordinator.close()

    def _facts(self, boundary: Boundary) -> CommitFacts:
        flight, new_batches = self._coordinator.in_flight, self._last_batch != boundary.batch
        return CommitFacts(
            requested=self._requested,
            since_last_ms=(self._clock.monotonic() - self._began_at) * 1000,
            new_batches=new_batches,
            in_flight_ms=None if flight is None else flight.age_ms(self._clock),
            pending_bytes=0 if flight is None else self._fleet.pending_bytes(),
            wanted=not new_batches and self._fleet.wants_commit(),
        )

    def _begin(self, request: CommitRequest) -> None:
        if self._claim is None:
            raise AssertionError("a commit belongs to an epoch")
        self._gate.check_commit()
        self._requested = False
        self._began_at, self._last_batch = self._clock.monotonic(), request.boundary.batch
        self._board.metrics.commit_calls.inc()
        self._board.uncommitted.commit_began()
        self._coordinator.begin(self._claim, request)

    def _note(self, done: CompletedCommit | None) -> None:
        if done is not None:
            self._failures.reset(done.record)
            self.last_ms = {"snapshot": done.snapshot_ms, "total": done.total_ms}
            self._board.metrics.snapshot_ns.update(done.snapshot_ms * NS_PER_MS)
            self._board.metrics.commit_ns.update(done.total_ms * NS_PER_MS)
            self._board.uncommitted.commit_completed()
            self._board.update(last_checkpoint=str(done.record.id), checkpoint_ms=SYSTEM_CLOCK.now_ms())
