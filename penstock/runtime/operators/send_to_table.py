"""send_to: writes each message to a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.batch.batch import NO_WATERMARK, Batch
from penstock.errors import SerdeError
from penstock.graph.history import DELETED, EARLIEST_MS
from penstock.graph.specs import SendToTableSpec
from penstock.runtime.context import failure_in
from penstock.runtime.messages.columns import MessageColumns, Target
from penstock.runtime.operators.base import Firing, KeyInEntry, Node, Operator, StageContext
from penstock.runtime.time_bytes import time_bytes

_AT_MOST = 100_000
"""Versions that an attempt looks at to drop older ones: a batch should not take too long."""


class SendToTable(Operator[SendToTableSpec]):
    """Puts the value of each message under its key; None deletes the key. A table with history keeps versions."""

    def key_in(self, store: str) -> KeyInEntry | None:
        spec = self.spec
        return KeyInEntry(spec.table_key, lambda entry: entry[8:]) if store in spec.stores[1:] else None

    def build(self, stage: StageContext, downstream: Target) -> Node:
        if self.spec.history_ms is not None:
            return _HistoryNode(self.spec, stage, self.spec.history_ms)
        op_id, position, put = self.spec.id, stage.position, stage.stores[self.spec.table].put

        def accept(columns: MessageColumns) -> None:
            try:
                for row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
                    position.row = row
                    if key is None:
                        raise _keyless(self.spec)
                    put(key, value)
            except BaseException as error:
                raise failure_in(op_id, error) from error

        return Node(accept, position)


def _keyless(spec: SendToTableSpec) -> SerdeError:
    return SerdeError(
        f"operator `{spec.id}`: a message without a key cannot be sent to table `{spec.table}`. Give it one with "
        ".partition_by(...), or leave it out with .filter(lambda message: message.key is not None, envelope=True)"
    )


class _HistoryNode(Node):
    """Writes versions, and drops those that no join can ask for.

    Its own store has an entry (time, key) for each version that may make older ones of its key unneeded. Once every
    operator of the table is past that time, all versions of the key are dropped but the one that is valid then and the
    later ones.
    """

    def __init__(self, spec: SendToTableSpec, stage: StageContext, history_ms: int) -> None:
        super().__init__(self._accept, stage.position)
        self._spec, self._history_ms = spec, history_ms
        self._position = stage.position
        self._versions, self._times = (stage.stores[name] for name in spec.stores)
        self._users: Sequence[str] = stage.store_users[spec.table]
        self._late = stage.metrics.new_counter(spec.id, "late-dropped")
        self._kept_from = NO_WATERMARK

    def begin(self, batch: Batch) -> None:
        """Sets the time from which on versions are kept. A join of the table may ask for times at or above the lowest
        of these watermarks: messages below the late watermark are late, and those that wait are above the output
        watermark."""
        reached = min(min(batch.late_watermark(op), batch.output_watermark(op)) for op in self._users)
        self._kept_from = max(NO_WATERMARK, reached - self._history_ms)

    def _accept(self, columns: MessageColumns) -> None:
        position, times, kept_from = self._position, self._position.page.timestamps, self._kept_from
        try:
            for row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
                position.row = row
                if key is None:
                    raise _keyless(self._spec)
                time_ms = times[row]
                if time_ms < kept_from:
                    self._late.inc()
                    continue
                self._versions.put((key, time_ms), DELETED if value is None else value)
                self._times.put(time_bytes(time_ms) + self._spec.table_key.to_bytes(key), b"")
        except BaseException as error:
            raise failure_in(self._spec.id, error) from error

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing]:
        if self._kept_from > NO_WATERMARK:
            due = self._times.range(time_bytes(NO_WATERMARK), time_bytes(self._kept_from + 1))
            for _, (entry, _) in zip(range(_AT_MOST), due, strict=False):
                self._times.delete(entry)
                self._drop_before(self._spec.table_key.from_bytes(entry[8:]))
        return iter(())

    def _drop_before(self, key: Any) -> None:
        """Drop the versions of the key that are older than the one valid at `_kept_from`; and that one as well if it
        says that the key has no value, because no older one can come any more."""
        found = self._versions.range((key, self._kept_from), (key, EARLIEST_MS))
        for number, (version, value) in enumerate(found):
            if number or value is None:
                self._versions.delete(version)
