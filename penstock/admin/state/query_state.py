"""The first checkpoint of a job inside a streaming query, with stores that were filled from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

from penstock.admin.checkpoint.change import append_record, edited_sections
from penstock.admin.job.ownership import claimed_job
from penstock.admin.jobs import FoundJob
from penstock.admin.state.store_uploads import StoreUploads
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.batch.batch import QUERY, OfferedBatch, QuerySection
from penstock.checkpoint.edit import CheckpointContent, successor
from penstock.checkpoint.log import CheckpointLog, OnDamage
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.sections import Sections
from penstock.checkpoint.task_values import Markers
from penstock.config.model import JobConfig
from penstock.errors import IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.start.job_streams import JobStreams
from penstock.start.layout import store_layout
from penstock.state.outside_backup import FirstBackup, OutsideBackup
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
    with ExitStack() as stack:
        objects = open_job_root(config.job)
        stack.callback(objects.close)
        return CheckpointLog(objects, JobPaths(config.job.name, config.job.id)).read(on_damage).latest


def write_first_state(state: FirstState) -> CheckpointRecord:
    """Back up all stores while the job is held, and append its first checkpoint. Until that nothing has changed: what a
    process that dies before leaves behind is named by no checkpoint.

    Raises:
        IncompatibleError: the job has a checkpoint.
        LeaseHeldError, FencedError: the job runs.
        PenstockError: a backend failed.
    """
    config = state.config
    with ExitStack() as stack:
        objects = open_job_root(config.job)
        stack.callback(objects.close)
        found = FoundJob(config, JobPaths(config.job.name, config.job.id), objects)
        log = found.log
        _refuse_state(log, found)
        system = QuerySystem(state.query, state.tasks, state.batch + 1)
        streams = JobStreams.open(state.graph, config, {QUERY_SYSTEM: system})
        stack.callback(streams.close)
        return _commit(state, found, log, streams)


def _refuse_state(log: CheckpointLog, found: FoundJob) -> None:
    if (latest := log.read().latest) is not None:
        raise IncompatibleError(f"job {found.paths.root} has the checkpoint {latest.id}: nothing was imported")


def _commit(state: FirstState, found: FoundJob, log: CheckpointLog, streams: JobStreams) -> CheckpointRecord:
    with claimed_job(found, log, "import") as claim:
        view = log.known()
        if view.latest is not None:
            raise IncompatibleError(f"job {found.paths.root} has a checkpoint now: nothing was imported")
        now_ms, nanos = SYSTEM_CLOCK.now_ms(), time.monotonic_ns()
        base = _base(state, streams)
        draft = view.next_id(now_ms, nanos)
        StoreUploads(found, state.tasks, streams.systems, view, claim.epoch).prepare(state.stores)
        backup = OutsideBackup(found.config, found.paths, claim.epoch, base.id, draft)
        markers = state.back_up(FirstBackup(backup, state.tasks, state.stores))
        content = _content(state, streams, markers)
        sections = edited_sections(base, content, view)
        record = successor(base, content, view, claim, found.config.task, now_ms, nanos, sections)
        append_record(log, record, found.paths.root)
    return record


def _base(state: FirstState, streams: JobStreams) -> CheckpointRecord:
    return CheckpointRecord(
        id=CheckpointId(0, 0),
        parent=None,
        epoch=0,
        run_id="",
        writer="",
        task_count=state.tasks,
        batch=state.batches,
        batch_time_ms=0,
        stores=store_layout(state.graph),
        next_offsets=_offsets(state, streams),
        tasks={},
        sections=Sections.of({QUERY: QuerySection(OfferedBatch(state.plan, has_output=False))}),
    )


def _content(state: FirstState, streams: JobStreams, markers: Mapping[int, Markers]) -> CheckpointContent:
    return CheckpointContent(_offsets(state, streams), markers, streams.identities())


def _offsets(state: FirstState, streams: JobStreams) -> dict[int, dict[SystemStreamPartition, int]]:
    grouping = streams.group(streams.ends())
    return {task: dict.fromkeys(ssps, state.batch + 1) for task, ssps in grouping.tasks.items()}
