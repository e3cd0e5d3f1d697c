"""The plan of a start: named steps from the facts to one `StartPlan`. Pure, but that systems resolve startpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import argument, listed
from penstock.batch.offered_batch import QUERY, OfferedBatch
from penstock.batch.positions import Positions
from penstock.checkpoint.choice import refuse_unknown
from penstock.checkpoint.intermediate import IntermediateStream
from penstock.checkpoint.origin import Origin
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.store_layout import StoreLayout
from penstock.errors import IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import StoreSpec
from penstock.start.facts import StartFacts
from penstock.start.layout import check_layout, store_layout
from penstock.start.positions import moved_inputs, start_positions
from penstock.start.reset import Reset, plan_reset
from penstock.start.startpoints.decide import Candidates, Resolve, StartDecision, decide_start
from penstock.start.startpoints.request import StartpointRequest, how_to_delete
from penstock.start.streams.identities import refuse_recreated
from penstock.start.streams.intermediate import declared_streams, kept_streams
from penstock.start.times import StartTimes, start_times
from penstock.wing import known_sections


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Where a run begins, decided once: every try to write its start checkpoint says the same."""

    decision: StartDecision
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


def plan_start(facts: StartFacts, resolve: Resolve) -> StartPlan:
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


def _chosen_by(facts: StartFacts, decision: StartDecision) -> str | None:
    """The note about a startpoint that took the start back to an older checkpoint; None if none did."""
    record, latest = decision.restore_from, facts.view.latest
    if decision.with_state != "nearest" or record is None or record == latest:
        return None
    requests = sorted({request for request in decision.requests.values() if request.with_state}, key=lambda r: r.rank)
    return (
        f"The startpoint for {requests[-1]} chose checkpoint {record.id} ({argument('with_state', 'nearest')}): every "
        f"start is refused as long as it waits. `{how_to_delete(requests[-1].key)}` deletes it"
    )


def _plan_from(facts: StartFacts, decision: StartDecision) -> StartPlan:
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


def decide_beginning(facts: StartFacts, resolve: Resolve) -> StartDecision:
    """Choose the checkpoint, and what startpoints make of its positions and its state."""
    candidates = Candidates.of(facts.view, facts.config.task, facts.from_checkpoint)
    return decide_start(facts.requests.live, facts.inputs, candidates, resolve)


def refuse_quiet(facts: StartFacts, decision: StartDecision) -> None:
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


def decide_times(facts: StartFacts, decision: StartDecision, positions: Positions, reset: Reset) -> StartTimes:
    """Choose the event times and watermarks that the run begins with."""
    record = decision.restore_from
    times = start_times(
        record,
        clears_state=decision.clears_state,
        positions=positions,
        ends=facts.inputs.ends,
        parent=next((each for each in facts.view.checkpoints if record is not None and each.id == record.parent), None),
        state_ids=facts.graph.state_ids(),
    )
    return reset.times(times, facts.graph.operators)


def stores_without_writer(facts: StartFacts, decision: StartDecision) -> tuple[frozenset[str], frozenset[str]]:
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
    """Give stores of the checkpoint serdes that read what is there. Raises IncompatibleError if one cannot."""
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


def refuse_other_layout(facts: StartFacts, decision: StartDecision, emptied: frozenset[str]) -> None:
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
    facts: StartFacts, decision: StartDecision, reset: Reset, times: StartTimes
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


def last_offered(facts: StartFacts, decision: StartDecision) -> OfferedBatch | None:
    """The query's last batch, by the checkpoint."""
    record, view = decision.restore_from, facts.view
    offered = None if record is None else record.section(QUERY).offered
    if offered is not None and (record != view.latest or view.faults):
        return replace(offered, has_output=False)
    return offered
