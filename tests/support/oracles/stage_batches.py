"""One stage of one task, driven batch by batch: with watermarks, attempts that are discarded, and restarts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson
import pyarrow as pa

import penstock as ps
from penstock.batch.batch import Batch
from penstock.errors import FailedMessage
from penstock.graph.topology import plan_topology
from penstock.metrics.snapshot import Snapshot
from penstock.runtime.messages.packet import (
    MESSAGE_SCHEMA,
    Packet,
    PacketKind,
    decode_messages,
    encode_messages,
    encode_rows,
    rows_schema,
)
from penstock.runtime.reports import Report
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.state.engines.memory import MemoryEngine
from tests.support.streams.trailers import trailer

OUT = "m.out"
LATE = "m.late"


@dataclass(frozen=True, slots=True)
class Message:
    """A message with a JSON value."""

    key: str | None
    value: Any
    time_ms: int = 0
    source: str | None = None
    """The id of the operator that sends it to the stage; None: the only one that does."""


@dataclass
class StageBatches:
    """Runs the batches of the last stage of an application that reads `m.in` and writes to `m.out` and `m.late`."""

    app: ps.StreamApplication
    operator: str
    """Whose watermarks are given."""
    engines: dict[str, MemoryEngine] = field(default_factory=dict)
    number: int = 0
    watermark: int | None = None
    others: tuple[str, ...] = ()
    """Operators with the same watermarks."""
    failure: FailedMessage | None = None
    """The reports of the last batch."""
    metrics: Snapshot = field(default_factory=Snapshot)

    def __post_init__(self) -> None:
        self.topology = plan_topology(self.app.graph(), None)
        self.stage = max(stage.number for stage in self.topology.container_stages)
        for store in self.app.graph().stores:
            self.engines.setdefault(store.name, MemoryEngine())
        self.task = self._new_task()

    def _new_task(self) -> TaskInstance:
        settings = RuntimeSettings("a", 1, {OUT: 1, LATE: 1})
        return TaskInstance(0, self.topology, settings, self.engines, self.number)

    def restart(self) -> None:
        left = {name: self.entries(name) for name in self.engines}
        self.task.close()
        for name, entries in left.items():
            self.engines[name] = MemoryEngine()
            self.engines[name].apply(entries)
        self.task = self._new_task()

    def run(
        self,
        messages: Sequence[Message] = (),
        watermark: int | None = None,
        *,
        time_ms: int = 0,
        control: Any = "none",
        discards: int = 0,
    ) -> dict[str, list[tuple[Any, Any, int]]]:
        """A batch, whose first `discards` attempts are discarded: what it sent to each output, (key, value, time)."""
        late = self._marks()
        if watermark is not None:
            self.watermark = watermark
        firing = self._marks()
        batch = Batch(self.number + 1, 1, time_ms, control, late, firing)
        for run in range(discards + 1):
            token = f"t{run}"
            attempt = self.task.start_attempt(self.stage, token, batch)
            packets = [packet for sent in self._packets(messages) for packet in attempt.accept(sent)]
            if run < discards:
                self.task.discard_attempt(attempt)
        packets += attempt.finish()
        report = Report.decode(packets.pop().payload or b"")
        self.failure, self.metrics = report.failed, Snapshot.of_rows(report.metrics)
        if self.failure is not None:
            self.task.discard_attempt(attempt)
            return {}
        self.task.finish_attempt(attempt)
        self.task.end(batch.number, {self.stage: token})
        self.number += 1
        assert self.task.next_due() == report.next_due, "a container that opens the stores says the same"
        found: dict[str, list[tuple[Any, Any, int]]] = {}
        for packet in packets:
            if packet.kind == PacketKind.DATA:
                output = str(self.topology.channels[packet.channel].output)
                found.setdefault(output, []).extend(_decoded(packet))
        return found

    def _marks(self) -> dict[str, int]:
        return {} if self.watermark is None else dict.fromkeys((self.operator, *self.others), self.watermark)

    @property
    def failed(self) -> str | None:
        """Why the last batch failed."""
        return None if self.failure is None else self.failure.reason

    def entries(self, store: str) -> dict[bytes, bytes]:
        """The content of a store after the ended batches."""
        return dict(self.task.engine(store).scan(None, None))

    def close(self) -> None:
        self.task.close()

    def _packets(self, messages: Iterable[Message]) -> list[Packet]:
        channels = {channel.source: channel.number for channel in self.topology.channels_to(self.stage)}
        sent: list[Packet] = []
        count = 0
        for source, group in groupby(enumerate(messages), lambda each: each[1].source or next(iter(channels))):
            serde = self.topology.channels[channels[source]].columns
            schema = MESSAGE_SCHEMA if serde is None else rows_schema(serde)
            is_row = serde is not None
            rows = [
                (
                    None if m.key is None else m.key.encode(),
                    m.value if is_row else orjson.dumps(m.value),
                    m.time_ms,
                    0,
                    offset,
                )
                for offset, m in group
            ]
            count += len(rows)
            for number in range(0, len(rows), 3):
                part = rows[number : number + 3]
                columns = [pa.array(column, f.type) for column, f in zip(zip(*part, strict=True), schema, strict=True)]
                batch = pa.RecordBatch.from_arrays(columns, schema=schema)
                data = encode_rows(batch) if is_row else (encode_messages(batch), None)
                place = (channels[source], -1, len(sent), len(part))
                sent.append(Packet(0, self.stage, PacketKind.DATA, 0, 0, "s", *place, *data))
        sent.append(trailer((0, 0), len(sent), count, token="s", stage=self.stage))
        return sent


def _decoded(packet: Packet) -> list[tuple[Any, Any, int]]:
    messages = decode_messages(packet.payload or b"")
    keys, values, times = (messages.column(i).to_pylist() for i in range(3))
    return [
        (None if key is None else key.decode(), orjson.loads(value), time)
        for key, value, time in zip(keys, values, times, strict=True)
    ]
