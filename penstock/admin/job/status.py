"""The status of a job, from its log, its lease, and the streams that it reads."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from penstock.admin.checkpoint.facts import CheckpointSummary, IntermediateFacts, intermediate_facts
from penstock.admin.job.drain_status import NO_DRAIN, DrainStatus, drain_status
from penstock.admin.job.lease import LeaseFacts, Running, watch_lease
from penstock.admin.job.metrics import SideInputStatus, TableUse, side_inputs_in, tables_in
from penstock.admin.jobs import FoundJob
from penstock.admin.outbox import outbox_outputs, read_marks
from penstock.admin.side_stores import side_stores
from penstock.admin.startpoint.facts import RequestFacts, TakenFacts, request_facts, taken_facts
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.watermarks import END_OF_TIME, NO_WATERMARK
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions.markers import markers_of
from penstock.config import table
from penstock.config.model import JobConfig
from penstock.errors import CorruptError, IncompatibleError, PenstockError
from penstock.host.found import ContainerProcess, containers_here
from penstock.host.logs import log_directory
from penstock.job.lease import LeaseHolder
from penstock.job.shown_failure import Failure, ShownFailure
from penstock.job.shown_metrics import ShownMetrics, ShownRun
from penstock.job.shown_outage import Outage, ShownOutage
from penstock.metrics.snapshot import CounterValue, Snapshot
from penstock.outbox.unpublished import Owed
from penstock.side.shown import SideStoreFacts
from penstock.standby.shown import ShownStandbys, StandbyFacts
from penstock.start.identities import continue_in
from penstock.start.startpoints.decide import sort_out, taken_uuids
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.startpoints.request import task_name
from penstock.system.base import OpenTransaction, PartitionOffsets, System
from penstock.system.registry import open_system
from penstock.system.spark import QUERY_SYSTEM
from penstock.wording import counted, utc_text

_STANDSTILL_MS = 10_000
"""How long a transaction must have been open to be shown."""
_AT_ONCE = 16
"""Jobs that are looked at at once."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """`next_offset` is the smallest one if several tasks read the partition. `lag` is how much comes after the last
    checkpoint, in the stream's `lag_unit`; None if the stream cannot be read. `event_time_ms` is the highest event time
    that was read, in epoch milliseconds; None if the application does not use event time, and before the first message.
    `lost` is how many messages were deleted before the job had read them, and are missing from its state."""

    partition: int
    next_offset: int
    upcoming: int | None
    lag: int | None
    event_time_ms: int | None = None
    lost: int = 0
    open_transaction: OpenTransaction | None = None
    """A transaction of some writer that has kept messages from being read for some seconds."""


@dataclass(frozen=True, slots=True)
class InputStatus:
    """One input stream; `problem` says why its ends are unknown or do not fit."""

    stream: str
    partitions: tuple[PartitionStatus, ...]
    lag: int | None
    problem: str | None
    dense_offsets: bool = True
    """Whether offsets have no gaps. Where they have, `lag` and `lost` are in offsets, and there are at most so many
    messages."""
    held_back_by: int | None = None
    """The partition with the lowest event time, which holds the watermark back; None without event time, and if all
    are idle. It does so until it is idle."""
    lag_unit: str = "message"
    """What `lag` counts: `file` for a folder."""


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """The watermark of an operator at the last checkpoint, in epoch milliseconds, and how far it is behind the batch
    time; None if its inputs have ended."""

    operator: str
    watermark_ms: int | None
    delay_ms: int | None


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """What the last checkpoint has of a store in one backend: a task whose base is still being made has no marker."""

    store: str
    backend: str
    tasks_with_marker: int
    tasks: int


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """What the last checkpoint has for exactly-once outputs. While the job runs, it is published within moments. If the
    job does not run, its next start publishes the part that readers do not see yet."""

    outputs: Mapping[str, int]
    """How many messages, by output, published or not."""
    messages: int
    since_slot: int
    """The number of the oldest record that any of them is of."""
    published: int | None = None
    """How many are published for certain; None if a system could not be asked."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job. `epoch` and `run_id` are those of the last claim in the log. `startpoints` wait for the next
    start; `taken_startpoints` are those that the last run took at a start, and their effect."""

    job: str
    name: str
    id: str
    root: str
    logs: str
    """The folder of its containers' logs, on each host."""
    containers: tuple[ContainerProcess, ...]
    """Its containers on this host."""
    status: Running | Literal["failed"]
    """`failed`: it is not running, and its last run ended with an error or without a word."""
    reason: str
    holder: LeaseHolder | None
    run_id: str | None
    epoch: int | None
    checkpoints: int
    last_checkpoint: CheckpointSummary | None
    inputs: tuple[InputStatus, ...]
    backends: tuple[BackendStatus, ...]
    startpoints: tuple[RequestFacts, ...] = ()
    taken_startpoints: TakenFacts | None = None
    watermarks: tuple[WatermarkStatus, ...] = ()
    """Empty if the application does not use event time, and before the first event."""
    drains: tuple[str, ...] = ()
    """The uuids of the requests that wait for the run to drain."""
    drain: DrainStatus = NO_DRAIN
    """The drain of the run, asked for or done, and requests that cannot be read."""
    standbys: tuple[StandbyFacts, ...] = ()
    """The standbys of the tasks as of a few seconds ago; empty if the run has none, or the job is not running."""
    side_inputs: tuple[SideInputStatus, ...] = ()
    """How far stores are behind their side inputs, as of some seconds ago or of the end of the last run."""
    tables: tuple[TableUse, ...] = ()
    """The pushed tables, as of some seconds ago or of the end of the last run."""
    dead_letters: int = 0
    """How many messages the last run sent to the dead-letter stream, as of some seconds ago or of its end."""
    metrics_ms: int | None = None
    """When `side_inputs`, `tables` and `dead_letters` were so, in epoch milliseconds; None while the job runs: some
    seconds ago."""
    intermediate: tuple[IntermediateFacts, ...] = ()
    """The durable intermediate streams, as of the last checkpoint."""
    side_stores: tuple[SideStoreFacts, ...] = ()
    """The stores that the last run only reads, and what fills them."""
    outbox: OutboxStatus | None = None
    """The exactly-once output of the last checkpoint; None if it has none."""
    outage: Outage | None = None
    """The system that the run waits for, as of a few seconds ago; None if it waits for none, or does not run."""
    failure: Failure | None = None
    """Since when the job has failed, with which error and at which message; None if it has not."""

    @property
    def has_ended(self) -> bool:
        """Whether no driver has the job: it is not running, or has failed."""
        return self.status in {"not running", "failed"}


@dataclass(frozen=True, slots=True)
class UnreadableJob:
    """A job whose status cannot be read; `problem` is the reason."""

    job: str
    problem: str


def statuses(jobs: Sequence[FoundJob], *, wait: bool = True) -> list[JobStatus | UnreadableJob]:
    """The status of each job, several at once. A damaged job does not hide the others.

    Args:
        jobs: open jobs, from `open_all_jobs`.
        wait: as in `status`.

    Example:
        >>> with admin.open_all_jobs() as jobs:
        ...     [(each.job, each.status) for each in admin.statuses(jobs)]
        [('flights-1', 'not running')]
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(lambda job: _status_or_problem(job, wait=wait), jobs))


def _status_or_problem(job: FoundJob, *, wait: bool) -> JobStatus | UnreadableJob:
    try:
        return status(job, wait=wait)
    except PenstockError as error:
        return UnreadableJob(job.paths.root, str(error))


def status(job: FoundJob, *, wait: bool = True) -> JobStatus:
    """Whether the job is running, how far it has read, and its last checkpoint. Writes nothing.

    Args:
        job: the job.
        wait: watch the lease until it is certain whether the job runs, for `job.lease.ms` at most.

    Raises:
        CorruptError, IncompatibleError: the log or the lease cannot be read.
        RetryableError: the object store failed.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     status = admin.status(job)
        >>> status.status, status.last_checkpoint.batch, [(each.stream, each.lag) for each in status.inputs]
        ('not running', 2, [('local.trips', 0)])
    """
    lease = watch_lease(job.objects, job.paths.lease, wait=wait)
    view = CheckpointLog(job.objects, job.paths).read()
    found = assemble(job, lease, view, _inputs(view, job.config), _startpoints(job, view))
    failure = _failure(job, lease, view)
    if failure is not None:
        found = replace(found, status="failed", failure=failure)
    drain = drain_status(job, view)
    waiting = () if drain.step == "drained" else drain.requests
    found = replace(found, drains=tuple(each.uuid for each in waiting), drain=drain, side_stores=side_stores(job))
    shown = _shown_run(job)
    if shown is None:
        return found
    return replace(
        found,
        side_inputs=side_inputs_in(shown.metrics),
        tables=tables_in(shown.metrics),
        dead_letters=_dead_letters_in(shown.metrics),
        metrics_ms=None if found.status == "running" else shown.time_ms,
    )


def _dead_letters_in(metrics: Snapshot) -> int:
    return sum(
        value.count
        for key, value in metrics.items()
        if key.name == "dead-letters" and isinstance(value, CounterValue)
        if key.group.startswith("stage.")
    )


def _failure(job: FoundJob, lease: LeaseFacts, view: LogView) -> Failure | None:
    """The last words of the last run; if it had none and its driver is gone, what is known of that."""
    if view.owner is None or lease.running != "not running":
        return None
    with suppress(CorruptError, IncompatibleError):  # nothing depends on the words
        words = ShownFailure(job.objects, job.paths).get(view.owner.epoch)
        if words is not None:
            return words
    last = view.latest
    has_ended = last is not None and last.epoch == view.owner.epoch and last.ended is not None
    if not lease.gone or lease.holder is None or lease.holder.run_id != view.owner.run_id or has_ended:
        return None
    since_ms = lease.last_sign_ms
    sign = "" if since_ms is None else f", its last sign of life was at {utc_text(since_ms)}"
    return Failure(since_ms, f"its driver is gone{sign}: {lease.holder}; {lease.reason}")


def _shown_run(job: FoundJob) -> ShownRun | None:
    """What the last run said last; None if it said nothing, or that cannot be read."""
    try:
        return ShownMetrics(job.objects, job.paths).get()
    except PenstockError:
        return None


def assemble(
    job: FoundJob,
    lease: LeaseFacts,
    view: LogView,
    inputs: tuple[InputStatus, ...],
    startpoints: tuple[RequestFacts, ...] = (),
) -> JobStatus:
    """The facts put together."""
    owner = view.owner
    logs = str(log_directory(job.config, job.paths))
    last = view.checkpoints[-1] if view.checkpoints else None
    return JobStatus(
        job=job.paths.root,
        name=job.paths.name,
        id=job.paths.job_id,
        root=job.config.job.root,
        logs=logs,
        containers=tuple(containers_here(logs)),
        status=lease.running,
        reason=lease.reason,
        holder=lease.holder,
        run_id=None if owner is None else owner.run_id,
        epoch=None if owner is None else owner.epoch,
        checkpoints=len(view.checkpoints),
        last_checkpoint=None if last is None else CheckpointSummary.of(last),
        inputs=inputs,
        backends=() if last is None else _backends(last, job.config),
        startpoints=startpoints,
        taken_startpoints=taken_facts(view),
        watermarks=() if last is None else _watermarks(last),
        standbys=()
        if owner is None or lease.running == "not running"
        else ShownStandbys(job.objects, job.paths).get(owner.run_id),
        outage=None
        if owner is None or lease.running == "not running"
        else ShownOutage(job.objects, job.paths).get(owner.run_id),
        intermediate=() if last is None else intermediate_facts(last),
        outbox=_outbox(view.owed, job.config),
    )


def _outbox(owed: Owed, config: JobConfig) -> OutboxStatus | None:
    if not owed.unpublished:
        return None
    outputs = outbox_outputs(owed.unpublished, read_marks(owed.unpublished, owed.publisher, config))
    counts = [each.published for each in outputs]
    return OutboxStatus(
        {each.output: each.messages for each in outputs},
        owed.messages,
        owed.unpublished[0].slot,
        None if None in counts else sum(count for count in counts if count is not None),
    )


def _watermarks(last: CheckpointRecord) -> tuple[WatermarkStatus, ...]:
    return tuple(
        WatermarkStatus(operator, None, None)
        if watermark == END_OF_TIME
        else WatermarkStatus(operator, watermark, last.batch_time_ms - watermark)
        for operator, watermark in last.watermarks.items()
    )


def _startpoints(job: FoundJob, view: LogView) -> tuple[RequestFacts, ...]:
    """Those that no start has taken."""
    requests, unreadable = StartpointManager(job.objects, job.paths).read()
    ttl_ms = job.config.job.startpoint_ttl_ms
    found = sort_out(requests, taken_uuids(view.checkpoints), time.time_ns() // 1_000_000, ttl_ms)
    last = view.latest
    tasks = None if last is None else {task_name(task): tuple(own) for task, own in last.next_offsets.items()}
    return request_facts(replace(found, taken=()), tasks, ttl_ms, unreadable=unreadable)


def _backends(last: CheckpointRecord, config: JobConfig) -> tuple[BackendStatus, ...]:
    """Every backend that has a marker of a store, and those the given configuration names and that have none yet."""
    found = {}
    markers = [markers_of(last, task, config.changelog_partitions(last.stores, task)) for task in last.tasks]
    for store in sorted(last.stores):
        named = config.store(store).backup_factories if _names_backends(config, store) else ()
        count = Counter(b for own in markers for b, stores in own.items() if store in stores)
        for backend in dict.fromkeys((*named, *sorted(count))):
            found[store, backend] = BackendStatus(store, backend, count[backend], last.task_count)
    return tuple(found.values())


def _names_backends(config: JobConfig, store: str) -> bool:
    keys = (table.STORES_BACKUP.name, table.STORE_BACKUP.full(store))
    return any(config.origin(key) != "default" for key in keys)


def _inputs(view: LogView, config: JobConfig) -> tuple[InputStatus, ...]:
    if not view.checkpoints:
        return ()
    last = view.checkpoints[-1]
    positions, times = _smallest(last.next_offsets), _smallest(last.event_times)
    found = []
    for stream, next_offsets in sorted(positions.items()):
        one = _input(stream, next_offsets, last, config)
        one = _with_lost(one, {ssp.partition: lost for ssp, lost in last.lost.items() if ssp.system_stream == stream})
        idle = _idle(one, view, config.idle_ms(stream))
        found.append(_with_times(one, times.get(stream, {}), last, idle) if last.event_times else one)
    return tuple(found)


def _input(
    stream: SystemStream, next_offsets: Mapping[int, int], last: CheckpointRecord, config: JobConfig
) -> InputStatus:
    """A stream as it is now, against the last checkpoint."""
    if _is_frame(stream, last):
        return input_status(stream, next_offsets, {}, None)  # Spark alone knows what comes next
    try:
        now = _look(stream, config)
    except PenstockError as error:
        return input_status(stream, next_offsets, {}, f"its ends are unknown: {error}")
    misfit = _misfit(stream, next_offsets, now.ends, skips=config.skips_lost(stream))
    if now.identity is not None and last.identities.get(stream, now.identity) != now.identity:
        misfit = f"it was deleted and created again: the job will not start. {continue_in(stream)}"
    one = input_status(stream, next_offsets, now.ends, misfit, system=now.system)
    return _with_transactions(one, now.transactions)


def _is_frame(stream: SystemStream, last: CheckpointRecord) -> bool:
    """Whether it is a DataFrame of a query."""
    return stream.system == QUERY_SYSTEM and stream in last.identities


def _smallest(
    values: Mapping[int, Mapping[SystemStreamPartition, int]],
) -> dict[SystemStream, dict[int, int]]:
    """By stream and partition, the smallest value of all tasks."""
    found: dict[SystemStream, dict[int, int]] = defaultdict(dict)
    for own in values.values():
        for ssp, value in own.items():
            before = found[ssp.system_stream].get(ssp.partition, value)
            found[ssp.system_stream][ssp.partition] = min(value, before)
    return found


def _idle(status: InputStatus, view: LogView, idle_ms: int) -> set[int]:
    """The partitions that were idle at the last checkpoint. A partition with nothing unread now was at its end since
    the oldest checkpoint of the epoch that has the same position: before it, a start counted the time anew."""
    last = view.checkpoints[-1]
    still = {each.partition for each in status.partitions if each.lag == 0}
    idle: set[int] = set()
    for record in reversed(view.checkpoints):
        if record.epoch != last.epoch or not still:
            break
        there = _smallest(record.next_offsets).get(SystemStream.parse(status.stream), {})
        still &= {each.partition for each in status.partitions if there.get(each.partition) == each.next_offset}
        if last.batch_time_ms - record.batch_time_ms >= idle_ms:
            idle |= still
    return idle


def _with_times(
    status: InputStatus, times: Mapping[int, int], last: CheckpointRecord, idle: Collection[int]
) -> InputStatus:
    """The event times of its partitions. The lowest one that is not idle holds the others back, or one that has none
    yet; not so in a DataFrame, because which task met a row says nothing about its time."""
    partitions = tuple(replace(each, event_time_ms=times.get(each.partition)) for each in status.partitions)
    if _is_frame(SystemStream.parse(status.stream), last):
        return replace(status, partitions=partitions)
    ended = {ssp.partition for ssp in last.ended_inputs if str(ssp.system_stream) == status.stream}
    reached = {each.partition: times.get(each.partition, NO_WATERMARK) for each in partitions}
    slowest = min(
        (part for part in reached if part not in ended and part not in idle), key=reached.__getitem__, default=None
    )
    return replace(status, partitions=partitions, held_back_by=slowest)


def _with_lost(status: InputStatus, lost: Mapping[int, int]) -> InputStatus:
    partitions = tuple(replace(each, lost=lost.get(each.partition, 0)) for each in status.partitions)
    return replace(status, partitions=partitions)


def _with_transactions(status: InputStatus, found: Mapping[int, OpenTransaction]) -> InputStatus:
    """With those that are not just being written."""
    before_ms = time.time_ns() // 1_000_000 - _STANDSTILL_MS
    old = {partition: each for partition, each in found.items() if each.since_ms <= before_ms}
    return replace(
        status, partitions=tuple(replace(each, open_transaction=old.get(each.partition)) for each in status.partitions)
    )


@dataclass(frozen=True, slots=True)
class _Now:
    """A stream as it is."""

    ends: Mapping[int, PartitionOffsets]
    system: System
    identity: str | None
    transactions: Mapping[int, OpenTransaction]


def _look(stream: SystemStream, config: JobConfig) -> _Now:
    system = open_system(config.system(stream.system))
    admin = system.admin()
    try:
        identity = admin.stream_identity(stream.stream)
        ends = admin.offsets(stream.stream)
        return _Now(ends, system, identity, admin.open_transactions(stream.stream))
    finally:
        admin.close()


def input_status(
    stream: SystemStream,
    next_offsets: Mapping[int, int],
    ends: Mapping[int, PartitionOffsets],
    problem: str | None,
    *,
    system: System | None = None,
) -> InputStatus:
    """Positions against the stream's ends, which some system has."""
    partitions = []
    for partition, offset in sorted(next_offsets.items()):
        end = ends.get(partition)
        upcoming = None if end is None else end.upcoming
        lag = None if system is None or upcoming is None or upcoming < offset else system.lag(offset, upcoming)
        partitions.append(PartitionStatus(partition, offset, upcoming, lag))
    lags = [each.lag for each in partitions]
    total = None if None in lags else sum(lag for lag in lags if lag is not None)
    found = InputStatus(str(stream), tuple(partitions), total, problem)
    return found if system is None else replace(found, dense_offsets=system.dense_offsets, lag_unit=system.lag_unit)


def _misfit(
    stream: SystemStream,
    next_offsets: Mapping[int, int],
    ends: Mapping[int, PartitionOffsets],
    *,
    skips: bool = False,
) -> str | None:
    """What does not fit between positions and ends. `skips`: messages that are gone are skipped."""
    if next_offsets.keys() != ends.keys():
        return (
            f"it has {counted(len(ends), 'partition')} now, the checkpoint has {len(next_offsets)}: the job will "
            "not start"
        )
    for partition, offset in sorted(next_offsets.items()):
        end = ends[partition]
        if not end.oldest <= offset <= end.upcoming:
            ssp = SystemStreamPartition(stream.system, stream.stream, partition)
            holds = f"{ssp} holds offsets from {end.oldest} to before {end.upcoming}, the next to read is {offset}"
            return (
                f"{holds}: the messages between are lost, and will be skipped"
                if skips and offset < end.oldest
                else holds
            )
    return None
