"""aggregate: keeps aggregates for each key, and emits those of the keys that a batch changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.api.serdes import ColumnSerde
from penstock.api.time.aggregates import adder
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.given import ArrowSequence
from penstock.arrays.json_rows import json_form
from penstock.base.exact_json import exact_bytes, exact_value
from penstock.batch.batch import Batch
from penstock.graph.aggregation import ColumnAggregates, column_aggregates
from penstock.graph.serdes import unstorable_states
from penstock.graph.specs import AggregateSpec
from penstock.runtime.context import failure_in
from penstock.runtime.messages.columns import NOWHERE, MessageColumns, Target, encode_column
from penstock.runtime.messages.entry import StageEntry
from penstock.runtime.messages.groups import Folds, column_task_store, refuse_unfit
from penstock.runtime.messages.partial import Adder, KeyAdder
from penstock.runtime.operators.base import Firings, KeyInEntry, Node, Operator, Partial, StageContext

_NO_KEY = (
    "the key of the message is null, so it belongs to no group: give each message a key with .partition_by, or leave "
    "out those without one with .filter"
)


def by_column(spec: AggregateSpec, serde: ColumnSerde) -> ColumnAggregates:
    """New aggregates of an operator, for messages with these rows."""
    found = column_aggregates(spec.aggregates, serde)
    if found is None:
        raise TypeError(f"operator `{spec.id}` adds its messages one at a time")
    return found


class AggregateOperator(Operator[AggregateSpec]):
    """By column, if the messages are rows of a schema and all aggregates can be; else message by message."""

    undoes_many = True

    def key_in(self, store: str) -> KeyInEntry:
        return KeyInEntry(self.spec.key_serde, lambda entry: entry)

    def adder(self, carried: ColumnSerde) -> Adder:
        return KeyAdder(lambda: by_column(self.spec, carried))

    def build(self, stage: StageContext, downstream: Target) -> Node:
        if column_aggregates(self.spec.aggregates, self.spec.message_serde) is None:
            return _RowNode(self, stage, downstream)
        return _ColumnNode(self, stage, downstream)


class _AggregateNode(Node):
    """The common part of both forms: messages need a key, and at the end of the input the results of all changed keys
    leave."""

    def __init__(self, operator: AggregateOperator, stage: StageContext, downstream: Target) -> None:
        super().__init__(self._add, stage.position)
        self.spec = operator.spec
        self.position = stage.position
        self._place = operator.place(operator.spec.id)
        self._downstream = downstream
        self._entry = StageEntry(
            self.spec.id, self._place, self.spec.key_serde, self.spec.value_serde, self.position, NOWHERE
        )
        self._earliest_ms = 0

    def _add(self, columns: MessageColumns) -> None:
        raise NotImplementedError

    def _key_bytes(self, columns: MessageColumns) -> Any:
        """The bytes of the keys. Raises OperatorFailedError for a message without one."""
        keys = columns.written_by("key", self.spec.key_serde)
        if keys is None:
            keys = encode_column(
                "key", self.spec.key_serde, columns.keys, columns.rows, self.position, self.spec.id, self._place
            )
        found = keys.array if isinstance(keys, ArrowSequence) else None
        if found.null_count if found is not None else None in keys:
            self.position.row = int(columns.rows[list(keys).index(None)])
            raise failure_in(self.spec.id, ValueError(_NO_KEY))
        return keys

    def begin(self, batch: Batch) -> None:
        self._earliest_ms = batch.earliest_output(self.spec.id)

    def _firings(self, batch: Batch, keys: ArrowSequence, values: Any) -> Iterator[Firings]:
        if len(keys):
            timestamp_ms = max(batch.time_ms, self._earliest_ms)
            yield Firings(keys, timestamp_ms, "aggregate", partial(self._emit, keys, values))

    def _results(self, values: Any, first: int) -> Any:
        """The results as they are emitted; `first` is the page's row of the first one. Raises OperatorFailedError for
        one that cannot be."""
        raise NotImplementedError

    def _emit(self, keys: ArrowSequence, values: Any, some: slice, first: int) -> None:
        own, results = keys[some], self._results(values[some], first)
        self._downstream.accept(MessageColumns(self._entry, None, results, range(first, first + len(own)), own, None))


class _ColumnNode(_AggregateNode):
    """The stored states of a batch's groups are read when their first messages are added, and written at the end."""

    def __init__(self, operator: AggregateOperator, stage: StageContext, downstream: Target) -> None:
        super().__init__(operator, stage, downstream)
        self._store = column_task_store(stage.stores[self.spec.stores[0]])
        serde = self.spec.message_serde
        if not isinstance(serde, ColumnSerde):
            raise TypeError(f"operator `{self.spec.id}` reads no columns")
        self._serde = serde
        self._folds = Folds(self._store, partial(by_column, operator.spec, serde))

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._folds.begin()

    def mark(self) -> int:
        return self._folds.mark()

    def undo(self, mark: int) -> None:
        self._folds.undo(mark)

    def _add(self, columns: MessageColumns) -> None:
        self._folds.make_room()
        keys = self._key_bytes(columns)
        array = keys.array if isinstance(keys, ArrowSequence) else pa.array(keys, pa.binary())
        values = self._folds.values_of(columns, self._serde, self.position, self.spec.id)
        self._folds.add(ByteArray.of(array), values, self.position.page.times_of(columns.rows))

    def merge(self, states: Partial) -> None:
        self._folds.merge(ByteArray.of(states.keys), ByteArray.of(states.states))

    def on_end_of_input(self, batch: Batch) -> Iterator[Firings]:
        self._folds.settle()
        if not self._folds.count:
            return
        entries = self._folds.entries()
        self._store.put_many(entries)
        keys, results = ArrowSequence(entries.key_bytes.to_arrow()), ArrowSequence(self._folds.aggregates.results())
        yield from self._firings(batch, keys, results)

    def _results(self, values: Any, first: int) -> Any:
        refuse_unfit(values.array, self.position, first)
        return values


class _RowNode(_AggregateNode):
    """The states of the batch's keys are in a dict, and in the store as exact JSON."""

    def __init__(self, operator: AggregateOperator, stage: StageContext, downstream: Target) -> None:
        super().__init__(operator, stage, downstream)
        self._store = stage.stores[self.spec.stores[0]]
        self._aggregates = list(self.spec.aggregates.values())
        self._of_rows = isinstance(self.spec.message_serde, ColumnSerde)
        """Their values may be such as JSON does not have."""
        self._adders = [adder(each) for each in self._aggregates]
        self._states: dict[bytes, list[Any]] = {}

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._states = {}
        self._before: list[tuple[bytes, list[Any] | None]] = []

    def mark(self) -> int:
        """Forget what the messages before have changed: they stay."""
        self._before.clear()
        return 0

    def undo(self, mark: int) -> None:
        for key, states in reversed(self._before):
            if states is None:
                self._states.pop(key, None)
            else:
                self._states[key] = states

    def _add(self, columns: MessageColumns) -> None:
        times = self.position.page.timestamps
        for row, key, value in zip(columns.rows, self._key_bytes(columns), columns.values, strict=True):
            self.position.row = int(row)
            states = self._states.get(key)
            self._before.append((key, states))
            if states is None:
                states = self._load(key)
            try:
                added = [add(state, value, times[row]) for add, state in zip(self._adders, states, strict=True)]
            except BaseException as error:
                raise failure_in(self.spec.id, error) from error
            self._states[key] = added

    def _load(self, key: bytes) -> list[Any]:
        stored = self._store.get(key)
        if stored is None:
            return [None] * len(self._aggregates)
        return [each.from_json(state) for each, state in zip(self._aggregates, exact_value(stored), strict=True)]

    def on_end_of_input(self, batch: Batch) -> Iterator[Firings]:
        keys, values = [], []
        for key, states in self._states.items():
            try:
                self._store.put(key, self._stored(key, states))
            except BaseException as error:
                raise failure_in(self.spec.id, error) from error
            keys.append(key)
            values.append(states)
        self._states = {}
        yield from self._firings(batch, ArrowSequence(pa.array(keys, pa.binary())), values)

    def _stored(self, key: bytes, states: list[Any]) -> bytes:
        try:
            return exact_bytes([each.to_json(state) for each, state in zip(self._aggregates, states, strict=True)])
        except Exception as error:
            shown, place = self.spec.key_serde.from_bytes(key), f"aggregate operator `{self.spec.id}`"
            raise unstorable_states(place, self.spec.aggregates, states, shown, error) from error

    def _results(self, values: Any, first: int) -> Any:
        found = []
        for number, states in enumerate(values):
            self.position.row = first + number
            named = zip(self.spec.aggregates.items(), states, strict=True)
            result = {name: each.result(state) for (name, each), state in named}
            found.append(json_form(result) if self._of_rows else result)
        return found
