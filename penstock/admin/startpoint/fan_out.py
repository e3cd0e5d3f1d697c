"""The waiting startpoints as the next start would give them to tasks (SEP-18's fan-out)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.inputs import open_inputs
from penstock.api.requests import Startpoint
from penstock.api.ssp import SystemStreamPartition
from penstock.start.positions import start_positions
from penstock.start.startpoints.request import task_name


@dataclass(frozen=True, slots=True)
class FannedOut:
    """The startpoint that counts for a partition of a task, and the offset of the first message that the task would
    read there. With the state `nearest`, that is the offset of the checkpoint that the start would go back to."""

    startpoint: Startpoint
    offset: int


def fan_out(job: FoundJob) -> Mapping[str, Mapping[SystemStreamPartition, FannedOut]]:
    """The startpoints that the next start would give each task, as SEP-18's `fanOut` makes them. Nothing is written: a
    start fans them out by itself, at once, in its first checkpoint.

    A startpoint for a partition goes to every task that reads it, one for a task to that task alone. Of several, the
    last one counts. Tasks and partitions without a startpoint are left out.

    Args:
        job: the job. Open it with its application if it has no checkpoint yet, or an input is new.

    Returns:
        By the name of the task, as `Partition 3`, and by partition.

    Raises:
        ConfigError, NotFoundError: the job's inputs are not known.
        IncompatibleError: a start would refuse the startpoints.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.set_startpoint(job, "local.trips", ps.StartpointSpecific("1"), partitions=[0])
        ...     found = admin.fan_out(job)
        ...     _ = admin.delete_startpoints(job, "local.trips")
        >>> [(task, str(ssp), each.offset) for task, own in found.items() for ssp, each in own.items()]
        [('Partition 0', 'local.trips.0', 1)]
    """
    with open_inputs(job) as found:
        decision = found.decide(found.manager.waiting(found.view).live)
        positions = start_positions(decision, found.inputs, job.config)
        given: dict[str, dict[SystemStreamPartition, FannedOut]] = {}
        for at, request in sorted(decision.requests.items()):
            given.setdefault(task_name(at.task), {})[at.ssp] = FannedOut(request.startpoint, positions[at])
        return given
