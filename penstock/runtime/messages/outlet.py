"""The ways out of a stage: messages in columns, until they are cut into packets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.serdes import not_bytes
from penstock.graph.serde_failures import SerdePlace
from penstock.graph.topology import Channel
from penstock.runtime.context import MessagePage, Position, failure_in
from penstock.runtime.messages.columns import Accept, MessageColumns, Push, Raw, encode_column
from penstock.runtime.messages.packet import MESSAGE_SCHEMA, with_headers

FLUSH_MESSAGES = 8192
"""Messages that a channel collects before they are cut into packets."""
FLUSH_BYTES = 8 << 20
"""Bytes of keys and values that a channel collects before they are cut into packets."""

MAX_PACKET_BYTES = 16 << 20
"""A packet of more than one message stays below this many bytes of keys and values."""


class Outlet:
    """One channel's way out of a stage: serialised messages in columns, until they are cut into packets.

    For each message only the row of the page it was made from is noted; at the page's end the rows are turned into
    origins, offsets and timestamps, all at once.

    It is a `Target`: a message that does not serialise failed in the operator that made it.
    """

    def __init__(self, channel: Channel, position: Position, place: SerdePlace) -> None:
        self.channel = channel
        self._place = place
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.bytes = 0
        """Bytes of the keys and values that `count_bytes` has seen."""
        self._counted = 0
        self._rows: list[int] = []
        self._pages: list[tuple[Any, Any, Any]] = []
        self._headers: dict[int, bytes] = {}
        """By the number of the message, the packed headers of those of ended pages that have some."""
        self.push = self._make_push(position)
        """Serialise and add a message that the message at the position led to."""
        self.accept = self._make_accept(position)
        """Add messages. Serialises those that do not have the bytes of the channel's serdes."""
        self.push_raw = self._make_push_raw(position)

    def _make_push(self, position: Position) -> Push:
        key_serde, value_serde = self.channel.key_serde, self.channel.value_serde
        encode_key, encode_value = key_serde.to_bytes, value_serde.to_bytes
        add_key, add_value, add_row = self.keys.append, self.values.append, self._rows.append
        operator, place = self.channel.source, self._place

        def push(key: Any, value: Any) -> None:
            try:
                try:
                    key_bytes = None if key is None else encode_key(key)
                except Exception as error:
                    raise place.unwritable("key", key_serde, key, error) from error
                try:
                    value_bytes = None if value is None else encode_value(value)
                except Exception as error:
                    raise place.unwritable("value", value_serde, value, error, key) from error
                if value_bytes is not None and type(value_bytes) is not bytes:
                    raise not_bytes(value_serde, value_bytes, f"{place.name}, value of key {key!r}")
                if key_bytes is not None and type(key_bytes) is not bytes:
                    raise not_bytes(key_serde, key_bytes, f"{place.name}, key {key!r}")
            except BaseException as error:
                raise failure_in(operator, error) from error
            add_key(key_bytes)
            add_value(value_bytes)
            add_row(position.row)

        return push

    def _make_push_raw(self, position: Position) -> Push:
        add_key, add_value, add_row = self.keys.append, self.values.append, self._rows.append

        def push_raw(key: bytes | None, value: bytes | None) -> None:
            add_key(key)
            add_value(value)
            add_row(position.row)

        return push_raw

    def _make_accept(self, position: Position) -> Accept:
        key_serde, value_serde = self.channel.key_serde, self.channel.value_serde
        source, place = self.channel.source, self._place

        def accept(columns: MessageColumns) -> None:
            rows = columns.rows
            keys, values = columns.written_by("key", key_serde), columns.written_by("value", value_serde)
            if keys is None:
                keys = encode_column("key", key_serde, columns.keys, rows, position, source, place)
            if values is None:
                values = encode_column("value", value_serde, columns.values, rows, position, source, place)
            self.accept_raw(keys, values, rows)

        return accept

    def accept_raw(self, keys: Raw, values: Raw, rows: Sequence[int]) -> None:
        """Add messages that are serialised already; `rows` are those of the page they were made from."""
        self.keys.extend(keys)
        self.values.extend(values)
        self._rows.extend(rows)

    def __len__(self) -> int:
        return len(self.keys)

    def count_bytes(self) -> int:
        """Add the messages since the last call to `bytes`, and return their bytes."""
        start, self._counted = self._counted, len(self.keys)
        more = sum(sum(map(len, filter(None, islice(column, start, None)))) for column in (self.keys, self.values))
        self.bytes += more
        return more

    @property
    def is_ready(self) -> bool:
        return len(self.keys) >= FLUSH_MESSAGES or self.bytes >= FLUSH_BYTES

    def end_page(self, page: MessagePage) -> None:
        """Resolve the rows noted on this page, from which all messages collected since the last page are."""
        if self._rows:
            if page.packed_headers:
                first = len(self.keys) - len(self._rows)
                own = {n: packed for n, row in enumerate(self._rows, first) if (packed := page.packed_headers.get(row))}
                self._headers |= own
                self.bytes += sum(map(len, own.values()))
            rows = np.fromiter(self._rows, np.int64, len(self._rows))
            timestamps, origins, offsets = (column[rows] for column in page.columns())
            self._pages.append((timestamps, origins, offsets))
            self._rows.clear()

    @property
    def has_keyless(self) -> bool:
        """True if a message of an ended page has no key."""
        return None in self.keys

    def truncate(self, length: int) -> None:
        """Forget the messages of the current page after the first `length`."""
        forgotten = len(self.keys) - length
        for column in (self.keys, self.values):
            del column[length:]
        del self._rows[len(self._rows) - forgotten :]

    def clear(self) -> None:
        for column in (self.keys, self.values, self._rows, self._pages, self._headers):
            column.clear()
        self.bytes = self._counted = 0

    def take(self) -> Iterator[pa.RecordBatch]:
        """The messages of all ended pages, in order, in batches of bounded size; the outlet is empty afterwards."""
        if not self.keys:
            return
        origins = [pa.array(np.concatenate(column)) for column in zip(*self._pages, strict=True)]
        self.count_bytes()
        headers = self._headers
        for start, end in _cuts(self.keys, self.values, self.bytes):
            arrays = [pa.array(column[start:end], pa.binary()) for column in (self.keys, self.values)]
            arrays += [column.slice(start, end - start) for column in origins]
            messages = pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)
            if headers:
                messages = with_headers(messages, pa.array(map(headers.get, range(start, end)), pa.binary()))
            yield messages
        self.clear()


def _cuts(keys: list[bytes | None], values: list[bytes | None], total: int) -> Iterator[tuple[int, int]]:
    """Index ranges of at most MAX_PACKET_BYTES each, or of one message; `total` is the bytes of all."""
    if total <= MAX_PACKET_BYTES:
        if keys:
            yield 0, len(keys)
        return
    start = size = 0
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        more = len(key or b"") + len(value or b"")
        if i > start and size + more > MAX_PACKET_BYTES:
            yield start, i
            start, size = i, 0
        size += more
    yield start, len(keys)
