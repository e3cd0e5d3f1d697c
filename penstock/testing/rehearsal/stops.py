"""Stops a replay in a debugger, in the application's code."""

from __future__ import annotations

import pdb  # noqa: T100 - the user asks for it
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from penstock.errors import Interrupted
from penstock.graph.specs import ApplicationGraph
from penstock.runtime.operators.base import operator_of


class _Debugger(pdb.Pdb):
    """Stops in the application's code."""

    def __init__(self) -> None:
        super().__init__(skip=["penstock", "penstock.*"])
        self.left = False
        """The user has left it."""

    def set_quit(self) -> None:
        """Continue, and raise nothing within the application's code, which might handle it as a failure."""
        self.left = True
        self.set_continue()


class Stops:
    """Stops at each call of the application's code while `wanted` is true. A `CallWatch`."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted

    def opens(self, stores: Sequence[Any]) -> None: ...

    def call(self, operator: str, value: Any, stores: Sequence[Any] = ()) -> AbstractContextManager[object]:
        return _Stop(operator) if self._wanted() else nullcontext()

    def in_graph(self, graph: ApplicationGraph) -> ApplicationGraph:
        """The application, whose code stops."""
        return replace(graph, operators=tuple(operator_of(op).watched(self) for op in graph.operators))


class _Stop:
    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._debugger = _Debugger()

    def __enter__(self) -> None:
        print(f"operator `{self._operator}`", file=sys.stderr)
        self._debugger.set_trace()

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        if self._debugger.left:
            raise Interrupted
