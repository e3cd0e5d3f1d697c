"""Finds the streams whose names match the patterns of an application's inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack

from penstock.api.ssp import StreamPattern, SystemStream
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, NotFoundError
from penstock.graph.specs import ApplicationGraph, OperatorSpec
from penstock.system.base import System, SystemAdmin
from penstock.system.registry import open_named


def with_matches(
    graph: ApplicationGraph, config: JobConfig, given: Mapping[str, System] | None = None
) -> ApplicationGraph:
    """The graph with inputs in place of patterns: the streams that match now.

    Args:
        given: systems that are open already, by name.

    Raises:
        NotFoundError: no stream matches a pattern.
        ConfigError: a stream matches two patterns, or is another input; or a system cannot be opened, or cannot list
            its streams.
    """
    if not graph.patterns:
        return graph
    patterns = [op.pattern for op in graph.patterns]
    systems = open_named({each.system for each in patterns}, config, given)
    with ExitStack() as undo:
        admins = {name: system.admin() for name, system in systems.items()}
        for admin in admins.values():
            undo.callback(admin.close)
        found = matching(patterns, admins, own_streams(graph, config))
    return _expanded(graph, found)


def matching(
    patterns: Iterable[StreamPattern], admins: Mapping[str, SystemAdmin], own: Collection[SystemStream]
) -> dict[StreamPattern, list[SystemStream]]:
    """The streams that match each pattern now, sorted; none of `own`."""
    patterns = list(patterns)
    names = {system: admins[system].streams() for system in {each.system for each in patterns}}
    every = [SystemStream(system, name) for system, listed in names.items() for name in sorted(listed)]
    return {each: [stream for stream in every if each.matches(stream) and stream not in own] for each in patterns}


def own_streams(graph: ApplicationGraph, config: JobConfig) -> frozenset[SystemStream]:
    """The streams that the job writes or uses in another way. No pattern matches them, or the job would read what it
    writes."""
    others = (config.task.dead_letter_stream, config.metrics.reporter_stream)
    return frozenset(
        {spec.stream for spec in graph.outputs}
        | {op.stream for op in graph.intermediates}
        | {config.store(spec.name).changelog for spec in graph.written_stores}
        | {*graph.side_streams()}
        | {stream for stream in others if stream is not None}
    )


def _expanded(graph: ApplicationGraph, found: Mapping[StreamPattern, list[SystemStream]]) -> ApplicationGraph:
    readers = {op.stream: f"input `{op.id}`" for op in graph.inputs}
    inputs: dict[str, tuple[OperatorSpec, ...]] = {}
    for op in graph.patterns:
        if not (streams := found[op.pattern]):
            raise NotFoundError(
                f"the system `{op.pattern.system}` has no stream that matches `{op.pattern.expression}`, the pattern "
                f"of input `{op.id}`. Create one, or correct the pattern, which has to match whole names"
            )
        for stream in streams:
            if stream in readers:
                raise ConfigError(
                    f"`{stream}` matches `{op.pattern}` of input `{op.id}` and is read by {readers[stream]} as well: a "
                    "job reads a stream once. Narrow the pattern"
                )
            readers[stream] = f"input `{op.id}`"
        inputs[op.id] = op.with_inputs(streams)
    return graph.replacing(inputs)
