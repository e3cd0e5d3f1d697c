"""Asking for positions at the next start."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.ask import AskedFacts, ask_for
from penstock.admin.startpoint.exchange import imported_requests
from penstock.admin.startpoint.inputs import StartpointJob, open_inputs
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.startpoint import Startpoint
from penstock.errors import ConfigError
from penstock.startpoint.request import RequestKey, StartpointRequest, WithState, task_name, task_number
from penstock.wording import counted


def set_startpoint(
    job: FoundJob,
    stream: str,
    startpoint: Startpoint,
    *,
    partitions: Sequence[int] | None = None,
    task: str | None = None,
    clamp: bool = False,
    with_state: WithState | None = None,
    dry_run: bool = False,
) -> AskedFacts:
    """Ask for the position a job begins at in an input, at its next start, whether it runs now or not.

    The position is resolved when the job starts; the result says what it means now. It applies once.

    Args:
        job: the job; opened with its application, if it has no checkpoint yet or the input is new.
        stream: the input, `system.stream`.
        startpoint: the position. When it was made is set here.
        partitions: of the stream; all, if None.
        task: for this task only: its number, or `Partition N`; for every task that reads them, if None.
        clamp: accept the nearest offset if that of a StartpointSpecific is not there at the start.
        with_state: `nearest` begins all inputs and stores at the newest retained checkpoint at or before the position,
            `clear` empties the stores first, `keep` leaves them as they are.
        dry_run: write nothing: the result is a preview.

    Raises:
        ConfigError: a name is wrong, or what the job reads is not known.
        IncompatibleError: a start would refuse it. Nothing was written.
    """
    with open_inputs(job) as found:
        keys = list(_request_keys(found, stream, partitions, task))
        made = replace(startpoint, creation_timestamp=_creation(found, {key.ssp for key in keys}))
        requests = [StartpointRequest(key, uuid.uuid4().hex, made, with_state, clamp=clamp) for key in keys]
        return ask_for(found, requests, dry_run=dry_run)


def import_startpoints(job: FoundJob, lines: Iterable[str], *, dry_run: bool = False) -> AskedFacts:
    """Ask for the startpoints in messages of Samza's coordinator stream: the inverse of `export_startpoints`. Expired
    ones are passed over.

    Args:
        job: as in `set_startpoint`.
        lines: texts of `{"key": ..., "value": ...}`.
        dry_run: write nothing: the result is a preview.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
        ConfigError: there is no startpoint to apply.
        IncompatibleError: a start would refuse them. Nothing was written.
    """
    requests, notes = imported_requests(lines)
    with open_inputs(job) as found:
        now_ms, ttl_ms = time.time_ns() // 1_000_000, job.config.job.startpoint_ttl_ms
        live = [request for request in requests if not request.is_expired(now_ms, ttl_ms)]
        if len(live) < len(requests):
            expired = counted(len(requests) - len(live), "startpoint")
            notes.append(f"passed over: {expired} older than job.startpoint.ttl.ms")
        if not live:
            raise ConfigError("; ".join(["there is no startpoint to apply in the file", *notes]))
        return ask_for(found, live, dry_run=dry_run, notes=notes)


def _request_keys(
    found: StartpointJob, stream: str, partitions: Sequence[int] | None, task: str | None
) -> Iterator[RequestKey]:
    """Raises ConfigError if `task` names no task."""
    name = parse_task(task)
    parsed = SystemStream.parse(stream)
    if partitions is not None:
        numbers = sorted(set(partitions))
    else:
        numbers = sorted({s.partition for own in found.inputs.tasks.values() for s in own if s.system_stream == parsed})
        numbers = numbers or [0]  # that it is no input is found where all requests are checked
    for number in numbers:
        yield RequestKey(SystemStreamPartition(parsed.system, parsed.stream, number), name)


def parse_task(text: str | None) -> str | None:
    """A task's name, given by its number or as a whole. Raises ConfigError if it is neither."""
    if text is None:
        return None
    return task_name(int(text)) if text.isascii() and text.isdigit() else task_name(task_number(text))


def _creation(found: StartpointJob, ssps: set[SystemStreamPartition]) -> int:
    """Now, but after everything that was asked for these partitions before, whatever the clocks of others say."""
    before = [r.startpoint.creation_timestamp for r in found.manager.requests() if r.key.ssp in ssps]
    return max([time.time_ns() // 1_000_000, *(created + 1 for created in before)])
