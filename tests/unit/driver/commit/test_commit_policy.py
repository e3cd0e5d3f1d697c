"""When a commit is due, skipped, or waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.driver.commit.schedule import CommitDecision, CommitFacts, CommitPolicy

POLICY = CommitPolicy(every_ms=1000, max_delay_ms=500, max_pending_bytes=100)
QUIET = CommitFacts(requested=False, since_last_ms=0, new_batches=True, in_flight_ms=None, pending_bytes=0)


@pytest.mark.parametrize(
    ("changed", "decision"),
    [
        ({}, CommitDecision.NOT_DUE),
        ({"since_last_ms": 999.9}, CommitDecision.NOT_DUE),
        ({"since_last_ms": 1000}, CommitDecision.BEGIN),
        ({"since_last_ms": 5000, "new_batches": False}, CommitDecision.NOT_DUE),
        ({"requested": True, "new_batches": False}, CommitDecision.BEGIN),
        ({"requested": True, "in_flight_ms": 499}, CommitDecision.SKIP),
        ({"requested": True, "in_flight_ms": 499, "pending_bytes": 99}, CommitDecision.SKIP),
        ({"requested": True, "in_flight_ms": 499, "pending_bytes": 100}, CommitDecision.WAIT),
        ({"requested": True, "in_flight_ms": 500}, CommitDecision.WAIT),
        ({"since_last_ms": 1000, "in_flight_ms": 0}, CommitDecision.SKIP),
        ({"in_flight_ms": 5000, "pending_bytes": 1000}, CommitDecision.NOT_DUE),
        ({"wanted": True, "new_batches": False, "since_last_ms": 10_000}, CommitDecision.BEGIN),
        ({"wanted": True, "new_batches": False, "since_last_ms": 9_999}, CommitDecision.NOT_DUE),
        ({"wanted": True, "new_batches": False, "since_last_ms": 10_000, "in_flight_ms": 0}, CommitDecision.NOT_DUE),
    ],
)
def test_decisions(changed: dict[str, object], decision: CommitDecision) -> None:
    assert POLICY.decide(replace(QUIET, **changed)) is decision  # type: ignore[arg-type]


@pytest.mark.parametrize("every_ms", [0, -1])
def test_without_an_interval_only_the_application_asks(every_ms: int) -> None:
    policy = replace(POLICY, every_ms=every_ms)
    assert policy.decide(replace(QUIET, since_last_ms=10**9)) is CommitDecision.NOT_DUE
    assert policy.decide(replace(QUIET, since_last_ms=10**9, wanted=True)) is CommitDecision.NOT_DUE
    assert policy.decide(replace(QUIET, requested=True)) is CommitDecision.BEGIN
