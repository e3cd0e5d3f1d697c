"""Partial aggregates: messages for an aggregate are added up by key before they leave their stage, and the states
travel in their place.

It is decided for each attempt, by a sample of its keys: an exchange with nearly a key for each message costs less with
the messages as they are. What cannot be added up here, such as a message without a key, or one for which an expression
fails, goes as it is, so that it fails where it is processed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import exp

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.serdes import ColumnSerde
from penstock.arrays.byte_arrays import ByteArray, Integers
from penstock.batch.batch import Batch
from penstock.graph.aggregation import ColumnAggregates
from penstock.graph.serdes import SerdePlace
from penstock.graph.topology import Channel
from penstock.runtime.context import MessagePage, Position
from penstock.runtime.messages.outlet import FLUSH_ROWS, MAX_PACKET_BYTES, ColumnOutlet
from penstock.runtime.messages.packet import MESSAGE_SCHEMA, in_one

FEWEST = 4096
"""With fewer messages, nothing is added up."""
_SAMPLE = 8192
_WORTH = 0.7
"""Messages are added up if at most this part of them is expected to be left."""
_MOST_MESSAGES = 1 << 20
"""The messages that are gathered before they are added up."""
_MOST_BYTES = 32 << 20
"""The bytes of these messages."""


def expected_states(messages: int, states: int, of: int) -> float:
    """The number of states to be expected of some messages, if a sample has so many.

    Args:
        messages: the number of messages.
        states: the states of the sample.
        of: the messages in the sample.
    """
    if states >= of:
        return float(messages)
    low, high = float(states), float(of) * of
    while high - low > 0.01 * low:  # the number of all groups, each of which is as frequent as the others
        middle = (low + high) / 2
        low, high = (middle, high) if middle * (1 - exp(-of / middle)) < states else (low, middle)
    return high * (1 - exp(-messages / high))


class Adder(ABC):
    """Adds up messages for an operator."""

    times: int = 1
    """The number of states that a message is in, at most."""

    @abstractmethod
    def add_up(self, rows: pa.RecordBatch, batch: Batch) -> Sequence[pa.RecordBatch] | None:
        """The states of messages (`MESSAGE_SCHEMA`), and those of them that go as they are. None if some cannot be
        added up here; others perhaps can.

        Args:
            rows: the messages (`rows_schema`).
            batch: the batch, as the operator sees it.

        Raises:
            pyarrow.ArrowException, ArithmeticError, ValueError: as None.
        """

    @abstractmethod
    def count(self, rows: pa.RecordBatch) -> int:
        """The number of groups of these messages, each of which has `times` states at most."""


def is_partial(messages: pa.RecordBatch) -> bool:
    """True for states in the place of rows. Only for messages of a channel of rows."""
    return bool(pa.types.is_binary(messages.schema.types[1]))


class PartialOutlet(ColumnOutlet):
    """As `ColumnOutlet`; but the messages for an operator may leave as states (`MESSAGE_SCHEMA`), each with the place
    of the first message that is in it."""

    def __init__(
        self,
        channel: Channel,
        position: Position,
        place: SerdePlace,
        serde: ColumnSerde,
        carried: ColumnSerde,
        adder: Adder,
    ) -> None:
        super().__init__(channel, position, place, serde, carried)
        self._adder = adder
        self._batch: Batch | None = None
        """None: nothing is added up."""
        self._adds_up: bool | None = None
        """None: it is not decided yet."""
        self._messages = self._messages_before = 0
        """Messages of this attempt that have been taken, and of the one before it."""

    def begin(self, batch: Batch | None) -> None:
        super().begin(batch)
        self._batch = None if batch is None else batch.seen_by(self.channel.targets[0])
        self._adds_up = None if batch is not None else False
        self._messages, self._messages_before = 0, self._messages

    def end_page(self, page: MessagePage) -> None:
        super().end_page(page)
        if self._adds_up is None and super().is_ready:
            self._adds_up = self._is_worth_it()

    @property
    def is_ready(self) -> bool:
        if self._adds_up is False:
            return super().is_ready
        times = self._adder.times
        return len(self) * times >= _MOST_MESSAGES or self.bytes * times >= _MOST_BYTES

    def take(self) -> Iterator[pa.RecordBatch]:
        if self._adds_up is None:
            self._adds_up = self._is_worth_it()
        self._messages += len(self)
        if self._batch is None or not self._adds_up or not self._ended:
            yield from super().take()
            return
        rows = in_one(self._ended)
        self.clear()
        most = self._most(rows)
        pieces = max(1, (rows.num_rows + most // 2) // most)
        size = -(-rows.num_rows // pieces)
        for start in range(0, rows.num_rows, size):
            yield from self._added_up(rows.slice(start, size), self._batch)

    def _most(self, rows: pa.RecordBatch) -> int:
        """The number of messages such as these that are added up at once, about."""
        by_bytes = _MOST_BYTES * rows.num_rows // max(1, rows.nbytes)
        return int(max(1, min(_MOST_MESSAGES, by_bytes) // self._adder.times))

    def _added_up(self, rows: pa.RecordBatch, batch: Batch) -> Iterator[pa.RecordBatch]:
        """The states of messages, and in between the few that cannot be added up, in batches of bounded size."""
        half = rows.num_rows // 2
        try:
            found = self._adder.add_up(rows, batch)
        except (pa.ArrowException, ArithmeticError, ValueError):
            found = None
        if found is None and half >= max(1, FEWEST):
            yield from self._added_up(rows.slice(0, half), batch)
            yield from self._added_up(rows.slice(half), batch)
            return
        for each in (rows,) if found is None else found:
            most = max(1, min(FLUSH_ROWS, MAX_PACKET_BYTES * each.num_rows // max(1, each.nbytes)))
            for start in range(0, each.num_rows, most):
                yield each.slice(start, most)

    def _is_worth_it(self) -> bool | None:
        """Decide by a sample of ended pages, and by the number of messages that the attempt before had. None: there are
        too few to tell."""
        count = sum(messages.num_rows for messages in self._ended)
        if count < max(1, FEWEST):
            return None
        step = max(1, count // _SAMPLE)
        sample = in_one([page.take(pa.array(np.arange(0, page.num_rows, step))) for page in self._ended])
        to_come = max(count, self._messages_before - self._messages, 2 * count if super().is_ready else 0)
        to_come = min(to_come, self._most(sample))
        left = expected_states(to_come, self._adder.count(sample), sample.num_rows) * self._adder.times
        return bool(left <= _WORTH * to_come)


class KeyAdder(Adder):
    """Adds up messages by key alone."""

    def __init__(self, new_aggregates: Callable[[], ColumnAggregates]) -> None:
        """`new_aggregates`: makes aggregates of no group, for the rows that are carried."""
        self._new_aggregates = new_aggregates

    def add_up(self, rows: pa.RecordBatch, batch: Batch) -> Sequence[pa.RecordBatch] | None:
        aggregates = self._new_aggregates()
        keys, values, times = rows.columns[:3]
        if keys.null_count:
            return None
        taken = aggregates.values_of(values)
        by_key = keys.dictionary_encode()
        groups = by_key.indices.to_numpy().astype(np.int64)
        states, first = states_of(aggregates, groups, len(by_key.dictionary), taken, times.to_numpy())
        places = [column.take(first) for column in rows.columns[2:5]]
        return [pa.RecordBatch.from_arrays([by_key.dictionary, states, *places], schema=MESSAGE_SCHEMA)]

    def count(self, rows: pa.RecordBatch) -> int:
        return int(pc.count_distinct(rows.column(0), "all").as_py())


def states_of(
    aggregates: ColumnAggregates, groups: Integers, count: int, values: pa.StructArray, times: Integers
) -> tuple[pa.Array, pa.Array]:
    """The states of so many groups, and the number of the first message of each.

    Args:
        aggregates: of no group yet.
        groups: of each message; each has one.
        count: the number of groups.
        values: as the aggregates take them.
        times: of each message.
    """
    nothing = np.zeros(count, np.int64)
    aggregates.grow(ByteArray(np.zeros(0, np.uint8), nothing, nothing), np.zeros(count, np.bool_))
    aggregates.add(groups, values, times)
    first = np.empty(count, np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]  # of several assignments to one place, numpy keeps the last
    return aggregates.states().to_arrow().cast(pa.binary()), pa.array(first)
