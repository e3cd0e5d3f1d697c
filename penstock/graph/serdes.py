"""Replaces serdes of an application's graph, wherever they are in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias

from penstock.api.serdes import Serde
from penstock.graph.specs import ApplicationGraph, OutputSpec

Change: TypeAlias = Callable[[Serde[Any]], Serde[Any]]


def with_serdes(graph: ApplicationGraph, change: Change) -> ApplicationGraph:
    """The graph with other serdes. One that several operators share is changed once, and stays shared: bytes that one
    of them has read are passed on as they are."""
    changed: dict[int, Serde[Any]] = {}

    def of(value: Any) -> Any:
        if isinstance(value, Serde):
            if id(value) not in changed:
                changed[id(value)] = value.mapped(change)
            return changed[id(value)]
        if isinstance(value, tuple) and type(value) is tuple:
            made = tuple(map(of, value))
            return value if all(map(_same, made, value)) else made
        if isinstance(value, Mapping):
            found = {key: of(each) for key, each in value.items()}
            return value if all(found[key] is each for key, each in value.items()) else found
        if is_dataclass(value) and not isinstance(value, type) and type(value).__module__.startswith("penstock."):
            new = {each.name: of(old) for each in fields(value) if each.init for old in [getattr(value, each.name)]}
            new = {name: each for name, each in new.items() if each is not getattr(value, name)}
            return replace(value, **new) if new else value
        return value

    found: ApplicationGraph = of(graph)
    return found


def with_output_serdes(graph: ApplicationGraph, change: Change) -> ApplicationGraph:
    """The graph with other serdes of outputs."""

    def of(output: OutputSpec) -> OutputSpec:
        return replace(output, key_serde=output.key_serde.mapped(change), value_serde=output.value_serde.mapped(change))

    return replace(graph, outputs=tuple(map(of, graph.outputs)))


def _same(one: object, other: object) -> bool:
    return one is other
