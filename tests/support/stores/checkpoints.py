"""Checkpoint records for tests of the log."""

from __future__ import annotations

from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim


def checkpoint(claim: Claim, number: int, parent: CheckpointId | None = None) -> CheckpointRecord:
    """An empty checkpoint of the claim's owner, made at `number` milliseconds."""
    return CheckpointRecord(
        id=CheckpointId(number, 0),
        parent=parent,
        epoch=claim.epoch,
        run_id=claim.run_id,
        writer=claim.writer,
        task_count=0,
        batch=number,
        batch_time_ms=number,
        stores={},
        next_offsets={},
        tasks={},
    )
