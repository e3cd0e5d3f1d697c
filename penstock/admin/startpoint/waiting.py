"""The startpoints that wait for the next start of a job."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.exchange import exported_lines
from penstock.admin.startpoint.facts import RequestFacts, request_facts
from penstock.admin.startpoint.inputs import StartpointJob, open_inputs
from penstock.admin.startpoint.set import parse_task
from penstock.api.ssp import SystemStream
from penstock.checkpoint.log import CheckpointLog
from penstock.errors import NotFoundError, PenstockError
from penstock.startpoint.decide import Sorted, sort_out, taken_uuids
from penstock.startpoint.manager import StartpointManager
from penstock.startpoint.request import StartpointRequest


@dataclass(frozen=True, slots=True)
class DeletedFacts:
    """The requests that were deleted."""

    job: str
    deleted: tuple[RequestFacts, ...]


@dataclass(frozen=True, slots=True)
class ExportedStartpoints:
    """Samza's messages, one JSON text each, and what they leave out."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]


def startpoints(job: FoundJob, *, resolve: bool = True) -> tuple[RequestFacts, ...]:
    """The startpoints that wait for the job's next start.

    Args:
        job: the job.
        resolve: find out the offsets that they mean now. This looks at the inputs.

    Raises:
        NotFoundError, ConfigError: with `resolve`, if the job's inputs are not known.
    """
    requests, ttl_ms = _waiting(job), job.config.job.startpoint_ttl_ms
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
        partitions: of the stream; all, if None.
        task: those for this task alone, by its number or `Partition N`; those for no particular task, if None.

    Raises:
        NotFoundError: there is none.
    """
    wanted, name = SystemStream.parse(stream), parse_task(task)
    requests = _waiting(job)

    def is_meant(request: StartpointRequest) -> bool:
        key = request.key
        here = partitions is None or key.ssp.partition in partitions
        return key.ssp.system_stream == wanted and here and key.task == name

    meant = Sorted(*(tuple(filter(is_meant, each)) for each in (requests.live, requests.expired, requests.taken)))
    every = (*meant.live, *meant.expired, *meant.taken)
    if not every:
        raise NotFoundError(
            f"there is no such startpoint for `{stream}`: `penstock startpoint list {job.paths.root}` shows "
            "those that wait; one of a task is named with --task"
        )
    StartpointManager(job.objects, job.paths).delete(every)
    return DeletedFacts(job.paths.root, request_facts(meant, None, job.config.job.startpoint_ttl_ms))


def export_startpoints(job: FoundJob) -> ExportedStartpoints:
    """The startpoints that wait as Samza's coordinator stream has them. Samza knows neither `with_state` nor `clamp`:
    these are left out, and named in `notes`."""
    lines, notes = exported_lines(_waiting(job).live)
    return ExportedStartpoints(tuple(lines), tuple(notes))


def _waiting(found: FoundJob) -> Sorted:
    """The requests of a job, by what a start now would make of them."""
    manager = StartpointManager(found.objects, found.paths)
    requests = manager.requests()
    taken = taken_uuids(CheckpointLog(found.objects, found.paths).read("report").checkpoints) if requests else ()
    return sort_out(requests, taken, time.time_ns() // 1_000_000, found.config.job.startpoint_ttl_ms)


def _resolved(job: StartpointJob, request: StartpointRequest) -> int | str:
    try:
        job.decide([request])
        return job.resolve(request)
    except PenstockError as error:
        return str(error)
