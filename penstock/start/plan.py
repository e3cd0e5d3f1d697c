"""The plan of a start: the facts that it reads before it decides, and named steps from these to one `StartPlan`.

Nothing is written here. The steps are pure, but that systems resolve startpoints. Some operators may begin again,
while everything else continues.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import NO_WATERMARK
from penstock.base.wording import argument, counted, listed
from penstock.batch.batch import QUERY, OfferedBatch, Positions
from penstock.batch.watermarks import TIME
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord, Origin
from penstock.checkpoint.streams import IntermediateStream
from penstock.checkpoint.task_versions import refuse_unknown
from penstock.config.model import JobConfig
from penstock.errors import IncompatibleError, NotFoundError
from penstock.graph.specs import ApplicationGraph, OperatorSpec
from penstock.graph.stores import OPERATOR_STORES, StoreLayout, StoreSpec, own_stores
from penstock.job.paths import JobPaths
from penstock.start import startpoints
from penstock.start.layout import check_layout, store_layout
from penstock.start.positions import (
    StartTimes,
    declared_streams,
    kept_streams,
    moved_inputs,
    operators_of,
    recorded_operators,
    refuse_recreated,
    start_positions,
    start_times,
)
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import StartpointRequest, how_to_delete
from penstock.system.base import SystemAdmin
from penstock.wing import known_sections

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The wishes of the caller who starts a run."""

    run_id: str
    from_checkpoint: str | None = None
    until_latest: bool = False
    close: bool = True
    """True if a run that reaches its end closes the stream."""
    reset_operators: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StartFacts:
    """The application, its inputs as they are now, the log, and the startpoints that wait."""

    graph: ApplicationGraph
    config: JobConfig
    inputs: startpoints.JobInputs
    view: LogView
    requests: startpoints.WaitingStartpoints
    from_checkpoint: str | None = None
    reset_operators: Sequence[str] = ()

    @property
    def job(self) -> str:
        """The job's name in commands."""
        return JobPaths(self.config.job.name, self.config.job.id).root


def read_requests(manager: StartpointManager, view: LogView, config: JobConfig) -> startpoints.WaitingStartpoints:
    """The startpoints that wait; none if the configuration ignores them. Logs those that cannot be read."""
    requests = manager.waiting(view)
    if config.job.startpoint_enabled:
        for each in requests.unreadable:
            logger.error("%s", each)
        return requests
    if left := len(requests.live) + len(requests.expired):
        logger.warning("job.startpoint.enabled is false, so this start ignores %s", counted(left, "startpoint"))
    return startpoints.WaitingStartpoints(taken=requests.taken)


def resolver(admins: Mapping[str, SystemAdmin]) -> startpoints.Resolve:
    """Resolves requests by the systems of their streams."""

    def resolve(request: StartpointRequest) -> int:
        ssp = request.key.ssp
        return admins[ssp.system].resolve_startpoint_to_offset(ssp, request.startpoint, clamp=request.clamp)

    return resolve


@dataclass(frozen=True, slots=True)
class Reset:
    """The operators that begin anew: their own stores are empty, and their watermarks are not above those of the
    streams that they read."""

    operators: tuple[str, ...] = ()

    @property
    def stores(self) -> frozenset[str]:
        """The stores that begin empty."""
        return own_stores(self.operators)

    def times(self, kept: StartTimes, operators: Iterable[OperatorSpec]) -> StartTimes:
        """The times of a start that would otherwise keep these.

        An operator keeps its watermark, because windows before it may have been due at the checkpoint and fire now.
        The watermark becomes that of what it reads if that is lower: it may read something else than before.

        Args:
            operators: those of the application, upstream first.
        """
        watermarks = {op: each for op, each in kept.watermarks.items() if op not in self.operators}
        for operator in operators:
            if operator.id in self.operators and operator.id in kept.watermarks:
                read = [watermarks.get(up, NO_WATERMARK) for up in operator.upstream]
                watermarks[operator.id] = min([kept.watermarks[operator.id], *read]) if read else NO_WATERMARK
        return replace(kept, watermarks={op: each for op, each in watermarks.items() if each > NO_WATERMARK})


def plan_reset(facts: StartFacts, record: CheckpointRecord | None) -> Reset:
    """The operators that begin again, each once. `record` is the checkpoint that the start chose.

    Raises:
        NotFoundError: neither the application nor the checkpoint has such an operator, or it keeps nothing that could
            be cleared.
    """
    graph = facts.graph
    clearable = resettable(graph, record)
    known = clearable.union((op.id for op in graph.operators), record.section(TIME).watermarks if record else ())
    for operator in facts.reset_operators:
        if operator not in known:
            which = "the application" if record is None else f"the application or in checkpoint {record.id}"
            raise NotFoundError(
                f"there is no operator `{operator}` in {which} that could be reset. These can: {_named(clearable)}"
            )
        if operator not in clearable:
            raise NotFoundError(
                f"operator `{operator}` has nothing that could be reset: only windows, joins, timers and aggregates "
                "have stores that belong to them alone, and only a partition_by through a stream has messages that "
                f"wait. These can: {_named(clearable)}. A startpoint with the state `clear` empties all stores"
            )
    named = {op.state_id: op.id for op in graph.operators} | {op.id: op.state_id for op in graph.operators}
    return Reset(tuple(dict.fromkeys(one for op in facts.reset_operators for one in (op, named.get(op, op)))))


def resettable(graph: ApplicationGraph, record: CheckpointRecord | None) -> set[str]:
    """The operators, of the application or of a checkpoint, that keep something of their own."""
    stores = {*store_layout(graph), *(record.stores if record else ())}
    found = {store.rpartition(".")[0] for store in stores if store.endswith(OPERATOR_STORES)}
    found.update(op.id for op in graph.operators if op.state_id in found)
    return found.union(*map(operators_of, declared_streams(graph).values()), recorded_operators(record))


def _named(operators: Collection[str]) -> str:
    return ", ".join(f"`{operator}`" for operator in sorted(operators)) or "no operator"


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Where a run begins, decided once: every try to write its start checkpoint says the same."""

    decision: startpoints.StartDecision
    positions: Positions
    requests: tuple[StartpointRequest, ...] = ()
    """All that the start checkpoint takes: applied, superseded and expired ones. They are deleted after it."""
    consumed: tuple[str, ...] = ()
    """The uuids of `requests`."""
    times: StartTimes = field(default_factory=StartTimes)
    reset: Reset = field(default_factory=Reset)
    deleted: frozenset[str] = frozenset()
    """Stores of the checkpoint that operators delete."""
    filled: frozenset[str] = frozenset()
    """Stores of the checkpoint that side inputs or a pushed table fill now."""
    kept: Mapping[SystemStream, IntermediateStream] = field(default_factory=dict)
    """The unread part of the durable intermediate streams, by the checkpoint."""
    offered: OfferedBatch | None = None
    """The last batch of the query that the job runs inside. A start that goes back does not have its output."""
    graph: ApplicationGraph | None = None
    """The application, whose serdes go on from the values in the checkpoint's stores. None: as the facts have it."""

    @property
    def restore_from(self) -> CheckpointRecord | None:
        return self.decision.restore_from

    @property
    def clears_state(self) -> bool:
        return self.decision.clears_state

    @property
    def quiet_until(self) -> Positions:
        """The positions before which the run sends no output."""
        return self.decision.quiet_until

    @property
    def origin(self) -> Origin:
        """The state that the run's first epoch begins with."""
        return Origin(self.restore_from, self.clears_state, self.reset.stores | self.deleted | self.filled)

    @property
    def moved(self) -> frozenset[SystemStreamPartition]:
        """`CheckpointRecord.moved` of the run's records."""
        return frozenset() if self.decision.accepts_state else moved_inputs(self.origin, self.positions)


def plan_start(facts: StartFacts, resolve: startpoints.Resolve) -> StartPlan:
    """Take every step in order.

    Raises:
        IncompatibleError: a startpoint cannot be applied, the application or the inputs do not fit the checkpoint, an
            input was deleted and created again, or newer checkpoints than the one that may be read would be passed
            over; or the checkpoint has a section that is needed and not known here.
        NotFoundError: the named checkpoint or an operator to be reset does not exist.
    """
    decision = decide_beginning(facts, resolve)
    try:
        return _plan_from(facts, decision)
    except IncompatibleError as error:
        if (why := _chosen_by(facts, decision)) is None:
            raise
        raise IncompatibleError(f"{error}. {why}") from error


def _chosen_by(facts: StartFacts, decision: startpoints.StartDecision) -> str | None:
    """The note about a startpoint that took the start back to an older checkpoint; None if none did."""
    record, latest = decision.restore_from, facts.view.latest
    if decision.with_state != "nearest" or record is None or record == latest:
        return None
    requests = sorted({request for request in decision.requests.values() if request.with_state}, key=lambda r: r.rank)
    return (
        f"The startpoint for {requests[-1]} chose checkpoint {record.id} ({argument('with_state', 'nearest')}): every "
        f"start is refused as long as it waits. `{how_to_delete(requests[-1].key)}` deletes it"
    )


def _plan_from(facts: StartFacts, decision: startpoints.StartDecision) -> StartPlan:
    if decision.restore_from is not None:
        refuse_unknown(decision.restore_from, known_sections())
    refuse_quiet(facts, decision)
    positions = start_positions(decision, facts.inputs, facts.config)
    refuse_recreated(facts.inputs, facts.config, decision)
    reset = plan_reset(facts, decision.restore_from)
    times = decide_times(facts, decision, positions, reset)
    deleted, filled = stores_without_writer(facts, decision)
    continued = None if decision.clears_state else decision.restore_from
    graph = continue_stores(facts.graph, continued, reset.stores | deleted | filled)
    facts = replace(facts, graph=graph)
    refuse_other_layout(facts, decision, reset.stores | deleted | filled)
    requests = facts.requests
    return StartPlan(
        decision,
        positions,
        requests.readable,
        requests.uuids,
        times,
        reset,
        deleted,
        filled,
        decide_streams(facts, decision, reset, times),
        last_offered(facts, decision),
        graph,
    )


def decide_beginning(facts: StartFacts, resolve: startpoints.Resolve) -> startpoints.StartDecision:
    """Choose the checkpoint, and what startpoints make of its positions and its state."""
    candidates = startpoints.Candidates.of(facts.view, facts.config.task, facts.from_checkpoint)
    return startpoints.decide_start(facts.requests.live, facts.inputs, candidates, resolve)


def refuse_quiet(facts: StartFacts, decision: startpoints.StartDecision) -> None:
    """Raise IncompatibleError if a run that sends no output before its old positions has output by time: positions do
    not say which windows and timers had fired there."""
    timed = [op.id for op in facts.graph.operators if op.is_timed and not op.is_input]
    if decision.quiet_until and (timed or facts.config.task.window_ms > 0):
        what = f"`{timed[0]}` fires by time" if timed else "`task.window.ms` lets tasks send by time"
        raise IncompatibleError(
            f"{argument('with_output', 'after')} is for applications that send output for messages alone, and {what}: "
            "it is not known which of that was sent. Delete the startpoint, or set it again with "
            f"{argument('with_output', 'again')}"
        )


def decide_times(
    facts: StartFacts, decision: startpoints.StartDecision, positions: Positions, reset: Reset
) -> StartTimes:
    """Choose the event times and watermarks that the run begins with."""
    record = decision.restore_from
    times = start_times(
        record,
        clears_state=decision.clears_state,
        positions=positions,
        ends=facts.inputs.ends,
        parent=next((each for each in facts.view.checkpoints if record is not None and each.id == record.parent), None),
        graph=facts.graph,
    )
    return reset.times(times, facts.graph.operators)


def stores_without_writer(
    facts: StartFacts, decision: startpoints.StartDecision
) -> tuple[frozenset[str], frozenset[str]]:
    """The stores of the checkpoint that operators delete, and those that something else fills now."""
    record = decision.restore_from
    if record is None:
        return frozenset(), frozenset()
    deleted = {store for op in facts.graph.operators for store in op.deleted_stores}
    filled = frozenset(spec.name for spec in facts.graph.side_stores)
    layout = store_layout(facts.graph)
    return frozenset(deleted.intersection(record.stores).difference(layout)), filled.intersection(record.stores)


def continue_stores(
    graph: ApplicationGraph, record: CheckpointRecord | None, emptied: frozenset[str] = frozenset()
) -> ApplicationGraph:
    """Give the stores of the checkpoint serdes that can read their entries. Raises IncompatibleError if a store's
    serdes cannot."""
    if record is None:
        return graph
    kept = {store: StoreLayout.parse(text) for store, text in record.stores.items() if store not in emptied}

    def continuing(spec: StoreSpec) -> StoreSpec:
        before = kept.get(spec.name)
        if before is None or before.value == spec.value_serde.name:
            return spec
        try:
            return replace(spec, value_serde=spec.value_serde.continuing(before.value))
        except IncompatibleError as error:
            raise IncompatibleError(
                f"store `{spec.name}` in checkpoint {record.id}: {error}. To begin without its values, empty the store"
            ) from error

    return replace(graph, stores=tuple(map(continuing, graph.stores)))


def refuse_other_layout(facts: StartFacts, decision: startpoints.StartDecision, emptied: frozenset[str]) -> None:
    """Raise IncompatibleError if the application cannot go on from the stores of the checkpoint."""
    record = decision.restore_from
    if record is not None:
        emptied = frozenset(record.stores) if decision.clears_state else emptied
        partitions = Counter(str(ssp.system_stream) for ssp in facts.inputs.ends)
        most = max(partitions.values())
        largest = listed([f"`{stream}`" for stream, count in sorted(partitions.items()) if count == most])
        inputs = f"{largest}: {most}"
        check_layout(record, store_layout(facts.graph), len(facts.inputs.tasks), emptied, facts.job, inputs)


def decide_streams(
    facts: StartFacts, decision: startpoints.StartDecision, reset: Reset, times: StartTimes
) -> dict[SystemStream, IntermediateStream]:
    """Choose what is kept of the durable intermediate streams."""
    return kept_streams(
        decision.restore_from,
        declared_streams(facts.graph),
        clears_state=decision.clears_state,
        reset=reset.operators,
        job=facts.job,
        has_grown=bool(times.grown),
    )


def last_offered(facts: StartFacts, decision: startpoints.StartDecision) -> OfferedBatch | None:
    """The query's last batch, by the checkpoint."""
    record, view = decision.restore_from, facts.view
    offered = None if record is None else record.section(QUERY).offered
    if offered is not None and (record != view.latest or view.faults):
        return replace(offered, has_output=False)
    return offered
