"""The current key, and the places of list elements, for state of the current key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from penstock.api.state.key_state import NO_CALL, CurrentKey, ListPlace
from penstock.api.task import MessageCollector, TaskCoordinator
from penstock.batch.batch import Batch

_BITS = 32
"""Bits for the number of an element in its batch: a batch appends fewer than 2**32."""


class _HasKey(Protocol):
    @property
    def key(self) -> Any: ...


S = TypeVar("S", bound=_HasKey)


Call: TypeAlias = Callable[[S, MessageCollector, TaskCoordinator], object]
"""The application's code for a message or a timer. It has to return None."""


def with_current_key(function: Call[S], current: CurrentKey) -> Call[S]:
    """Wraps a function of a message or a timer, so that its key is current while it runs."""

    def call(subject: S, collector: MessageCollector, coordinator: TaskCoordinator) -> object:
        current.key = subject.key
        try:
            return function(subject, collector, coordinator)
        finally:
            current.key = NO_CALL

    return call


class ListPlaces:
    """The places of the elements that an attempt appends to lists. They grow from batch to batch, and are the same in
    every attempt of a batch. The batch time is part of them because batches are counted from 1 again when the state of
    another job is adopted."""

    def __init__(self) -> None:
        self._time_ms = self._number = 0

    def begin(self, batch: Batch) -> None:
        self._time_ms, self._number = batch.time_ms, batch.number << _BITS

    def next(self) -> ListPlace:
        self._number += 1
        return self._time_ms, self._number
