"""The first checkpoint of a job inside a streaming query, with stores that were filled from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.admin.checkpoint.change import next_checkpoint
from penstock.admin.checkpoint.target import before_the_first
from penstock.admin.jobs import FoundJob, opened
from penstock.admin.state.store_uploads import StoreUploads
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import QUERY, OfferedBatch, QuerySection
from penstock.checkpoint.edit import CheckpointContent
from penstock.checkpoint.log import OnDamage
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import Sections
from penstock.checkpoint.task_values import Markers
from penstock.config.model import JobConfig
from penstock.errors import IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.start.job_streams import JobStreams
from penstock.start.layout import store_layout
from penstock.state.outside_backup import FirstBackup
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.system.spark import QuerySystem

BackUp: TypeAlias = Callable[[FirstBackup], Mapping[int, Markers]]
"""Makes all backups of a first checkpoint. Returns the markers, task by task."""


@dataclass(frozen=True, slots=True)
class FirstState:
    """The content of the first checkpoint of a query's job."""

    graph: ApplicationGraph
    config: JobConfig
    query: str
    batch: int
    """The last batch that the state has seen."""
    plan: str
    """Tells the batch from others of its number (`OfferedBatch.plan`)."""
    tasks: int
    stores: tuple[str, ...]
    back_up: BackUp
    batches: int = 0
    """The number of batches that made the state; with 0, the job's first batch brings initial state."""


def first_record(config: JobConfig, on_damage: OnDamage = "raise") -> CheckpointRecord | None:
    """The last checkpoint of the job; None if it has none.

    Args:
        on_damage: see `CheckpointLog.read`.
    """
    with opened(config) as found:
        return found.log.read(on_damage).latest


def write_first_state(state: FirstState) -> CheckpointRecord:
    """Back up all stores while the job is held, and append its first checkpoint. Until that nothing has changed: what a
    process that dies before leaves behind is named by no checkpoint.

    Raises:
        IncompatibleError: the job has a checkpoint.
        LeaseHeldError, FencedError: the job runs.
        PenstockError: a backend failed.
    """
    with opened(state.config) as found:
        seen = found.log.read()
        if seen.latest is not None:
            raise IncompatibleError(f"job {found.paths.root} has the checkpoint {seen.latest.id}: nothing was imported")
        system = QuerySystem(state.query, state.tasks, state.batch + 1)
        with closing(JobStreams.open(state.graph, state.config, {QUERY_SYSTEM: system})) as streams:
            return _commit(state, found, seen, streams)


def _commit(state: FirstState, found: FoundJob, seen: LogView, streams: JobStreams) -> CheckpointRecord:
    late = f"job {found.paths.root} has a checkpoint now: nothing was imported"
    with next_checkpoint(found, "import", seen, late) as following:
        base = _base(state, streams)
        backup = StoreUploads(following, state.tasks, streams.systems).outside(base.id, state.stores)
        markers = state.back_up(FirstBackup(backup, state.tasks, state.stores))
        record = following.record(base, CheckpointContent(_offsets(state, streams), markers, streams.identities()))
        following.append(record)
    return record


def _base(state: FirstState, streams: JobStreams) -> CheckpointRecord:
    sections = Sections.of({QUERY: QuerySection(OfferedBatch(state.plan, has_output=False))})
    first = before_the_first(state.tasks, store_layout(state.graph))
    return replace(first, batch=state.batches, next_offsets=_offsets(state, streams), sections=sections)


def _offsets(state: FirstState, streams: JobStreams) -> dict[int, dict[SystemStreamPartition, int]]:
    grouping = streams.group(streams.ends())
    return {task: dict.fromkeys(ssps, state.batch + 1) for task, ssps in grouping.tasks.items()}
