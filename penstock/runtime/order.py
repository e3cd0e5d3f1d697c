"""Messages that wait until the watermark has passed them, and then come one by one in the order of their event times.

What comes in an attempt is in memory until the end of its input. What the watermark has passed then goes on, together
with messages of the store, and with the operator's own timers between them. Only what waits longer is stored. A value
has the number of the source, flags, the name of the stream, the headers, and the message's value. The parts of its key:

| part | bytes, so that entries sort by time and key, and by their offsets within these |
|---|---|
| event time | 8, which sort as times do |
| key | 00 without one; otherwise 01, its bytes with each 00 written as 00 FF, and 00 01 |
| stream | the first 8 of the hash of its name |
| partition, offset | 4 and 8 |
| number | 16: batch time, and a number that grows; no two messages have the same |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from heapq import merge
from itertools import groupby
from struct import Struct
from typing import Any, NamedTuple

from penstock.api.messages import unpack_headers
from penstock.api.serdes import ColumnSerde
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK, Batch
from penstock.errors import CorruptError
from penstock.graph.event_time import EventTimeOrder, OrderedSource
from penstock.graph.serdes import Part, SerdePlace
from penstock.runtime.context import FiredPage, MessageOrigin, OperatorFailedError, failure_in
from penstock.runtime.messages.columns import MessageColumns, Raw, Target, as_columns, encode_column
from penstock.runtime.operators.base import NO_TIMELINE, Firing, KeyValue, Node, StageContext, Timeline
from penstock.runtime.timers import time_bytes, time_of

TIME_BYTES = 8
STREAM_BYTES = 8
_PARTITION_BYTES = 4
PLACE_BYTES = STREAM_BYTES + _PARTITION_BYTES + 8
NUMBER_BYTES = 16
_TAIL = PLACE_BYTES + NUMBER_BYTES
_HEAD = Struct(">BBHI")
"""Source, flags, the length of the stream's name, and that of the headers."""
_HAS_VALUE = 1
_NO_KEY, _KEY = b"\x00", b"\x01"
_ZERO, _ESCAPED_ZERO, _END = b"\x00", b"\x00\xff", b"\x00\x01"


class WaitingMessage(NamedTuple):
    """The content of an entry's value."""

    source: int
    stream: str
    """`system.stream`."""
    headers: bytes
    """As `pack_headers` makes them."""
    value: bytes | None


def stream_part(stream: str) -> bytes:
    """The part of an entry that stands for the stream."""
    return blake2b(stream.encode(), digest_size=STREAM_BYTES).digest()


def partition_part(ssp: SystemStreamPartition) -> bytes:
    return stream_part(str(ssp.system_stream)) + ssp.partition.to_bytes(_PARTITION_BYTES, "big")


def number_part(place: tuple[int, int]) -> bytes:
    """The part of an entry that makes it unique: a place as `StageContext.next_list_place` gives them."""
    return time_bytes(place[0]) + place[1].to_bytes(8, "big")


def key_part(key: bytes | None) -> bytes:
    """A key as a part of an entry, which sorts as keys do and marks its own end."""
    if key is None:
        return _NO_KEY
    return _KEY + (key.replace(_ZERO, _ESCAPED_ZERO) if _ZERO in key else key) + _END


def entry_of(time_ms: int, key: bytes | None, partition: bytes, offset: int, number: bytes) -> bytes:
    """The key of an entry. `partition` and `number` are parts that the functions above make."""
    return time_bytes(time_ms) + key_part(key) + partition + time_bytes(offset) + number


def time_in(entry: bytes) -> int:
    return time_of(entry[:TIME_BYTES])


def time_and_key(entry: bytes) -> bytes:
    """The first two parts, by which entries are in order."""
    return entry[:-_TAIL]


def key_in(entry: bytes) -> bytes | None:
    part = entry[TIME_BYTES:-_TAIL]
    return None if part == _NO_KEY else part[1 : -len(_END)].replace(_ESCAPED_ZERO, _ZERO)


def place_in(entry: bytes) -> bytes:
    """Stream, partition and offset, as they sort."""
    return entry[-_TAIL:-NUMBER_BYTES]


def partition_and_offset(entry: bytes) -> tuple[int, int]:
    place = place_in(entry)[STREAM_BYTES:]
    return int.from_bytes(place[:_PARTITION_BYTES], "big"), time_of(place[_PARTITION_BYTES:])


def pack(waiting: WaitingMessage) -> bytes:
    """The value of an entry."""
    stream, value = waiting.stream.encode(), waiting.value
    flags = 0 if value is None else _HAS_VALUE
    head = _HEAD.pack(waiting.source, flags, len(stream), len(waiting.headers))
    return b"".join((head, stream, waiting.headers, value or b""))


def unpack(data: bytes) -> WaitingMessage:
    """The content of a value. Raises CorruptError if it breaks off."""
    source, flags, stream_length, headers_length = _HEAD.unpack_from(data)
    headers_at = _HEAD.size + stream_length
    value_at = headers_at + headers_length
    if value_at > len(data):
        raise CorruptError(
            f"a message that waits for its turn is damaged: its value begins at {value_at} of {len(data)}"
        )
    value = data[value_at:] if flags & _HAS_VALUE else None
    return WaitingMessage(source, data[_HEAD.size : headers_at].decode(), data[headers_at:value_at], value)


AT_MOST = 100_000
"""Messages and timers of an attempt, unless operators downstream rely on more: a batch should not take too long."""

_TOGETHER = 128
"""Messages that are handed on together, if none of them can be undone alone."""


class _Message(NamedTuple):
    entry: bytes
    data: bytes
    stored: bool
    """It is in the store, and not of this attempt."""


class OrderedNode(Node):
    """Holds messages back from a node, and hands them on by event time."""

    def __init__(self, op_id: str, order: EventTimeOrder, stage: StageContext, inner: Node) -> None:
        self.op_id = op_id
        inlets = [_Inlet(self, number, source, stage) for number, source in enumerate(order.sources)]
        super().__init__(inlets[0].accept, stage.position)
        self.position = stage.position
        self.store: KeyValue = stage.stores[order.store]
        self.late_watermark = NO_WATERMARK
        self.fresh: list[tuple[bytes, bytes]] = []
        """The messages of this attempt."""
        self.new_place = stage.next_list_place
        self._inner = inner
        self._by_source = {inlet.source.id: inlet for inlet in inlets}
        self._inlets = inlets
        self._targets = [inner.inlet(source.id) for source in order.sources]
        self._by_offset = order.by_offset
        self._undoable = stage.undoable
        self._late_to = None if order.late_to is None else stage.outputs[str(order.late_to)]
        self._late = stage.metrics.new_counter(op_id, "late-dropped")
        self._in_order = stage.metrics.new_counter(op_id, "in-order")
        self._firing = False
        self._handed_on = 0
        """Firings of this attempt that hand messages on."""
        self._ssps: dict[tuple[str, int], SystemStreamPartition] = {}

    def inlet(self, source: str) -> Target:
        return self._by_source[source]

    # An attempt.

    def begin(self, batch: Batch) -> None:
        self.late_watermark = batch.late_watermark(self.op_id)
        self.fresh = []
        self._handed_on = 0
        self._firing = False
        self._inner.begin(_for_what_was_left(batch, self.op_id))

    def on_start_of_input(self, batch: Batch) -> Iterable[Any]:
        return self._inner.on_start_of_input(batch)

    def mark(self) -> int:
        return self._inner.mark() if self._firing else len(self.fresh)

    def undo(self, mark: int) -> None:
        if self._firing:
            self._inner.undo(mark)
        else:
            del self.fresh[mark:]

    def send_late(self, columns: MessageColumns, number: int) -> None:
        if self._late_to is None:
            self._late.inc()
        else:
            self._late_to(columns.keys[number], columns.values[number])

    def on_end_of_input(self, batch: Batch) -> Iterator[Any]:
        self._firing = True
        ending = batch.ending is not None
        watermark = END_OF_TIME if ending else batch.firing_watermark(self.op_id)
        output = END_OF_TIME if ending else min(watermark, batch.output_watermark(self.op_id))
        ready = _ReadyMessages(self.store, self.fresh, time_bytes(watermark), by_offset=self._by_offset)
        turns = _Turns(ready, self._inner.timeline(batch) or NO_TIMELINE, NO_WATERMARK if ending else watermark, output)
        while (due_ms := turns.next_due()) is not None:
            if turns.must_wait(due_ms):
                batch = replace(batch, firing={**batch.firing, self.op_id: due_ms - 1})
                break  # the next batch begins at once
            firing = turns.timer() if turns.message is None else self._message(turns)
            if firing is not None:
                yield firing
        for entry, data in ready.left():
            self.store.put(entry, data)
        yield from self._inner.on_end_of_input(batch)

    def _message(self, turns: _Turns) -> Firing:
        """Hands on the next message; and the following ones, if none of them can be undone alone."""
        self._handed_on += 1
        if not self._undoable:
            return Firing(None, turns.time_ms, "messages", partial(self._hand_on_some, turns))
        message = self._taken(turns)
        waiting = unpack(message.data)
        inlet, key = self._inlets[waiting.source], key_in(message.entry)
        run = partial(self._hand_on, inlet, key, waiting)
        value, origin = inlet.shown(waiting.value), self._origin(message.entry, waiting)
        return Firing(key, time_in(message.entry), "message", run, value=value, origin=origin)

    def _hand_on_some(self, turns: _Turns) -> None:
        position = self.position
        page = position.page
        if not isinstance(page, FiredPage):
            raise TypeError("messages that waited are handed on by firings")
        unknown = page.origins[position.row]
        for _ in range(_TOGETHER):
            message = self._taken(turns)
            entry, waiting = message.entry, unpack(message.data)
            key = key_in(entry)
            position.row = page.add_message(time_in(entry), self._origin(entry, waiting), unknown)
            try:
                self._hand_on(self._inlets[waiting.source], key, waiting)
            except OperatorFailedError as failure:
                failure.key = key if failure.key is None else failure.key
                raise
            due_ms = turns.next_due()
            if due_ms is None or turns.message is None or turns.must_wait(due_ms):
                break

    def _taken(self, turns: _Turns) -> _Message:
        message = turns.take_message()
        if message.stored:
            self.store.delete(message.entry)
        self._in_order.inc()
        return message

    def _origin(self, entry: bytes, waiting: WaitingMessage) -> MessageOrigin:
        partition, offset = partition_and_offset(entry)
        found = self._ssps.get((waiting.stream, partition))
        if found is None:
            stream = SystemStream.parse(waiting.stream)
            found = SystemStreamPartition(stream.system, stream.stream, partition)
            self._ssps[waiting.stream, partition] = found
        return MessageOrigin(found, offset, waiting.headers, self._inlets[waiting.source].source.id)

    def _hand_on(self, inlet: _Inlet, key: bytes | None, waiting: WaitingMessage) -> None:
        self._targets[inlet.number].push(inlet.key_of(key), inlet.value_of(waiting))

    def fired(self, count: int) -> None:
        self._inner.fired(max(0, count - self._handed_on))
        self._handed_on = 0

    def close(self) -> None:
        self._inner.close()


class _Inlet:
    """Takes the messages of one source."""

    def __init__(self, node: OrderedNode, number: int, source: OrderedSource, stage: StageContext) -> None:
        self.number, self.source = number, source
        self._node = node
        self.push = as_columns(self.accept, stage.position)
        self._place = SerdePlace(f"messages that wait for operator `{node.op_id}`", "")
        self._partitions: dict[int, tuple[bytes, str]] = {}
        """By origin code: the part of an entry, and the name of the stream."""

    def accept(self, columns: MessageColumns) -> None:
        node = self._node
        position, page = node.position, node.position.page
        try:
            keys, values = self._bytes_of("key", columns), self._bytes_of("value", columns)
            times, origins, offsets, headers = page.timestamps, page.origins, page.offsets, page.packed_headers
            for number, (row, key, value) in enumerate(zip(columns.rows, keys, values, strict=True)):
                position.row = row = int(row)
                time_ms = times[row]
                if time_ms < node.late_watermark:
                    node.send_late(columns, number)
                    continue
                partition, stream = self._partition(origins[row])
                place = number_part(node.new_place())
                waiting = WaitingMessage(self.number, stream, headers.get(row, b""), value)
                entry = entry_of(time_ms, key, partition, offsets[row], place)
                node.fresh.append((entry, pack(waiting)))
        except BaseException as error:
            raise failure_in(node.op_id, error) from error

    def _partition(self, origin: int) -> tuple[bytes, str]:
        found = self._partitions.get(origin)
        if found is None:
            node = self._node
            ssp = node.position.page.ssp(node.position.row)
            found = self._partitions[origin] = partition_part(ssp), str(ssp.system_stream)
        return found

    def _bytes_of(self, part: Part, columns: MessageColumns) -> Raw:
        source = self.source
        serde = source.key_serde if part == "key" else source.stored_serde
        written = columns.written_by(part, serde)
        if written is not None:
            return written
        found = columns.keys if part == "key" else columns.values
        return encode_column(part, serde, found, columns.rows, self._node.position, self._node.op_id, self._place)

    def key_of(self, key: bytes | None) -> Any:
        return None if key is None else self.source.key_serde.from_bytes(key)

    def value_of(self, waiting: WaitingMessage) -> Any:
        serde, data = self.source.stored_serde, waiting.value
        if data is None:
            return None
        if serde.reads_headers:
            return serde.from_message(data, unpack_headers(waiting.headers) if waiting.headers else ())
        return serde.from_bytes(data)

    def shown(self, value: bytes | None) -> bytes | None:
        """The value as it goes to the dead letters."""
        serde = self.source.value_serde
        if value is None or not isinstance(serde, ColumnSerde):
            return value
        try:
            return serde.to_bytes(self.source.stored_serde.from_bytes(value))
        except ValueError:  # JSON does not have such a number
            return None


class _ReadyMessages:
    """The messages that the watermark has passed, in order: those of the store, and those of the attempt."""

    def __init__(self, store: KeyValue, fresh: list[tuple[bytes, bytes]], bound: bytes, *, by_offset: bool) -> None:
        """`bound`: entries before it are ready."""
        self._fresh = sorted(each for each in fresh if each[0] < bound)
        self._later = [each for each in fresh if each[0] >= bound]
        self._stored = store.range(b"", bound)
        self._taken = 0
        """Messages of the attempt that were looked at."""
        self._group: Sequence[_Message] = ()
        self._of_group = 0
        """The place in the group of the message that was given out last, and perhaps not handed on."""
        self._rank = _by_offset if by_offset else _by_content

    def __iter__(self) -> Iterator[_Message]:
        stored = (_Message(entry, data, stored=True) for entry, data in self._stored)
        fresh = (_Message(entry, data, stored=False) for entry, data in self._fresh)
        for _, group in groupby(merge(stored, fresh), key=lambda message: time_and_key(message.entry)):
            self._group = list(group)
            if len(self._group) > 1:
                self._group = sorted(self._group, key=self._rank)
            self._taken += sum(not message.stored for message in self._group)
            for number, message in enumerate(self._group):
                self._of_group = number
                yield message
        self._group = ()

    def left(self) -> Iterator[tuple[bytes, bytes]]:
        """The messages of the attempt that were not handed on, and are not in the store."""
        yield from self._later
        yield from ((message.entry, message.data) for message in self._group[self._of_group :] if not message.stored)
        yield from self._fresh[self._taken :]


class _Turns:
    """Messages and timers, each when it is its turn. The next one is decided after the one before was processed."""

    def __init__(self, ready: _ReadyMessages, timeline: Timeline, watermark: int, output: int) -> None:
        self._messages = iter(ready)
        self._timeline = timeline
        self._watermark, self._output = watermark, output
        self._first = next(self._messages, None)
        self._first_ms = NO_WATERMARK if self._first is None else time_in(self._first.entry)
        self._now = NO_WATERMARK
        """The time of the last one."""
        self._done = 0
        self.message: _Message | None = None
        """The next one, if it is a message."""
        self.time_ms = NO_WATERMARK
        """The time of the next one."""

    def next_due(self) -> int | None:
        """The watermark at which the next one is due; None if there is none."""
        at, first = self._timeline.next_ms(), self._first
        if first is not None and (at is None or at > self._first_ms):
            self.message, self.time_ms = first, self._first_ms
            return self._first_ms + 1
        self.message = None
        if at is None or (first is None and at > max(self._now, self._watermark)):
            return None
        self.time_ms = at
        # A timer whose time was over when it was set belongs to what set it: no other batch knows that time.
        return at if at >= self._now else NO_WATERMARK

    def must_wait(self, due_ms: int) -> bool:
        """True if the attempt has done enough, and nobody relies on the next one."""
        return self._done >= AT_MOST and due_ms > self._output

    def take_message(self) -> _Message:
        taken, self._first = self._first, next(self._messages, None)
        if taken is None:
            raise ValueError("no message is left")
        self._now = self._first_ms
        if self._first is not None:
            self._first_ms = time_in(self._first.entry)
        self._done += 1
        return taken

    def timer(self) -> Firing | None:
        firing = self._timeline.take(self._now)
        self._now = max(self._now, self.time_ms)
        self._done += firing is not None
        return firing


def _by_content(message: _Message) -> tuple[Any, ...]:
    waiting = unpack(message.data)
    return waiting.source, waiting.value is not None, waiting.value or b"", waiting.headers


def _by_offset(message: _Message) -> tuple[Any, ...]:
    return place_in(message.entry), _by_content(message)


def _for_what_was_left(batch: Batch, op_id: str) -> Batch:
    """The batch for a node that gets messages which an earlier batch had to leave: none of them is late."""
    late = min(batch.late_watermark(op_id), batch.output_watermark(op_id))
    return batch if late == batch.late_watermark(op_id) else replace(batch, late={**batch.late, op_id: late})
