"""Operators that begin again at a start, while everything else continues. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from penstock.api.time.watermarks import NO_WATERMARK
from penstock.batch.watermarks import TIME
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import NotFoundError
from penstock.graph.specs import ApplicationGraph, OperatorSpec
from penstock.graph.stores import OPERATOR_STORES, own_stores
from penstock.start.facts import StartFacts
from penstock.start.layout import store_layout
from penstock.start.streams.intermediate import declared_streams, operators_of, recorded_operators
from penstock.start.times import StartTimes


@dataclass(frozen=True, slots=True)
class Reset:
    """The operators whose own stores begin empty, and whose watermarks are not above those of what they read."""

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
