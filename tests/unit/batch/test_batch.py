"""The batch as a value."""

from __future__ import annotations

from penstock.batch.batch import Batch
from penstock.wire.protocol import AttemptCall, EndBatch, Identity, StartRun, dump, load


def test_calls_carry_the_whole_batch() -> None:
    identity, batch = Identity("i", 3), Batch(7, 2, 1_700_000_000_000, "drain")
    for request in (StartRun(batch), EndBatch(batch, {0: {1: "t"}})):
        assert load(type(request), dump(request)) == request
    attempt = AttemptCall(identity, batch, 1, [0, 2])
    assert load(AttemptCall, dump(attempt)) == attempt


def test_a_run_that_is_repeated_keeps_what_was_chosen() -> None:
    batch = Batch(7, 1, 1_700_000_000_000)
    assert batch.next_run() == Batch(7, 2, 1_700_000_000_000)
    assert batch.last_ended == 6
