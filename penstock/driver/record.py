"""The record of a commit, from its boundary and the markers of all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Claim, Detail, Ended
from penstock.checkpoint.versions import build_versions
from penstock.config.model import TaskSettings
from penstock.container.protocol import Markers
from penstock.driver.boundary import Boundary
from penstock.plan.positions import to_next_offsets


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit that is to be made: of everything up to a boundary."""

    boundary: Boundary
    detail: Detail = "commit"
    ended: Ended | None = None
    consumed_startpoints: tuple[str, ...] = ()
    """The uuids of the requests that a start takes."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes the records of one run."""

    log: CheckpointLog
    layout: Mapping[str, str]
    """What is recorded of each store."""
    tasks: int
    settings: TaskSettings

    def record(
        self,
        checkpoint_id: CheckpointId,
        parent: CheckpointId | None,
        claim: Claim,
        request: CommitRequest,
        found: Markers,
    ) -> CheckpointRecord:
        """The record of a commit whose backends have `found` these markers."""
        boundary = request.boundary
        by_task = to_next_offsets(boundary.positions, self.tasks)
        record = CheckpointRecord(
            id=checkpoint_id,
            parent=parent,
            epoch=claim.epoch,
            run_id=claim.run_id,
            writer=claim.writer,
            task_count=self.tasks,
            batch=boundary.batch,
            batch_time_ms=boundary.batch_time_ms,
            stores=self.layout,
            next_offsets=by_task,
            tasks={
                task: build_versions(
                    checkpoint_id,
                    {ssp: str(offset - 1) for ssp, offset in offsets.items() if offset > 0},  # Samza's: the last one
                    found.get(str(task), {}),
                    self.settings.checkpoint_write_versions,
                )
                for task, offsets in by_task.items()
            },
            kind_detail=request.detail,
            ended=request.ended,
            consumed_startpoints=request.consumed_startpoints,
        )
        return replace(record, retained=self.log.known().retained_beside(record, self.settings.checkpoint_retained))
