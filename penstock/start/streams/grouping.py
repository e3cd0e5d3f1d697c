"""Assigns the partitions of the inputs to tasks: Samza's GroupByPartition, with broadcast partitions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted
from penstock.config.values.broadcast import PartitionRange
from penstock.errors import ConfigError


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
