"""The groups of a batch: its keys, each with a number, and where the store has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.serdes import ColumnSerde
from penstock.arrays.byte_arrays import ByteArray, Integers
from penstock.arrays.entries import Entries, Flags, FoundRows, KeyIndex
from penstock.base.documents import decoding
from penstock.graph.aggregation import UNFIT, ColumnAggregates
from penstock.runtime.context import Position
from penstock.runtime.messages.columns import MessageColumns, locating_row, rows_of
from penstock.runtime.operators.base import KeyValue
from penstock.state.stores.columns import ColumnTaskStore
from penstock.state.stores.task_store import TaskStore

AT_ONCE = 1 << 16
"""Messages that are gathered before they are added to their groups."""


class GatheredMessages:
    """Messages that wait until they are added to their groups."""

    def __init__(self) -> None:
        self._parts: list[tuple[ByteArray, pa.StructArray, Integers]] = []
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._count >= AT_ONCE

    def add(self, keys: ByteArray, rows: pa.StructArray, times: Integers) -> None:
        self._parts.append((keys, rows, times))
        self._count += len(keys)

    def mark(self) -> int:
        return len(self._parts)

    def undo(self, mark: int) -> None:
        """Forget what was added since the mark."""
        self._count -= sum(len(keys) for keys, _, _ in self._parts[mark:])
        del self._parts[mark:]

    def take(self) -> tuple[ByteArray, pa.StructArray, Integers] | None:
        """All of them: their keys, rows and times. None if there are none."""
        parts, self._parts, self._count = self._parts, [], 0
        if not parts:
            return None
        keys, rows, times = zip(*parts, strict=True)
        return ByteArray.concat(keys), pa.concat_arrays(rows), np.concatenate(times)


class KeyGroups:
    """Numbers the keys of a batch: 0, 1, 2, ... in no particular order.

    A key that the store has is found there once, when its messages come; where it has no engine in columns, or a key
    is new, an index of the batch's own keys numbers them.
    """

    def __init__(self, store: ColumnTaskStore) -> None:
        self._store = store
        self._index = KeyIndex()
        self._of_new: Integers = np.zeros(0, np.int64)
        """The group of each key in the index."""
        self._of_row: Integers = np.zeros(0, np.int64)
        """The group of each row of the engine, -1 for none."""
        self._rows: list[Integers] = []
        """The row of each group, -1 if the store does not have its key."""
        self._numbering: object = None
        """The engine that numbers the rows; None: groups are numbered by the index alone."""
        self.count = 0

    def reset(self) -> None:
        """Forget the groups: a batch begins."""
        touched = self._joined(self._rows)
        self._of_row[touched[touched >= 0]] = -1
        self._index = KeyIndex()
        self._of_new = np.zeros(0, np.int64)
        self._rows, self.count = [], 0
        self._numbering = None

    def of(self, keys: ByteArray) -> tuple[Integers, ByteArray, Flags]:
        """The group of each key; and the stored values of the groups that are new, with where there is one."""
        before = self.count
        found = self._store.find_rows(keys) if not self._rows or self._numbering is not None else None
        if found is None:
            return self._of_index(keys)
        if self._rows and found.engine is not self._numbering:
            raise RuntimeError("the rows of a store got other numbers in the middle of a batch")
        self._numbering = found.engine
        rows = found.rows
        self._grow(int(rows.max()) + 1 if len(rows) else 0)
        groups = np.full(len(rows), -1, np.int64)
        there = np.flatnonzero(rows >= 0)
        own = rows[there]
        new = own[self._of_row[own] < 0]
        if len(new):
            self._of_row[new] = np.arange(len(new))  # of the same row, numpy keeps the last
            first = new[self._of_row[new] == np.arange(len(new))]
            self._of_row[first] = np.arange(self.count, self.count + len(first))
            self._add(first)
        groups[there] = self._of_row[own]
        absent = np.flatnonzero(rows < 0)
        if len(absent):
            groups[absent] = self._new(keys.take(absent))
        known = self._joined(self._rows)[before:]
        stored = np.flatnonzero(known >= 0)
        values, present = self._store.at(FoundRows(found.engine, known[stored]))
        return groups, *_spread(values, present, stored, len(known))

    def _of_index(self, keys: ByteArray) -> tuple[Integers, ByteArray, Flags]:
        before = len(self._index)
        groups = self._new(keys)
        values, present = self._store.get_many(self._index.keys.all().slice(slice(before, None)))
        return groups, values, present

    def _new(self, keys: ByteArray) -> Integers:
        before = len(self._index)
        numbers = self._index.add(keys)
        more = len(self._index) - before
        if more:
            self._of_new = np.concatenate((self._of_new, np.arange(self.count, self.count + more)))
            self._add(np.full(more, -1, np.int64))
        return self._of_new[numbers]

    def _add(self, rows: Integers) -> None:
        self._rows.append(rows)
        self.count += len(rows)

    def _grow(self, rows: int) -> None:
        if rows > len(self._of_row):
            more = np.full(max(rows - len(self._of_row), len(self._of_row) // 2), -1, np.int64)
            self._of_row = np.concatenate((self._of_row, more))

    def entries(self, values: ByteArray) -> Entries:
        """The groups' keys with new values, in the order of the groups."""
        rows = self._joined(self._rows)
        present = np.ones(len(rows), np.bool_)
        known = np.flatnonzero(rows >= 0)
        if len(known) == 0:
            return Entries(self._index.keys.all(), values, present)
        found = FoundRows(self._numbering, rows)
        keys = self._store.keys_at(FoundRows(self._numbering, rows[known]))
        if len(known) < len(rows):
            both = ByteArray.concat([keys, self._index.keys.all()])
            order = np.empty(len(rows), np.int64)
            order[known] = np.arange(len(known))
            order[rows < 0] = np.arange(len(known), len(rows))
            keys = both.take(order)
        return Entries(keys, values, present, found)

    @staticmethod
    def _joined(rows: list[Integers]) -> Integers:
        if not rows:
            return np.zeros(0, np.int64)
        if len(rows) > 1:
            rows[:] = [np.concatenate(rows)]
        return rows[0]


class Folds:
    """The aggregates of an attempt's groups by column. Messages are gathered, and added to their groups many at once;
    what the store has of a group is read with its first messages."""

    def __init__(self, store: ColumnTaskStore, new_aggregates: Callable[[], ColumnAggregates]) -> None:
        self._new_aggregates = new_aggregates
        self._groups = KeyGroups(store)
        self.stored: list[Flags] = []
        """For each group, if the store has it."""
        self.begin()

    def begin(self) -> None:
        """Forget everything: an attempt begins."""
        self._groups.reset()
        self.aggregates = self._new_aggregates()
        self._gathered = GatheredMessages()
        self.stored = []

    def mark(self) -> int:
        return self._gathered.mark()

    def undo(self, mark: int) -> None:
        self._gathered.undo(mark)

    def make_room(self) -> None:
        """Add the messages that wait to their groups, if they are many. Called before messages that may be undone."""
        if self._gathered.is_full:
            self.settle()

    def values_of(
        self, columns: MessageColumns, serde: ColumnSerde, position: Position, operator: str
    ) -> pa.StructArray:
        """The values that the aggregates take of messages. Raises OperatorFailedError, with the position at the row
        that fails."""
        rows = rows_of(columns, serde, position, operator)
        with locating_row(operator, columns, position, lambda row: self.aggregates.values_of(row.to_struct_array())):
            return self.aggregates.values_of(rows)

    def add(self, keys: ByteArray, values: pa.StructArray, times: Integers) -> None:
        """Gather messages. `keys`: of their groups."""
        self._gathered.add(keys, values, times)

    def settle(self) -> None:
        """Add the messages that wait to their groups."""
        if (gathered := self._gathered.take()) is None:
            return
        keys, values, times = gathered
        self.aggregates.add(self._groups_of(keys), values, times)

    def merge(self, keys: ByteArray, states: ByteArray) -> None:
        """Add states to those of their groups, behind the messages that wait."""
        self.settle()
        groups = self._groups_of(keys)
        with decoding("the states of partial aggregates are damaged"):
            self.aggregates.merge(groups, states)

    def _groups_of(self, keys: ByteArray) -> Integers:
        groups, stored, present = self._groups.of(keys)
        if len(present):
            self.stored.append(present)
            self.aggregates.grow(stored, present)
        return groups

    @property
    def count(self) -> int:
        """Groups so far."""
        return self._groups.count

    def entries(self) -> Entries:
        """The states of all groups, as the store is to have them."""
        return self._groups.entries(self.aggregates.states())


def refuse_unfit(results: pa.StructArray, position: Position, first: int) -> None:
    """Raise OverflowError for the first result that does not fit its type, with the position at its row."""
    if results.null_count:
        position.row = first + int(np.flatnonzero(results.is_null().to_numpy(zero_copy_only=False))[0])
        raise OverflowError(UNFIT)


def column_task_store(store: KeyValue) -> ColumnTaskStore:
    """The store of an operator's own state by column."""
    found = store.find(ColumnTaskStore) if isinstance(store, TaskStore) else None
    if found is None:
        raise TypeError(f"{store!r} is not a store by column")
    return found


def _spread(values: ByteArray, present: Flags, where: Integers, count: int) -> tuple[ByteArray, Flags]:
    """The elements at these places of `count`, and nothing at the others."""
    if len(where) == count:
        return values, present
    flags: Any = np.zeros(count, np.bool_)
    flags[where] = present
    starts, lengths = np.zeros(count, np.int64), np.zeros(count, np.int64)
    starts[where], lengths[where] = values.starts, values.lengths
    return ByteArray(values.data, starts, lengths), flags
