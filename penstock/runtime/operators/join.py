"""join: pairs of messages of two streams that have the same key and are close in event time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from penstock.api.serdes import Serde
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK, Batch, Due
from penstock.graph.event_time import JoinSide
from penstock.graph.serdes import Part, SerdePlace, join_place
from penstock.graph.specs import JoinSpec, OperatorSpec
from penstock.runtime import joins
from penstock.runtime.context import Position, failure_in
from penstock.runtime.messages.columns import Fork, MessageColumns, Raw, Target, as_columns, encode_column
from penstock.runtime.operators.base import CallWatch, Firing, KeyInEntry, KeyValue, Node, Operator, StageContext

_HELD_ENTRIES = 100_000

_HELD_RESULTS = 10_000

_AT_MOST = 100_000
"""Limit of the messages without a partner that an attempt emits, unless operators downstream rely on more; and of the
entries that it drops."""


class StreamJoin(Operator[JoinSpec]):
    """Each pair is found by the message that comes last."""

    @property
    def time_stores(self) -> tuple[str, ...]:
        return (self.spec.stores[0],)

    def next_due(self, store: KeyValue) -> Due:
        return joins.first_end(store), None

    def key_in(self, store: str) -> KeyInEntry:
        of_kept = joins.key_of_cell if self.spec.join.keep == "all" else joins.key_of_newest

        def find(entry: bytes) -> bytes:
            return joins.key_of_waiting(entry) if joins.is_waiting(entry) else of_kept(entry)

        return KeyInEntry(self.spec.left.key_serde, find)

    def place(self, name: str) -> SerdePlace:
        return join_place(name)

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return _JoinNode(self.spec, stage, downstream)

    def watched(self, watch: CallWatch) -> OperatorSpec:
        op_id, function = self.spec.id, self.spec.function

        def watched(left: Any, right: Any) -> Any:
            with watch.call(op_id, [left, right]):
                return function(left, right)

        return replace(self.spec, function=watched)


class _JoinNode(Node):
    def __init__(self, spec: JoinSpec, stage: StageContext, downstream: Target) -> None:
        store = stage.stores[spec.stores[0]]
        sides = joins.sides_of(spec.join)
        self.spec = spec
        self.position = stage.position
        self.downstream = downstream
        self.kept: joins.KeptMessages = (joins.EveryRow if spec.join.keep == "all" else joins.NewestRow)(store, sides)
        self.waiting = joins.WaitingMessages(store)
        self.results = _Results(stage.position, downstream)
        self.replaced: list[joins.LoneMessage] = []
        """Messages without a partner that the current messages have replaced."""
        self._left_alone: list[joins.LoneMessage] = []
        """All of the attempt. They fire at the end of its input. If messages may be undone, they are in the store
        instead."""
        self.late_watermark = NO_WATERMARK
        self._undoable = stage.undoable
        late_to = spec.join.late_to
        self._late_to = None if late_to is None else stage.outputs[str(late_to)]
        self._late = stage.metrics.new_counter(spec.id, "late-dropped")
        self._without_partner = stage.metrics.new_counter(spec.id, "without-partner")
        left = _Inlet(self, spec.left, sides[0], spec.right, sides[1])
        right = _Inlet(self, spec.right, sides[1], spec.left, sides[0])
        self._inlets = (left, right)
        self._by_letter = {inlet.side.letter: inlet for inlet in self._inlets}
        super().__init__(left.accept, stage.position)

    def inlet(self, source: str) -> Target:
        found = [inlet for inlet in self._inlets if inlet.source == source]
        return found[0] if len(found) == 1 else Fork(found)

    def begin(self, batch: Batch) -> None:
        self.late_watermark = batch.late_watermark(self.spec.id)
        self._left_alone.clear()
        self.forget()

    def forget(self) -> None:
        """Forget all held entries, so that none is stored later."""
        self.kept.clear()
        self.waiting.clear()
        self.results.clear()
        self.replaced.clear()

    def settle(self) -> None:
        """Pass on the results, and store the held entries if need be. Called after some messages have been
        processed."""
        self.results.deliver()
        if self._undoable:  # an operator behind may fail with this message, which is then undone in the store only
            for time_ms, letter, key, value in self.replaced:
                self.waiting.leave_alone(time_ms, letter, key, value)
        else:
            self._left_alone += self.replaced
        self.replaced.clear()
        if self._undoable or self.kept.held > _HELD_ENTRIES:
            self._save()

    def _save(self) -> None:
        self.kept.save()
        self.waiting.save()

    def send_late(self, key: Any, value: Any) -> None:
        if self._late_to is None:
            self._late.inc()
        else:
            self._late_to(key, value)

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing]:
        self._save()
        ends = batch.control != "none"
        done = END_OF_TIME if ends else batch.firing_watermark(self.spec.id)
        output, fired = batch.output_watermark(self.spec.id), 0
        left_alone = self.waiting.take_left_alone() if self._undoable else self._left_alone
        for time_ms, letter, key, value in sorted(left_alone, key=itemgetter(0, 1, 2)):
            yield self._by_letter[letter].firing(key, value, time_ms)
        while due := self.waiting.take_due(done):
            for end, letter, key in due:
                inlet = self._by_letter[letter]
                for value in self.kept.at(inlet.side, key, end - 1 - inlet.side.ahead_ms):
                    fired += 1
                    yield inlet.firing(key, value, end - 1)
            if fired >= _AT_MOST and not ends:
                done = min(done, output)  # the next batch begins at once
        self.kept.drop(done, self.late_watermark, None if ends else _AT_MOST)

    def fired(self, count: int) -> None:
        self._without_partner.inc(count)


class _Inlet:
    """The target for the messages of one side."""

    def __init__(
        self, node: _JoinNode, declared: JoinSide, side: joins.Side, other: JoinSide, other_side: joins.Side
    ) -> None:
        self.source = declared.source
        self.side = side
        self.name = "left" if side.letter == b"l" else "right"
        self._node = node
        self._other = other_side
        self._key_serde, self._value_serde = declared.key_serde, declared.value_serde
        self._other_serde = other.value_serde
        self._place = SerdePlace(f"the {self.name} side of operator `{node.spec.id}`", "")
        function = node.spec.function
        self._function = function if self.name == "left" else lambda own, partner: function(partner, own)
        self.push = as_columns(self.accept, node.position)

    def accept(self, columns: MessageColumns) -> None:
        node = self._node
        try:
            self._take_all(columns)
            node.settle()
        except BaseException as error:
            node.forget()  # the message is undone in the store; nothing of it may be stored later
            raise failure_in(node.spec.id, error) from error

    def _take_all(self, columns: MessageColumns) -> None:
        node, side = self._node, self.side
        position, take, late = node.position, node.kept.take, node.late_watermark
        times = position.page.timestamps
        keys = self._encoded("key", self._key_serde, columns)
        values = self._encoded("value", self._value_serde, columns)
        for number, (row, key, value) in enumerate(zip(columns.rows, keys, values, strict=True)):
            position.row = row
            time_ms = times[row]
            if time_ms < late:
                node.send_late(columns.keys[number], columns.values[number])
            elif key is None:
                if side.alone:
                    self._add_alone(None, (time_ms, value), row)
            else:
                kept_row = (time_ms, value)
                partners, gone = take(side, key, kept_row)
                if side.alone:
                    self._wait(key, kept_row, gone, row, alone=not partners)
                if partners:
                    self._add_pairs(key, kept_row, partners, row)

    def _encoded(self, part: Part, serde: Serde[Any], columns: MessageColumns) -> Raw:
        written = columns.written_by(part, serde)
        if written is not None:
            return written
        node, column = self._node, columns.keys if part == "key" else columns.values
        return encode_column(part, serde, column, columns.rows, node.position, node.spec.id, self._place)

    def _wait(self, key: bytes, kept_row: joins.Row, gone: joins.Row | None, row: int, *, alone: bool) -> None:
        """Note that a message waits for its first partner. A message that is not kept, or no longer kept, cannot get
        one."""
        waiting = self._node.waiting
        if gone is kept_row:
            if alone:
                self._add_alone(key, kept_row, row)
            return
        if gone is not None and waiting.remove(self.side, key, gone[0]):
            self._node.replaced.append((self.side.last_ms(gone[0]), self.side.letter, key, gone[1]))
        if alone:
            waiting.add(self.side, key, kept_row[0])

    def _add_pairs(self, key: bytes, kept_row: joins.Row, partners: list[joins.Row], row: int) -> None:
        """Add the results for these partners. All values have been through their serdes, whichever message came
        first."""
        node, other = self._node, self._other
        time_ms, value = kept_row
        own, shown_key = _decoded(self._value_serde, value), self._key_serde.from_bytes(key)
        add, function = node.results.add, self._function
        for partner_ms, partner_value in partners:
            if other.alone:
                node.waiting.remove(other, key, partner_ms)
            result = function(own, _decoded(self._other_serde, partner_value))
            add(shown_key, result, row, max(time_ms, partner_ms))

    def _add_alone(self, key: bytes | None, kept_row: joins.Row, row: int) -> None:
        shown_key = None if key is None else self._key_serde.from_bytes(key)
        result = self._function(_decoded(self._value_serde, kept_row[1]), None)
        self._node.results.add(shown_key, result, row, self.side.last_ms(kept_row[0]))

    def firing(self, key: bytes, value: bytes | None, time_ms: int) -> Firing:
        alone = partial(self._emit_alone, key, value)
        return Firing(key, time_ms, f"{self.name} message without a partner", alone, value=value)

    def _emit_alone(self, key: bytes, value: bytes | None) -> None:
        result = self._function(_decoded(self._value_serde, value), None)
        self._node.downstream.push(self._key_serde.from_bytes(key), result)


def _decoded(serde: Serde[Any], data: bytes | None) -> Any:
    return None if data is None else serde.from_bytes(data)


class _Results:
    """Results that wait to be passed on by column."""

    def __init__(self, position: Position, downstream: Target) -> None:
        self._position = position
        self._downstream = downstream
        self.clear()

    def clear(self) -> None:
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._rows: list[int] = []
        self._made_from: dict[int, int] = {}
        """For rows that were added to the page, the row of the message."""

    def add(self, key: Any, value: Any, row: int, time_ms: int) -> None:
        page = self._position.page
        if time_ms != page.timestamps[row]:
            message, row = row, page.derived(row, timestamp_ms=time_ms)
            self._made_from[row] = message
        self._keys.append(key)
        self._values.append(value)
        self._rows.append(row)
        if len(self._rows) >= _HELD_RESULTS:
            self.deliver()

    def deliver(self) -> None:
        if not self._rows:
            return
        position, made_from = self._position, self._made_from
        columns, message = MessageColumns(None, self._keys, self._values, self._rows), position.row
        self.clear()
        try:
            self._downstream.accept(columns)
        except BaseException:
            position.row = made_from.get(position.row, position.row)
            raise
        position.row = message
