"""The inputs of a job: the streams whose names match its patterns, and the tasks that read their partitions.

Partitions are assigned as by Samza's GroupByPartition, with broadcast partitions. That is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.api.ssp import StreamPattern, SystemStream, SystemStreamPartition
from penstock.base.wording import counted
from penstock.config.kinds import PartitionRange
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


@dataclass(frozen=True, slots=True)
class Grouping:
    """The partitions of every task, sorted; tasks are numbered from 0 without a gap, and one may read nothing."""

    tasks: Mapping[int, tuple[SystemStreamPartition, ...]]

    @property
    def count(self) -> int:
        return len(self.tasks)


def group_inputs(
    ssps: Iterable[SystemStreamPartition], broadcast: Sequence[PartitionRange] = (), at_least: int = 0
) -> Grouping:
    """Task i reads partition i of every input; and every task the partitions that `task.broadcast.inputs` names.

    There are as many tasks as the other partitions need, numbers counted from 0, and not fewer than `at_least`.

    Args:
        ssps: every partition of every input.

    Raises:
        ConfigError: what is broadcast is no partition of an input, or nothing else is there.
    """
    every = sorted(ssps)
    for each in broadcast:
        _refuse_missing(each, every)
    shared = [ssp for ssp in every if any(ssp in each for each in broadcast)]
    own = sorted(set(every).difference(shared))
    if not own:
        raise ConfigError(
            f"`task.broadcast.inputs` names every partition of every input ({', '.join(map(str, broadcast))}), but "
            "the number of tasks comes from the other partitions: leave out at least one"
        )
    count = max(at_least, *(ssp.partition + 1 for ssp in own))
    tasks = {task: list(shared) for task in range(count)}
    for ssp in own:
        tasks[ssp.partition].append(ssp)
    return Grouping({task: tuple(sorted(found)) for task, found in tasks.items()})


def _refuse_missing(wanted: PartitionRange, ssps: Collection[SystemStreamPartition]) -> None:
    partitions = sum(ssp.system_stream == wanted.stream for ssp in ssps)
    if not partitions:
        known = ", ".join(f"`{stream}`" for stream in sorted({str(ssp.system_stream) for ssp in ssps}))
        raise ConfigError(
            f"`task.broadcast.inputs` names `{wanted}`, but `{wanted.stream}` is not an input of the application, "
            f"which reads {known}"
        )
    if wanted.last >= partitions:
        raise ConfigError(
            f"`task.broadcast.inputs` names `{wanted}`, but `{wanted.stream}` has "
            f"{counted(partitions, 'partition')}, the last "
            f"one is {partitions - 1}"
        )
