"""From requests to what each task begins with. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.start.startpoints.request import StartpointRequest

TaskInputs: TypeAlias = Mapping[str, Collection[SystemStreamPartition]]
"""Task name -> the partitions it reads. A broadcast partition is in every task that reads it."""
FanOut: TypeAlias = Mapping[str, Mapping[SystemStreamPartition, StartpointRequest]]
"""Task name -> partition -> the request that counts there."""


def fan_out(
    requests: Iterable[StartpointRequest], tasks: TaskInputs
) -> dict[str, dict[SystemStreamPartition, StartpointRequest]]:
    """The request that counts for every partition of every task that one applies to, by `StartpointRequest.rank`.

    One for a partition applies to every task that reads it; one for a partition and a task to that task.
    """
    by_ssp: dict[SystemStreamPartition, list[StartpointRequest]] = {}
    for request in requests:
        by_ssp.setdefault(request.key.ssp, []).append(request)
    found: dict[str, dict[SystemStreamPartition, StartpointRequest]] = {}
    for task, ssps in tasks.items():
        for ssp in sorted(set(ssps) & by_ssp.keys()):
            applying = [each for each in by_ssp[ssp] if each.key.task in {None, task}]
            if applying:
                found.setdefault(task, {})[ssp] = max(applying, key=lambda each: each.rank)
    return found


def counting(found: FanOut) -> tuple[StartpointRequest, ...]:
    """The requests that count anywhere, each once."""
    return tuple(dict.fromkeys(request for own in found.values() for request in own.values()))
