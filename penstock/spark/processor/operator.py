"""A processor as an operator of an application."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.api.serdes import Bytes
from penstock.application.message_stream import MessageStream
from penstock.graph.specs import BatchTaskSpec
from penstock.graph.stores import StoreSpec
from penstock.spark.processor.columns import ColumnsTask
from penstock.spark.processor.task import ProcessorSpec, ProcessorTask


def processor_stores(spec: ProcessorSpec) -> tuple[StoreSpec, ...]:
    """The stores of the operator that runs the processor: its state variables, and its timers if it may have any."""
    return spec.declared.stores(spec.operator, spec.key, spec.mode)


def add_processor(chunks: MessageStream[Any], spec: ProcessorSpec) -> MessageStream[Any]:
    """The stream of the processor's output for chunks, in the application of these chunks.

    Args:
        chunks: chunks as `groups.chunk` makes them: all rows of a chunk are of the task that gets it.
        spec: the processor. Its `operator` becomes the operator's id.
    """
    stores = processor_stores(spec)
    for store in stores:
        chunks._declared._stores[store.name] = store  # noqa: SLF001
    operator = BatchTaskSpec(
        id=spec.operator,
        upstream=(chunks._operator.id,),  # noqa: SLF001
        key_serde=Bytes(),
        value_serde=Bytes(),
        stores=tuple(store.name for store in stores),
        deletes=spec.declared.forgotten,
        task=partial(ColumnsTask if spec.form == "columns" else ProcessorTask, spec),
        event_time=spec.mode == "eventtime",
    )
    return chunks._next("processor", spec.operator, lambda _: operator)  # noqa: SLF001
