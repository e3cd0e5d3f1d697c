"""Where a run begins: startpoint, then checkpoint, then `samza.offset.default` (SEP-18)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.positions import Positions, TaskSsp, first_positions, resumed_positions, to_positions
from penstock.checkpoint.edit import choose_origin
from penstock.checkpoint.intermediate import Intermediate
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.origin import Origin
from penstock.checkpoint.record import CheckpointRecord, OfferedBatch
from penstock.config.model import JobConfig
from penstock.graph.specs import OperatorSpec
from penstock.start.identities import refuse_recreated
from penstock.start.reset import Reset
from penstock.start.startpoints.decide import (
    Candidates,
    JobInputs,
    Sorted,
    StartDecision,
    decide_start,
    sort_out,
    taken_uuids,
)
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.startpoints.request import StartpointRequest, task_number
from penstock.start.times import StartTimes, start_times
from penstock.system.base import SystemAdmin
from penstock.wording import counted, utc_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Where a run begins, decided once: every try to write its start checkpoint says the same."""

    restore_from: CheckpointRecord | None
    positions: Positions
    clears_state: bool = False
    """Whether every store begins empty although there is a checkpoint."""
    requests: tuple[StartpointRequest, ...] = ()
    """Those that the start checkpoint takes, whether applied, superseded or expired: they are deleted after it."""
    consumed: tuple[str, ...] = ()
    """Their uuids."""
    times: StartTimes = field(default_factory=StartTimes)
    """The event times and watermarks that the run begins with."""
    reset: Reset = field(default_factory=Reset)
    """The operators that begin again."""
    unwritten: frozenset[str] = frozenset()
    """The stores of the checkpoint that the job no longer writes, because something else fills them."""
    intermediate: Mapping[SystemStream, Intermediate] = field(default_factory=dict)
    """What is to be read of the durable intermediate streams."""
    offered: OfferedBatch | None = None
    """The last batch of the query that the job runs inside. A start that goes back does not have its output."""

    @property
    def origin(self) -> Origin:
        """The state that the run's first epoch begins with."""
        return Origin(self.restore_from, self.clears_state, self.reset.stores | self.unwritten)

    def resetting(self, reset: Reset, operators: Iterable[OperatorSpec]) -> StartPlan:
        """The same start, but some of the application's operators, given upstream first, begin again."""
        return replace(self, reset=reset, times=reset.times(self.times, operators))


def plan_start(
    view: LogView,
    from_checkpoint: str | None,
    config: JobConfig,
    inputs: JobInputs,
    admins: Mapping[str, SystemAdmin],
    manager: StartpointManager,
    now_ms: int,
) -> StartPlan:
    """Read the requests, resolve them, choose the checkpoint. Nothing is written.

    Raises:
        IncompatibleError: a startpoint cannot be applied, the inputs do not fit the checkpoint, one of them was deleted
            and created again, or newer checkpoints than the one that may be read would be passed over.
        NotFoundError: the named checkpoint does not exist.
    """
    found, unreadable = manager.read()
    requests = sort_out(found, taken_uuids(view.checkpoints), now_ms, config.job.startpoint_ttl_ms)
    if not config.job.startpoint_enabled:
        left = len(requests.live) + len(requests.expired)
        if left:
            logger.warning("job.startpoint.enabled is false, so this start ignores %s", counted(left, "startpoint"))
        requests, unreadable = Sorted((), (), requests.taken), ()
    decision = decide_start(
        requests.live,
        inputs,
        Candidates(
            choose_origin(view, from_checkpoint, config.task),
            view.restorable,
            config.task.checkpoint_read_versions,
            named=from_checkpoint is not None,
        ),
        lambda request: resolve_request(admins, request),
    )
    positions = start_positions(decision, inputs, config)
    record = decision.restore_from
    if record is not None:
        refuse_recreated(record, inputs.identities, positions, chosen_positions(decision, inputs, config))
    times = start_times(
        record,
        clears_state=decision.clears_state,
        positions=positions,
        ends=inputs.ends,
        parent=next((each for each in view.checkpoints if record is not None and each.id == record.parent), None),
    )
    for each in unreadable:
        logger.error("%s", each)
    _tell(requests, decision, positions)
    _tell_times(times)
    everything = (*requests.live, *requests.expired, *requests.taken)
    offered = None if record is None else record.offered
    if offered is not None and (record != view.latest or view.faults):
        offered = replace(offered, has_output=False)
    return StartPlan(record, positions, decision.clears_state, everything, requests.uuids, times, offered=offered)


def resolve_request(admins: Mapping[str, SystemAdmin], request: StartpointRequest) -> int:
    """The offset a request means now."""
    ssp = request.key.ssp
    return admins[ssp.system].resolve_startpoint_to_offset(ssp, request.startpoint, clamp=request.clamp)


def start_positions(decision: StartDecision, inputs: JobInputs, config: JobConfig) -> dict[TaskSsp, int]:
    """The checkpoint's positions but for streams that are reset, and those of the startpoints over them. A checkpoint
    that a startpoint chose counts for every stream: only then state and input agree. Pure.

    Raises:
        IncompatibleError: an input has another number of partitions than at the checkpoint.
    """
    record = decision.restore_from
    saved = {} if record is None else to_positions(record.next_offsets)
    resumed = resumed_positions(saved, _readers(inputs), _first(inputs, config))
    return resumed | chosen_positions(decision, inputs, config)


def chosen_positions(decision: StartDecision, inputs: JobInputs, config: JobConfig) -> dict[TaskSsp, int]:
    """The positions that are not the checkpoint's, whatever that says: of streams that are reset, and of startpoints.
    Pure."""
    chosen: dict[TaskSsp, int] = {}
    if decision.with_state != "nearest" or decision.restore_from is None:
        first = _first(inputs, config)
        chosen = {at: first[at.ssp] for at in _readers(inputs) if config.reset_offset(at.ssp.system_stream)}
    return chosen | to_positions({task_number(task): own for task, own in decision.offsets.items()})


def _first(inputs: JobInputs, config: JobConfig) -> dict[SystemStreamPartition, int]:
    streams = {ssp.system_stream for ssp in inputs.ends}
    return first_positions(inputs.ends, {stream: config.offset_default(stream) for stream in streams})


def _readers(inputs: JobInputs) -> list[TaskSsp]:
    return [TaskSsp(task_number(task), ssp) for task, ssps in inputs.tasks.items() for ssp in ssps]


def _tell(requests: Sorted, decision: StartDecision, positions: Positions) -> None:
    for request in requests.expired:
        logger.warning("the startpoint for %s has expired (job.startpoint.ttl.ms) and is deleted", request)
    for request in requests.live:
        if request.from_future:
            logger.warning(
                "the startpoint for %s was made at %s, which is in the future by the clock of this host: one of two "
                "clocks is wrong, and any other startpoint for the partition goes before it",
                request,
                utc_text(request.startpoint.creation_timestamp),
            )
    applied: dict[StartpointRequest, set[int]] = {}
    for task, own in decision.requests.items():
        for ssp, request in own.items():
            applied.setdefault(request, set()).add(positions[TaskSsp(task_number(task), ssp)])
    for request, offsets in applied.items():
        logger.info("the startpoint for %s is applied: offset %s", request, ", ".join(map(str, sorted(offsets))))
    if decision.requests and decision.restore_from is not None:
        logger.info("state: %s, checkpoint %s", decision.with_state, decision.restore_from.id)


def _tell_times(times: StartTimes) -> None:
    for ssp in times.grown:
        logger.info("`%s` had ended, and has new messages: they are read", ssp)
    for ssp in sorted({at.ssp for at in times.late}):
        logger.warning(
            "`%s` was moved back, and the state is kept: the messages that are read again are late where an operator's "
            "watermark has passed them. A startpoint with the state `clear` or `nearest` begins event time again",
            ssp,
        )
