"""Where a run begins: startpoint, then checkpoint, then `samza.offset.default` (SEP-18)."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions import choose_version
from penstock.config.model import JobConfig
from penstock.engine.offsets import Ends, first_positions, resumed_positions
from penstock.startpoint.decide import Candidates, JobInputs, Sorted, StartDecision, decide_start, sort_out, taken_uuids
from penstock.startpoint.fan_out import counting
from penstock.startpoint.manager import StartpointManager
from penstock.startpoint.request import StartpointRequest, task_name
from penstock.system.base import SystemAdmin

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Where a run begins, decided once: every try to write its start checkpoint says the same."""

    restore_from: CheckpointRecord | None
    positions: Mapping[SystemStreamPartition, int]
    clears_state: bool = False
    """Whether every store begins empty although there is a checkpoint."""
    requests: tuple[StartpointRequest, ...] = ()
    """Those that the start checkpoint takes, whether applied, superseded or expired: they are deleted after it."""
    consumed: tuple[str, ...] = ()
    """Their uuids."""


def plan_start(
    view: LogView,
    from_checkpoint: str | None,
    config: JobConfig,
    ends: Ends,
    admins: Mapping[str, SystemAdmin],
    others: Mapping[SystemStream, str],
    manager: StartpointManager,
) -> StartPlan:
    """Read the requests, resolve them, choose the checkpoint. Nothing is written.

    Args:
        others: streams of the job that take no startpoint, with what they are.

    Raises:
        IncompatibleError: a startpoint cannot be applied, or the inputs do not fit the checkpoint.
        NotFoundError: the named checkpoint does not exist.
        CorruptError: a request cannot be read.
    """
    now_ms = time.time_ns() // 1_000_000
    requests = sort_out(manager.requests(), taken_uuids(view.checkpoints), now_ms, config.job.startpoint_ttl_ms)
    if not config.job.startpoint_enabled:
        left = len(requests.live) + len(requests.expired)
        if left:
            logger.warning("%d startpoints are left alone: job.startpoint.enabled is false", left)
        requests = Sorted((), (), requests.taken)
    decision = decide_start(
        requests.live,
        JobInputs(tasks_of(ends), ends, others),
        Candidates(
            choose_checkpoint(view, from_checkpoint, config),
            view.restorable,
            config.task.checkpoint_read_versions,
            named=from_checkpoint is not None,
        ),
        lambda request: resolve_request(admins, request),
    )
    positions = start_positions(decision, ends, config)
    _tell(requests, decision, positions)
    everything = (*requests.live, *requests.expired, *requests.taken)
    return StartPlan(decision.restore_from, positions, decision.clears_state, everything, requests.uuids)


def choose_checkpoint(view: LogView, from_checkpoint: str | None, config: JobConfig) -> CheckpointRecord | None:
    """The checkpoint to start from: the named one, else the last that has a version to read."""
    task = config.task
    records = view.restorable if from_checkpoint is None else [view.find(from_checkpoint)]
    chosen = choose_version(records, task.checkpoint_read_versions, task.live_checkpoint_max_age_ms)
    return None if chosen is None else chosen.record


def resolve_request(admins: Mapping[str, SystemAdmin], request: StartpointRequest) -> int:
    """The offset a request means now."""
    ssp = request.key.ssp
    return admins[ssp.system].resolve_startpoint_to_offset(ssp, request.startpoint, clamp=request.clamp)


def tasks_of(ends: Iterable[SystemStreamPartition]) -> dict[str, list[SystemStreamPartition]]:
    """Task i reads partition i of every input."""
    tasks: dict[str, list[SystemStreamPartition]] = defaultdict(list)
    for ssp in ends:
        tasks[task_name(ssp.partition)].append(ssp)
    return tasks


def start_positions(decision: StartDecision, ends: Ends, config: JobConfig) -> dict[SystemStreamPartition, int]:
    """The checkpoint's positions but for streams that are reset, and those of the startpoints over them. A checkpoint
    that a startpoint chose counts for every stream: only then state and input agree. Pure.

    Raises:
        IncompatibleError: an input has another number of partitions than at the checkpoint.
    """
    streams = {ssp.system_stream for ssp in ends}
    first = first_positions(ends, {stream: config.offset_default(stream) for stream in streams})
    reset = {stream for stream in streams if config.reset_offset(stream)}
    record = decision.restore_from
    saved = {} if record is None else {ssp: n for own in record.next_offsets.values() for ssp, n in own.items()}
    resumed = resumed_positions(saved, ends, first)
    if decision.with_state != "nearest" or record is None:
        resumed |= {ssp: first[ssp] for ssp in ends if ssp.system_stream in reset}
    return resumed | {ssp: offset for own in decision.offsets.values() for ssp, offset in own.items()}


def _tell(requests: Sorted, decision: StartDecision, positions: Mapping[SystemStreamPartition, int]) -> None:
    for request in requests.expired:
        logger.warning("the startpoint for %s is expired (job.startpoint.ttl.ms) and is deleted", request)
    for request in counting(decision.requests):
        logger.info("the startpoint for %s is applied: offset %d", request, positions[request.key.ssp])
    if decision.requests and decision.restore_from is not None:
        logger.info("state: %s, checkpoint %s", decision.with_state, decision.restore_from.id)
