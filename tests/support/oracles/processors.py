"""Runs a StatefulProcessor in a job in this process, without Spark: rows in, rows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

import penstock as ps
from penstock.api.time.firing import timers_store
from penstock.graph.specs.code import BatchInfo
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.timers import oldest_timers
from penstock.spark.processor.columns import ColumnsProcessor, declare_columns
from penstock.spark.processor.declared import DeclaredVariables, TimeMode, declare, time_mode
from penstock.spark.processor.fields import chunk
from penstock.spark.processor.rows import arrow_schema
from penstock.spark.processor.task import Form, ProcessorSpec, ProcessorTask
from penstock.spark.transform import add_processor, processor_stores
from penstock.spark.versions import arrow_schema as arrow_schema_of
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.build import build_store


def spec_of(
    processor: StatefulProcessor | ColumnsProcessor,
    key: Sequence[str],
    rows: StructType,
    output: StructType,
    mode: str = "None",
    *,
    form: Form = "row",
    event_time: str | None = None,
    initial: StructType | None = None,
    timezone: str = "UTC",
) -> ProcessorSpec:
    """The processor as `transform_with_state` makes it."""
    return ProcessorSpec(
        operator="processor",
        processor=cloudpickle.dumps(processor),
        declared=_declared(processor, time_mode(mode), form),
        key=StructType([rows[name] for name in key]),
        input=arrow_schema_of(rows, timezone),
        output=output,
        mode=time_mode(mode),
        form=form,
        event_time=event_time,
        initial=None if initial is None else arrow_schema_of(initial, timezone),
        timezone=timezone,
    )


def _declared(processor: StatefulProcessor | ColumnsProcessor, mode: TimeMode, form: Form) -> DeclaredVariables:
    if form == "columns":
        return declare_columns(processor, _no_text)
    assert isinstance(processor, StatefulProcessor)
    return declare(processor, mode, _no_text)


def _no_text(text: str) -> StructType:
    raise AssertionError(f"schemas of tests are objects, not {text!r}")


def application(spec: ProcessorSpec) -> ps.StreamApplication:
    """An application that brings chunks of `m.rows` to a processor, and what it returns to `m.out`."""
    app = ps.StreamApplication("processors")
    chunks = app.input("m.rows", key=ps.Bytes(), value=ps.Bytes())
    add_processor(chunks, spec).send_to(app.output("m.out", key=ps.Bytes(), value=ps.Bytes()))
    return app


def read_rows(chunks: Sequence[bytes], schema: StructType) -> list[dict[str, Any]]:
    """The rows of chunks that a processor returned."""
    arrow = arrow_schema(schema)
    return [row for data in chunks for row in pa.ipc.read_record_batch(pa.py_buffer(data), arrow).to_pylist()]


@dataclass
class _Context:
    spec: ProcessorSpec
    task: int = 0
    config: dict[str, str] = field(default_factory=dict)
    metrics: MetricsRegistry = field(default_factory=lambda: MetricsRegistry("test"))

    def __post_init__(self) -> None:
        self.late = self.metrics.new_counter("processor", "late-dropped")
        self.engines = {store.name: MemoryEngine() for store in processor_stores(self.spec)}
        self.stores = {s.name: build_store(s, self.engines[s.name], 1_000) for s in processor_stores(self.spec)}

    def store(self, name: str) -> Any:
        return self.stores[name]

    def watched(self, elements: Any) -> Any:
        return iter(elements)


class OneTask:
    """A ProcessorTask alone, with stores in memory, batch by batch."""

    def __init__(self, spec: ProcessorSpec) -> None:
        self.spec = spec
        self._context = _Context(spec)
        self._task = ProcessorTask(spec)
        self._task.init(self._context)
        self._number = 0

    @property
    def late(self) -> int:
        return self._context.late.count

    def batch(
        self,
        rows: Sequence[dict[str, Any]] = (),
        time_ms: int = 0,
        *,
        late: int | None = None,
        watermark: int | None = None,
        initial: Sequence[dict[str, Any]] = (),
        drains: bool = False,
    ) -> list[dict[str, Any]]:
        """The rows that the processor returns for a batch. A batch that fails leaves nothing."""
        spec, out, messages = self.spec, list[bytes](), list[tuple[None, bytes]]()
        if initial:
            assert spec.initial is not None
            messages.append((None, chunk(pa.RecordBatch.from_pylist(list(initial), spec.initial), initial=True)))
        half = (len(rows) + 1) // 2  # as two chunks
        messages += [
            (None, chunk(pa.RecordBatch.from_pylist(list(some), spec.input)))
            for some in (rows[:half], rows[half:])
            if some
        ]
        overlays = {name: store.begin(time_ms) for name, store in self._context.stores.items()}
        self._number += 1
        info = BatchInfo(self._number, time_ms, late, watermark, "drain" if drains else "none")
        try:
            self._task.process(messages, info, lambda key, value: out.append(value))
        except BaseException:
            self.restart()
            raise
        for name, store in self._context.stores.items():
            store.reclaim()
            self._context.engines[name].apply(overlays[name].take())
        return read_rows(out, spec.output)

    def next_due(self) -> tuple[int | None, int | None]:
        """The times of the oldest timers, in event time and in processing time."""
        return oldest_timers(self._context.stores[timers_store(self.spec.operator)])

    def take_over(self, other: OneTask) -> None:
        """Begin with the state of another task."""
        self._context.engines = other._context.engines
        self.restart()

    def fill(self, name: str, entries: dict[bytes, bytes | None]) -> None:
        self._context.engines[name].apply(entries)
        self.restart()

    def restart(self) -> None:
        """The task in another process, with what ended batches left."""
        engines, self._context = self._context.engines, _Context(self.spec)
        self._context.engines = engines
        self._context.stores = {s.name: build_store(s, engines[s.name], 1_000) for s in processor_stores(self.spec)}
        self._task = ProcessorTask(self.spec)
        self._task.init(self._context)

    def state(self, name: str) -> dict[bytes, bytes]:
        return dict(self._context.engines[name].scan(None, None))
