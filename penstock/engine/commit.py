"""Commits: from the containers' markers to one record in the checkpoint log."""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Claim, Detail, Ended, markers
from penstock.checkpoint.v2 import CheckpointV2
from penstock.engine.directory import ContainerDirectory
from penstock.errors import PenstockError, RetryableError

_RETRIES = 5
_BACKOFF_SECONDS = 0.2


class CommitCoordinator:
    """Makes the checkpoints of one run, in one epoch after the other."""

    def __init__(
        self, log: CheckpointLog, directory: ContainerDirectory, layout: Mapping[str, str], tasks: int
    ) -> None:
        self._log = log
        self._directory = directory
        self._layout = dict(layout)
        self._tasks = tasks
        self.last: CheckpointRecord | None = None
        """The last complete checkpoint of the job, which the next one is made on top of."""

    def commit(
        self,
        claim: Claim,
        positions: Mapping[SystemStreamPartition, int],
        batch: int,
        batch_time_ms: int,
        *,
        detail: Detail = "commit",
        ended: Ended | None = None,
    ) -> CheckpointRecord:
        """Snapshot, upload, append the record. It is complete when this returns.

        Raises:
            FencedError: another driver owns the log; nothing was made visible.
            ContainerLostError: a container is gone; the commit is not complete.
        """
        last = self.last.id if self.last else None
        checkpoint_id = CheckpointId.next_after(last, time.time_ns() // 1_000_000, time.monotonic_ns())
        found = self._directory.commit(claim.epoch, str(checkpoint_id))
        by_task: dict[int, dict[SystemStreamPartition, int]] = {task: {} for task in range(self._tasks)}
        for ssp, offset in positions.items():
            by_task[ssp.partition][ssp] = offset
        record = CheckpointRecord(
            id=checkpoint_id,
            parent=last,
            epoch=claim.epoch,
            run_id=claim.run_id,
            writer=claim.writer,
            task_count=self._tasks,
            batch=batch,
            batch_time_ms=batch_time_ms,
            stores=self._layout,
            next_offsets=by_task,
            tasks={
                task: {"2": _v2(checkpoint_id, offsets, found.get(str(task), {}))} for task, offsets in by_task.items()
            },
            kind_detail=detail,
            ended=ended,
        )
        self._append(record)
        self.last = record
        return record

    def _append(self, record: CheckpointRecord) -> None:
        """Append, retrying what may pass; the same record twice is one record."""
        for attempt in range(_RETRIES):
            try:
                self._log.append(record)
            except RetryableError as error:
                if attempt == _RETRIES - 1:
                    raise PenstockError(
                        f"checkpoint {record.id} could not be written in {_RETRIES} tries, so the run ends: {error}. "
                        "Whether it is in the log, the next start finds out; nothing is lost"
                    ) from error
                time.sleep(_BACKOFF_SECONDS * 2**attempt)
            else:
                return


def _v2(
    checkpoint_id: CheckpointId, offsets: Mapping[SystemStreamPartition, int], found: Mapping[str, Mapping[str, str]]
) -> str:
    """The task's Checkpoint V2: the last processed offsets, as Samza has them, and the markers."""
    processed = {ssp: str(offset - 1) for ssp, offset in offsets.items() if offset > 0}
    return CheckpointV2(checkpoint_id, processed, found).encode()


def all_markers(record: CheckpointRecord) -> dict[str, dict[str, dict[str, str]]]:
    """Task (as text) -> factory -> store -> marker."""
    return {str(task): markers(record, task) for task in record.tasks}
