"""Checks that messages have keys where an operator keeps or looks for something by them. Pure."""

from __future__ import annotations

from collections.abc import Container

from penstock.api.ssp import SystemStream
from penstock.base.refusals import Refusals
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph


def check_keys(graph: ApplicationGraph, keyless: Container[SystemStream]) -> None:
    """Raise ConfigError if an operator works by key, and its messages have none: all of a partition would be one key.

    Args:
        keyless: the streams whose messages have no keys.
    """
    without: dict[str, SystemStream] = {}
    refusals = Refusals("operators work by key, and their messages have none")
    for op in graph.operators:
        if op.input_stream is not None:
            if op.input_stream in keyless:
                without[op.id] = op.input_stream
        elif not op.gives_keys and (found := [up for up in op.upstream if up in without]):
            stream = without[found[0]]
            if op.works_by_key:
                other = f", or {op.without_keys}" if op.without_keys else ""
                error = ConfigError(
                    f"operator `{op.id}` works by key, and the messages of `{stream}` have none: put "
                    f".partition_by(...) before it{other}"
                )
                refusals.note(error)
            without[op.id] = stream
    refusals.check()
