"""The choice between the two ways of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.direct.two_ways import MOST_BYTES, MOST_MESSAGES, Backoff, BatchFacts, reason_for_spark

SMALL = BatchFacts(run=1, is_control=False, messages=10, message_bytes=0.0, worker_is_ready=True, left_out=0)


def test_a_small_batch_goes_directly() -> None:
    assert reason_for_spark(SMALL) == ""
    assert reason_for_spark(replace(SMALL, messages=MOST_MESSAGES, message_bytes=MOST_BYTES / MOST_MESSAGES)) == ""


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(SMALL, run=2), "repeat"),
        (replace(SMALL, is_control=True), "control"),
        (replace(SMALL, messages=MOST_MESSAGES + 1), "large"),
        (replace(SMALL, messages=2, message_bytes=MOST_BYTES), "large"),
        (replace(SMALL, left_out=1), "failure"),
        (replace(SMALL, worker_is_ready=False), "start"),
    ],
)
def test_everything_else_is_sparks(facts: BatchFacts, reason: str) -> None:
    assert reason_for_spark(facts) == reason


def test_a_failure_leaves_out_twice_as_many_batches_each_time_until_a_batch_succeeds() -> None:
    backoff, left_out = Backoff(), []
    for _ in range(12):
        backoff = backoff.failed()
        left_out.append(backoff.left_out)
        while backoff.left_out:
            backoff = backoff.skipped()
    assert left_out == [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024, 1024, 1024]
    assert backoff.succeeded().failed().left_out == 8
