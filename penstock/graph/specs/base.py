"""The questions that planners ask an operator, with the usual answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from penstock.api.serdes import Serde
from penstock.api.ssp import StreamPattern, SystemStream
from penstock.base.application_code import Callback
from penstock.graph.event_time import EventTimeOrder, stores_of

Use: TypeAlias = frozenset[str] | None
"""Names of columns; None: all of them, because code of the application or a stream gets whole rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """An operator: its stable id, the operators it reads, the serdes of its output, and the stores it uses.

    Planners ask it what it does, and know no kind of operator: a new kind overrides the answers in which it differs.
    """

    operator: ClassVar[str] = ""
    """The class that runs it, as `module:Class`: the graph knows no operator, and a new one is in no table."""
    needs_task: ClassVar[bool] = False
    """It runs in a task's container, which has stores and tasks of the application."""
    changes_key: ClassVar[bool] = False
    """Its output belongs to the task that owns the new key, and therefore leaves the stage."""
    sends: ClassVar[bool] = False
    takes_order: ClassVar[bool] = False
    """It can be declared with an `ordering`."""
    waits_as_columns: ClassVar[bool] = False
    """With an `ordering`, its messages wait as columns, and come as such."""
    hands_on: ClassVar[bool] = True
    """Its results are messages for the operators that follow it, and nothing else: without one they are dropped."""
    is_input: ClassVar[bool] = False
    """Its messages come from a stream, as bytes that another stage may decode."""
    spreads_keys: ClassVar[bool] = False
    """Its messages go to the tasks that own their new keys, at once or through a durable stream."""
    gives_keys: ClassVar[bool] = False
    """Its messages have keys although those that it gets have none. A task may give some, and is taken to do so."""
    reads_shared_stores: ClassVar[bool] = False
    """It may have a store that every task has as a whole, although its messages have no keys."""

    id: str
    upstream: tuple[str, ...]
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    stores: tuple[str, ...] = ()
    ordering: EventTimeOrder | None = None
    """Its messages wait in one of its stores, and come by event time. None: they come as they are read."""
    renamed_from: str | None = None
    """The id that it had when its state was made, if that was another one."""

    @property
    def state_id(self) -> str:
        """The id that its stores are named after, and that checkpoints have as the user of other stores."""
        return self.renamed_from or self.id

    @property
    def input_stream(self) -> SystemStream | None:
        """The input of the application that it reads."""
        return None

    @property
    def declared_stream(self) -> SystemStream | StreamPattern | None:
        """The input that it is declared to read, or the pattern of its name."""
        return None

    @property
    def fed_by(self) -> tuple[str, ...]:
        """The operators whose messages it gets, at once or through a durable stream."""
        return self.upstream

    @property
    def sent_to(self) -> SystemStream | None:
        """The output that every one of its messages goes to."""
        return None

    @property
    def works_by_key(self) -> bool:
        """True if it keeps or finds something under the keys of its messages."""
        return False

    @property
    def without_keys(self) -> str:
        """The way to declare it for messages without keys, for an error; empty if there is none."""
        return ""

    @property
    def keeps_offsets(self) -> bool:
        """True if its messages have the offsets with which inputs have them, however batches are cut."""
        return not self.needs_task

    @property
    def writes_table(self) -> str | None:
        """The table to which its messages go."""
        return None

    @property
    def reads_table(self) -> str | None:
        """The table that it only reads, under the keys of its messages."""
        return None

    @property
    def waits_for_table(self) -> str | None:
        """The table whose writers hold back its watermark."""
        return None

    @property
    def sides(self) -> tuple[str, ...]:
        """The operators whose messages it joins with each other, the left one first; empty if it joins none."""
        return ()

    @property
    def deleted_stores(self) -> tuple[str, ...]:
        """Stores that it may have had before: a start drops them."""
        return ()

    @property
    def uses_time(self) -> bool:
        """True if event times, watermarks and the end of stream matter to it."""
        return False

    @property
    def has_end(self) -> bool:
        """True if it may do something at the end of the stream, without time."""
        return False

    @property
    def is_timed(self) -> bool:
        """True if it waits for event time, or its messages do."""
        return self.uses_time or self.ordering is not None

    def without_order(self) -> OperatorSpec:
        """The operator that takes its messages as they come."""
        waiting = stores_of(self.ordering)
        return replace(self, ordering=None, stores=tuple(name for name in self.stores if name not in waiting))

    @property
    def order_matters(self) -> str:
        """The reason why its results depend on the order in which the messages of a key come; empty if they do not,
        or it is not known."""
        return ""

    def columns_read(self, passed_on: Use) -> Use:
        """The columns that it needs of the rows that it gets, if `passed_on` is needed of those that it emits."""
        return None

    def callbacks(self) -> Iterator[Callback]:
        yield from ()
