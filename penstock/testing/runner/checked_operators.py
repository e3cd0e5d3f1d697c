"""Watches the operators of an application: none may change a message's value in place."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from penstock.api.state.store import KeyValueStore
from penstock.graph.specs import ApplicationGraph
from penstock.runtime.operators.table import operator_of
from penstock.state.stores.task_store import TaskStore
from penstock.testing.runner.checked_store import CheckedStore


class ChangedMessageError(AssertionError):
    """An operator changed the value of a message in place. Other operators get the same object.

    Example:
        >>> app = ps.StreamApplication("changes")
        >>> _ = app.input("local.trips").map(lambda trip: trip.pop("miles")).send_to(app.output("local.miles"))
        >>> try:
        ...     TestRunner(app).input("local.trips", [{"miles": 5}]).run()
        ... except ps.UserCodeError as error:
        ...     print(error.failed.reason)
        ChangedMessageError: operator `map-1` changed the value of a message in place. ...
    """


def checked_graph(graph: ApplicationGraph, mistakes: list[AssertionError]) -> ApplicationGraph:
    """The same application with watched operators. They raise ChangedMessageError, UnwrittenChangeError and
    StaleValueError, and add them to `mistakes`, because a dead-letter stream or the application may catch them."""
    watch = _Checks(mistakes)
    return replace(graph, operators=tuple(operator_of(op).watched(watch) for op in graph.operators))


class _Checks:
    """The `CallWatch` that finds these mistakes."""

    def __init__(self, mistakes: list[AssertionError]) -> None:
        self._mistakes = mistakes

    def opens(self, stores: Sequence[KeyValueStore[Any, Any]]) -> None:
        for store in _checked(stores):
            store.mistakes = self._mistakes

    def call(self, operator: str, value: Any, stores: Sequence[KeyValueStore[Any, Any]] = ()) -> _CheckedCall:
        return _CheckedCall(operator, value, _checked(stores), self._mistakes)


class _CheckedCall:
    """One call of the application's code."""

    def __init__(
        self, operator: str, value: Any, stores: Sequence[CheckedStore], mistakes: list[AssertionError]
    ) -> None:
        self._operator = operator
        self._value = value
        self._stores = stores
        self._mistakes = mistakes

    def __enter__(self) -> None:
        self._before = _fingerprint(self._value)
        for store in self._stores:
            store.enter()

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        with ExitStack() as leaving:
            for store in self._stores:
                leaving.callback(store.leave, failed=kind is not None)
        if kind is None:
            _compare(self._operator, self._before, self._value, self._mistakes)


def _checked(stores: Sequence[KeyValueStore[Any, Any]]) -> list[CheckedStore]:
    found = [store.find(CheckedStore) for store in stores if isinstance(store, TaskStore)]
    return [store for store in found if store is not None]


def _fingerprint(value: Any) -> bytes | None:
    """Bytes that change with the value; None if it cannot be pickled."""
    try:
        return pickle.dumps(value)
    except Exception:
        return None


def _compare(op_id: str, before: bytes | None, value: Any, mistakes: list[AssertionError]) -> None:
    if before is not None and _fingerprint(value) != before:
        error = ChangedMessageError(
            f"operator `{op_id}` changed the value of a message in place. Other operators that read the same stream "
            "see the same object: make a copy and change that, for example {**value, 'name': 1}"
        )
        mistakes.append(error)
        raise error
