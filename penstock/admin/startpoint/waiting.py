"""The startpoints that wait for the next start of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.admin.coordinator_stream import exported_lines
from penstock.admin.job.audit import audited
from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.facts import RequestFacts, request_facts
from penstock.admin.startpoint.inputs import StartpointJob, open_inputs
from penstock.admin.startpoint.set import parse_task
from penstock.api.requests import Startpoint
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import argument
from penstock.errors import NotFoundError, PenstockError
from penstock.start.positions import start_positions
from penstock.start.startpoints.decide import WaitingStartpoints
from penstock.start.startpoints.request import StartpointRequest, UnreadableRequest, task_name


@dataclass(frozen=True, slots=True)
class DeletedFacts:
    """The requests that were deleted, of a job."""

    job: str
    deleted: tuple[RequestFacts, ...]


@dataclass(frozen=True, slots=True)
class ExportedStartpoints:
    """Messages of Samza's coordinator stream as JSON texts, and notes about what these leave out."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]


def startpoints(job: FoundJob, *, resolve: bool = True) -> tuple[RequestFacts, ...]:
    """The startpoints that wait for the job's next start.

    Args:
        job: the job.
        resolve: find the offsets that they mean now, in the inputs.

    Raises:
        NotFoundError, ConfigError: with `resolve`, the job's inputs are not known.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.startpoints(job)
        ()
    """
    requests, ttl_ms = job.startpoints.waiting(), job.config.job.startpoint_ttl_ms
    if not resolve:
        return request_facts(requests, None, ttl_ms)
    with open_inputs(job) as whole:
        resolved = {request: _resolved(whole, request) for request in requests.live}
        return request_facts(requests, whole.inputs.tasks, ttl_ms, resolved)


def delete_startpoints(
    job: FoundJob, stream: str, *, partitions: Collection[int] | None = None, task: str | None = None
) -> DeletedFacts:
    """Delete startpoints that no start has taken yet.

    Args:
        job: the job.
        stream: `system.stream`.
        partitions: the numbers of the partitions; all, if None.
        task: the number or name (`Partition 3`) of the task whose startpoints to delete; those for no particular task,
            if None.

    Raises:
        NotFoundError: there is no such startpoint.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.set_startpoint(job, "local.trips", ps.StartpointOldest(), with_state="keep")
        ...     [each.partition for each in admin.delete_startpoints(job, "local.trips", partitions=[1]).deleted]
        [1]
    """
    wanted, name = SystemStream.parse(stream), parse_task(task)
    requests = job.startpoints.waiting()

    def is_meant(request: StartpointRequest | UnreadableRequest) -> bool:
        key = request.key
        if key is None or key.ssp.system_stream != wanted or key.task != name:
            return False
        return partitions is None or key.ssp.partition in partitions

    meant = WaitingStartpoints(
        tuple(filter(is_meant, requests.live)),
        tuple(filter(is_meant, requests.expired)),
        tuple(filter(is_meant, requests.taken)),
        tuple(filter(is_meant, requests.unreadable)),
    )
    every: tuple[StartpointRequest | UnreadableRequest, ...] = (*meant.readable, *meant.unreadable)
    if not every:
        raise NotFoundError(
            f"there is no such startpoint for `{stream}`: `penstock startpoint list {job.paths.root}` lists those "
            f"that wait. For a startpoint of a single task, give {argument('task')}"
        )
    facts = request_facts(meant, None, job.config.job.startpoint_ttl_ms)
    with audited(job, "startpoint delete", {each.place: f"{each.text} -> none" for each in facts}):
        job.startpoints.delete(every)
    return DeletedFacts(job.paths.root, facts)


def export_startpoints(job: FoundJob) -> ExportedStartpoints:
    """The waiting startpoints in the form of Samza's coordinator stream.

    Samza has none of `with_state`, `with_output`, `clamp` and `accept_state`: they are left out, `notes` names them.

    Args:
        job: the job.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.set_startpoint(job, "local.trips", ps.StartpointOldest(), partitions=[0], with_state="keep")
        ...     print(admin.export_startpoints(job).lines[0])
        {"key":"[1,...local.trips.0...]","value":"{...StartpointOldest...}"}
    """
    requests = job.startpoints.waiting()
    lines, notes = exported_lines(requests.live)
    return ExportedStartpoints(tuple(lines), (*notes, *map(str, requests.unreadable)))


def _resolved(job: StartpointJob, request: StartpointRequest) -> int | str:
    try:
        job.decide([request])
        return job.resolve(request)
    except PenstockError as error:
        return str(error)


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
        decision = found.decide(job.startpoints.waiting(found.view).live)
        positions = start_positions(decision, found.inputs, job.config)
        given: dict[str, dict[SystemStreamPartition, FannedOut]] = {}
        for at, request in sorted(decision.requests.items()):
            given.setdefault(task_name(at.task), {})[at.ssp] = FannedOut(request.startpoint, positions[at])
        return given
