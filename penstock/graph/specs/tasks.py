"""Tasks of the application, with stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.api.batch_processor import BatchProcessor
from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.task import StreamTask
from penstock.api.time.timers import timers_store
from penstock.base.application_code import Callback, maker
from penstock.graph.batch_task import BatchTask
from penstock.graph.specs.base import OperatorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec(OperatorSpec):
    """A StreamTask with stores."""

    operator = "penstock.runtime.operators.tasks.process:Process"
    hands_on = False
    needs_task = True
    gives_keys = True
    reads_shared_stores = True
    takes_order = True
    sends = True

    task: Callable[[], StreamTask]
    timers: Serde[Any] | None = None
    """The serde of the keys of its timers; None: it has none."""
    discards_timers: bool = False
    ends: bool = False
    """The task may define `on_end`. True for each function that makes tasks, because it does not say."""

    @property
    def uses_time(self) -> bool:
        return self.timers is not None

    @property
    def has_end(self) -> bool:
        return self.ends

    @property
    def order_matters(self) -> str:
        return "" if self.timers is None else "its task has timers, which a message may set or cancel"

    @property
    def own_stores(self) -> tuple[str, ...]:
        """The stores of the application that the task uses, without the one of its timers."""
        return tuple(name for name in self.stores if name != timers_store(self.state_id))

    def callbacks(self) -> Iterator[Callback]:
        return maker(self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTaskSpec(OperatorSpec):
    """A BatchTask with stores: it gets all messages of a batch at once."""

    operator = "penstock.runtime.operators.tasks.batch_task:BatchTaskOperator"
    hands_on = False
    needs_task = True
    gives_keys = True

    task: Callable[[], BatchTask]
    deletes: tuple[str, ...] = ()
    event_time: bool = False

    @property
    def deleted_stores(self) -> tuple[str, ...]:
        return self.deletes

    @property
    def uses_time(self) -> bool:
        return self.event_time

    def callbacks(self) -> Iterator[Callback]:
        return maker(self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTaskSpec(OperatorSpec):
    """A BatchProcessor with stores: it gets all messages of a batch at once, as columns."""

    operator = "penstock.runtime.operators.columns.processor:ColumnTask"
    hands_on = False
    waits_as_columns = True
    needs_task = True
    gives_keys = True

    @property
    def sends(self) -> bool:  # type: ignore[override]
        """Messages that are late."""
        return self.ordering is not None and self.ordering.late_to is not None

    processor: Callable[[], BatchProcessor]
    message_key: Serde[Any]
    message_serde: ColumnSerde
    result_serde: ColumnSerde

    def callbacks(self) -> Iterator[Callback]:
        return maker(self.processor)
