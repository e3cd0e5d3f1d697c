"""Finds the operators that did not do the same twice, with the same messages in the same batches."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from xxhash import xxh3_64_intdigest

from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import Topology
from penstock.runtime.operators.base import operator_of
from penstock.testing.rehearsal.trace import Row

_MARKS = 1 << 64


class Marks:
    """Numbers that are the same for the same messages in any order: of each channel, and of the calls of each
    operator's code, if it is watched. A `CallWatch`."""

    def __init__(self) -> None:
        self.channels: dict[int, int] = {}
        self.calls: dict[str, int] = {}

    def add(self, row: Row) -> None:
        """A message that a channel carries."""
        number = row.channel.number
        self.channels[number] = (self.channels.get(number, 0) + row.digest) % _MARKS

    def opens(self, stores: Sequence[Any]) -> None: ...

    def call(self, operator: str, value: Any, stores: Sequence[Any] = ()) -> AbstractContextManager[object]:
        self.calls[operator] = (self.calls.get(operator, 0) + xxh3_64_intdigest(_bytes_of(value))) % _MARKS
        return nullcontext()

    def in_graph(self, graph: ApplicationGraph) -> ApplicationGraph:
        """The application, whose calls are watched."""
        return replace(graph, operators=tuple(operator_of(op).watched(self) for op in graph.operators))


def _bytes_of(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # what cannot be pickled is compared by its text
        return repr(value).encode()


def culprits(topology: Topology, first: Marks, second: Marks) -> tuple[str, ...]:
    """The operators whose code got the same values twice, and behind which something is not the same. Pure."""
    upstream = {op.id: op.fed_by for op in topology.graph.operators}
    found: set[str] = set()
    for channel in topology.channels:
        if first.channels.get(channel.number) != second.channels.get(channel.number):
            found.update(_before((channel.source,), upstream, first.calls, second.calls))
    for operator in _unlike(first.calls, second.calls):
        found.update(_before(upstream[operator], upstream, first.calls, second.calls))
    return tuple(sorted(found))


def _unlike(first: Mapping[str, int], second: Mapping[str, int]) -> set[str]:
    return {each for each in {**first, **second} if first.get(each) != second.get(each)}


def _before(
    operators: Sequence[str], upstream: Mapping[str, Sequence[str]], first: Mapping[str, int], second: Mapping[str, int]
) -> Iterator[str]:
    """The nearest operators with code of the application, among these or before them, that got the same values."""
    for operator in operators:
        if operator not in first and operator not in second:
            yield from _before(upstream[operator], upstream, first, second)
        elif first.get(operator) == second.get(operator):
            yield operator
