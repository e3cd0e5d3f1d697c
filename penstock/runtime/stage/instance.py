"""A stage of one task, ready to run: its operators, the user's tasks, and the stores with their caches.

An attempt touches nothing else, besides its overlay. An attempt owns the instance while it runs; if the attempt
is applied the instance serves the next batch, if it is discarded the instance is closed with it.

The operators are built and connected here: from the entries through each other to the outlets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

from penstock.batch.batch import NOTHING_DUE, Batch, Due, earlier
from penstock.graph.specs import OperatorSpec, SourceSpec
from penstock.graph.stores import StoreSpec
from penstock.graph.topology import DEAD_LETTER_CHANNEL, Channel, Topology
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.context import MessagePage, Position, SspTable, blaming
from penstock.runtime.messages.columns import NOWHERE, Accept, Fork, MeetingFork, Push, Target
from penstock.runtime.messages.entry import StageEntry
from penstock.runtime.messages.outlet import Outlet
from penstock.runtime.messages.router import Router
from penstock.runtime.meters import OperatorClock
from penstock.runtime.operators import base
from penstock.runtime.operators.application_code import Requests
from penstock.runtime.operators.elementwise import Chain, branch_of
from penstock.runtime.operators.task_timers import ListPlaces
from penstock.runtime.settings import GENERAL, RuntimeSettings
from penstock.state.engines.engine import Engine
from penstock.state.engines.overlay import Overlay
from penstock.state.stores.build import SideInputStore, build_store, with_layers
from penstock.state.stores.task_store import SideView, TaskStore

MakeContext: TypeAlias = Callable[[base.Operator[Any], Mapping[str, Push]], base.StageContext]


@dataclass(frozen=True, slots=True, eq=False)
class Inlet:
    """Where messages come into an operator. What comes row by row counts with the operator that emits it."""

    accept: Accept
    push: Push


class Wiring:
    """The nodes of a stage, and the entries that lead to them."""

    def __init__(
        self,
        topology: Topology,
        stage: int,
        router: Router,
        position: Position,
        nodes: dict[str, base.Node],
        clock: OperatorClock,
    ) -> None:
        """`nodes` is filled during `build`, so that the caller can close the nodes made before a failure. `clock` times
        them."""
        self._topology = topology
        self._stage = stage
        self._operators = topology.stages[stage].operators
        self._outlets = tuple(router.outlets.values())
        self._position = position
        self._nodes = nodes
        self._clock = clock
        self._inlets: dict[int, tuple[Target, Inlet]] = {}
        """Id of an inlet → the inlet, and the same with a clock. One for each: forks compare where branches end."""
        self._reach: dict[str, frozenset[tuple[str, str]]] = {}
        """By operator: the operators and stores that its messages come to in this stage, its own included."""

    def build(self, context_of: MakeContext) -> None:
        """Build the nodes from the last operator to the first, so that the followers of each one exist."""
        for spec in reversed(self._operators):
            operator, following, outlets = base.operator_of(spec), *self._following(spec)
            context = context_of(operator, self._output_pushes(spec) if spec.sends else {})
            stores = frozenset(("store", name) for name in spec.stores)
            behind = frozenset[tuple[str, str]]().union(*(self._reach[op_id] for op_id in following))
            if stores & behind:
                context = replace(context, followed=True)
            self._nodes[spec.id] = operator.build(context, self._target(spec.id, following, outlets))
            self._reach[spec.id] = behind | stores | {("operator", spec.id)}

    def input_entry(self, spec: SourceSpec) -> StageEntry:
        return StageEntry(
            spec.id,
            base.operator_of(spec).place(spec.id),
            spec.key_serde,
            spec.value_serde,
            self._position,
            self._target(spec.id, *self._following(spec)),
            [outlet.accept_raw for outlet in self._outgoing(spec) if outlet.channel.raw],
            spec.timestamp,
        )

    def channel_entry(self, channel: Channel) -> StageEntry:
        place = base.place_of_channel(channel, self._topology.graph)
        target = self._target(channel.source, channel.targets, ())
        return StageEntry(channel.source, place, channel.key_serde, channel.carried_serde, self._position, target)

    def partial_entry(self, channel: Channel) -> Callable[[base.Partial], None]:
        """Takes states in the place of messages."""
        (target,) = channel.targets
        return self._clock.timed(target, self._nodes[target].merge)

    def _following(self, spec: OperatorSpec) -> tuple[list[str], list[Outlet]]:
        """The followers of an operator: operators of this stage that read it, and the channels by which all its output
        leaves."""
        operators = [] if spec.changes_key else [other.id for other in self._operators if spec.id in other.upstream]
        outlets = [
            outlet
            for outlet in self._outgoing(spec)
            if not outlet.channel.raw and not (outlet.channel.output is not None and spec.sends)
        ]
        return operators, outlets

    def _outgoing(self, spec: OperatorSpec) -> list[Outlet]:
        return [outlet for outlet in self._outlets if outlet.channel.source == spec.id]

    def _target(self, source: str, operators: Sequence[str], outlets: Sequence[Outlet]) -> Target:
        targets: list[Target] = [*(self._inlet(op_id, source) for op_id in operators), *outlets]
        if len(targets) < 2:
            return targets[0] if targets else NOWHERE
        reached = [self._reach[op_id] for op_id in operators]
        meet = sum(map(len, reached)) > len(frozenset().union(*reached))
        return MeetingFork(targets, self._position, [*map(branch_of, targets)]) if meet else Fork(targets)

    def _inlet(self, op_id: str, source: str) -> Target:
        inlet = self._nodes[op_id].inlet(source)
        if isinstance(inlet, Chain):
            return inlet  # its steps run within others, and are timed there
        if id(inlet) not in self._inlets:
            self._inlets[id(inlet)] = inlet, Inlet(self._clock.timed(op_id, inlet.accept), inlet.push)
        return self._inlets[id(inlet)][1]

    def _output_pushes(self, spec: OperatorSpec) -> dict[str, Push]:
        """The pushes of this operator's outlets by `system.stream`, and by `stream` if no other output has that
        name."""
        pushes: dict[str, Push] = {}
        ambiguous: set[str] = set()
        for outlet in self._outgoing(spec):
            output = outlet.channel.output
            if output is None:
                continue
            pushes[str(output)] = outlet.push
            if output.stream in pushes:
                ambiguous.add(output.stream)
            pushes.setdefault(output.stream, outlet.push)
        return {name: push for name, push in pushes.items() if name not in ambiguous}


Mark: TypeAlias = tuple[dict[int, int], bool, bool, list[int]]
"""The state before a message: the contents of the outlets, and the requests made so far."""


class StageInstance:
    """One (stage, task), alive. Used by one thread at a time."""

    def __init__(
        self,
        topology: Topology,
        stage: int,
        task: int,
        settings: RuntimeSettings,
        engines: Mapping[str, Engine],
        time_ms: int = 0,
    ) -> None:
        """Build the operators and init the user's tasks, for a first batch of this time. The engine of a side store is
        the view that the first attempt reads. Raises OperatorFailedError if that fails, EngineFailedError if a store
        does."""
        self.stage = stage
        self.task = task
        self.settings = settings
        self.topology = topology
        self.ssps = SspTable.of(topology.graph)
        self.position = Position(MessagePage(self.ssps, (), (), ()))
        self.requests = Requests()
        self.operator_metrics = MetricsRegistry(f"Partition {task}", "operator.")
        self.clock = OperatorClock()
        self.metrics = MetricsRegistry(f"Partition {task}", "user.")
        """The application's own metrics. Like everything here, they go with an attempt that is discarded."""
        self.router = Router(
            topology, stage, task, settings.tasks, self.position, settings.output_partitions, settings.output_limits
        )
        self._side_stores: dict[str, SideInputStore] = {}
        """The stores that the job only reads, without their layers."""
        self.stores = {spec.name: self._make_store(spec, engines, time_ms) for spec in topology.stages[stage].stores}
        self._expiring = [store for store in self.stores.values() if store.spec.ttl is not None]
        self.overlays: dict[str, Overlay] = {}
        self._list_places = ListPlaces()
        self._store_users = topology.graph.store_users()
        self._step_limit = GENERAL
        self.step: base.Step | None = None
        self._nodes: dict[str, base.Node] = {}
        """By operator, the last one first."""
        wiring = Wiring(topology, stage, self.router, self.position, self._nodes, self.clock)
        self._build(wiring)

    def _build(self, wiring: Wiring) -> None:
        """Build the operators, and note what they do and how messages come to them. If one fails, the tasks made before
        are closed."""
        try:
            wiring.build(self._context_of)
        except BaseException as error:
            try:
                self.close()
            except BaseException as second:
                error.add_note(f"closing the tasks made before failed as well: {type(second).__name__}")
            raise
        self._starting = _overriding("on_start_of_input", self._nodes)
        self._ending = _overriding("on_end_of_input", self._nodes)
        self.undoes_many = all(
            base.operator_of(spec).undoes_many for spec in self.topology.stages[self.stage].operators
        )
        """Many messages can be undone together."""
        self._marked = tuple(_overriding("mark", self._nodes).values())
        self.channel_entries = {c.number: wiring.channel_entry(c) for c in self.topology.channels_to(self.stage)}
        self.partial_entries = {
            c.number: wiring.partial_entry(c) for c in self.topology.channels_to(self.stage) if c.may_be_partial
        }
        self.input_entries = {
            n: wiring.input_entry(op) for n, op in enumerate(self.topology.graph.sources) if self.stage == 0
        }
        self.first_intermediate = len(self.topology.graph.inputs)
        """The index of the first source that is a durable intermediate stream."""

    def show(self, views: Mapping[str, SideView]) -> None:
        """Set the views of the side stores that the next attempt reads, by store."""
        for name, store in self._side_stores.items():
            store.show(views[name])

    def begin(self, token: str, batch: Batch) -> None:
        """Begin an attempt of the batch: empty overlays, an empty router, no requests."""
        self.router.begin(token, batch if self.settings.partial_aggregates and not batch.watched else None)
        self._step_limit = self.settings.step_limits.of_operators(batch)
        self.requests.commit_requested = self.requests.shutdown_requested = False
        self.overlays = {name: store.begin(batch.time_ms) for name, store in self.stores.items()}
        self._list_places.begin(batch)
        for op_id, node in reversed(self._nodes.items()):
            node.begin(batch.seen_by(op_id))

    def on_start_of_input(self, batch: Batch) -> Iterator[tuple[str, base.Firing | base.Firings]]:
        """The firings of the operators (by id) before the first message of the batch; see `on_end_of_input`."""
        return self._firings(batch, self._starting, lambda node, seen: node.on_start_of_input(seen))

    def on_end_of_input(self, batch: Batch) -> Iterator[tuple[str, base.Firing | base.Firings]]:
        """The firings of the operators (by id) after the last message of the batch, operator by operator in topological
        order: each is asked when the firings of those before it have run. Raises OperatorFailedError, or
        PenstockTimeoutError after an operator that took longer than it may."""
        return self._firings(batch, self._ending, lambda node, seen: node.on_end_of_input(seen))

    def _firings(
        self,
        batch: Batch,
        nodes: Mapping[str, base.Node],
        ask: Callable[[base.Node, Batch], Iterable[base.Firing | base.Firings]],
    ) -> Iterator[tuple[str, base.Firing | base.Firings]]:
        try:
            for op_id, node in nodes.items():
                if op_id in batch.closed:
                    continue
                self.step = step = base.Step(op_id, self._step_limit)
                with blaming(op_id):
                    firings = iter(ask(node, batch.seen_by(op_id)))
                count = 0
                while True:
                    with blaming(op_id):
                        firing = next(firings, None)
                    if firing is None:
                        break
                    step.firing = firing
                    yield op_id, firing
                    count += len(firing.keys) if isinstance(firing, base.Firings) else 1
                if count:
                    node.fired(count)
                if late := step.late(self.stage, self.task):
                    raise late
        finally:
            self.step = None

    def reclaim(self) -> None:
        """Delete some of what has expired, after the whole input. Raises EngineFailedError."""
        for store in self._expiring:
            store.reclaim()

    def next_due(self) -> dict[str, Due]:
        """By operator id, the times of its oldest timers; an operator without timers has no entry. Raises
        OperatorFailedError."""
        found = {}
        for spec in self.topology.stages[self.stage].operators:
            operator = base.operator_of(spec)
            with blaming(spec.id):
                due = self._nodes[spec.id].next_due()
                if due is None:
                    stores = [self.stores[name] for name in operator.time_stores]
                    due = reduce(earlier, map(operator.next_due, stores), NOTHING_DUE)
            if due != NOTHING_DUE:
                found[spec.id] = due
        return found

    def close(self) -> None:
        """Close all user's tasks, even if one raises. The first error is raised at the end."""
        errors: list[BaseException] = []
        for node in self._nodes.values():
            try:
                node.close()
            except BaseException as error:
                errors.append(error)
        self._nodes.clear()
        if errors:
            raise errors[0]

    # Marks, for jobs with a dead-letter stream.

    def mark(self) -> Mark:
        """The state before a message, to which `undo` goes back."""
        for store in self.stores.values():
            store.mark()
        nodes = [node.mark() for node in self._marked]
        return self.router.mark(), self.requests.commit_requested, self.requests.shutdown_requested, nodes

    def undo(self, mark: Mark) -> None:
        for store in self.stores.values():
            store.undo()
        sent, self.requests.commit_requested, self.requests.shutdown_requested, nodes = mark
        self.router.undo(sent)
        for node, before in zip(self._marked, nodes, strict=True):
            node.undo(before)

    def dead_letter_outlet(self) -> Outlet:
        return next(o for o in self.router.outlets.values() if o.channel.name == DEAD_LETTER_CHANNEL)

    # Building.

    def _make_store(self, spec: StoreSpec, engines: Mapping[str, Engine], time_ms: int) -> TaskStore:
        settings, engine = self.settings, engines[spec.name]
        cache_entries = settings.cache_entries.get(spec.name, 100_000)
        if isinstance(engine, SideView):
            self._side_stores[spec.name] = side = SideInputStore(spec, engine, cache_entries)
            return with_layers(side, settings.store_layers)
        return build_store(
            spec,
            engine,
            cache_entries,
            time_ms=time_ms,
            undoable=settings.dead_letter,
            layers=settings.store_layers,
        )

    def _context_of(self, operator: base.Operator[Any], outputs: Mapping[str, Push]) -> base.StageContext:
        return base.StageContext(
            job_name=self.settings.job_name,
            config=self.settings.config,
            task=self.task,
            position=self.position,
            requests=self.requests,
            stores={name: self.stores[name] for name in operator.spec.stores},
            outputs=outputs,
            metrics=self.operator_metrics,
            user_metrics=self.metrics,
            window_ms=self.settings.window_ms,
            undoable=self.settings.dead_letter,
            store_users=self._store_users,
            next_list_place=self._list_places.next,
            clock=self.clock,
        )


def _overriding(method: str, nodes: dict[str, base.Node]) -> dict[str, base.Node]:
    """The nodes that have this method of their own, in topological order. Most have not, and are not asked."""
    return {
        op_id: node
        for op_id, node in reversed(nodes.items())
        if getattr(type(node), method) is not getattr(base.Node, method)
    }
