"""Looks at jobs: their logs, their leases, and the streams that they read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from penstock.admin.checkpoint.facts import CheckpointSummary, intermediate_facts
from penstock.admin.job.inputs import AskedInputs, InputStatus
from penstock.admin.job.running import LeaseFacts, drain_status, watch_lease
from penstock.admin.job.status import BackendStatus, JobStatus, OutboxStatus, UnreadableJob, WatermarkStatus, ways_in
from penstock.admin.jobs import FoundJob
from penstock.admin.questions import AskedMarks, Marks, Questions, outbox_outputs
from penstock.admin.startpoint.waiting import RequestFacts, request_facts, taken_facts
from penstock.admin.table import side_stores
from penstock.api.time.firing import END_OF_TIME
from penstock.base.secrets import without_secrets
from penstock.base.wording import utc_text
from penstock.batch.batch import to_positions
from penstock.batch.watermarks import TIME
from penstock.checkpoint.forks import read_home
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_versions import markers_of
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings
from penstock.deploy.wing import DEPLOY, handed_to, shown_deployment
from penstock.errors import CorruptError, IncompatibleError, PenstockError
from penstock.facts import Facts
from penstock.host.logs import WordsOnHost, containers_here, log_directory, logs_folder
from penstock.job.identity import uid_here
from penstock.job.shown import (
    Failure,
    MetricsBoard,
    RunPhase,
    ShownRun,
    failure_board,
    failure_of,
    outage_board,
    phase_board,
)
from penstock.metrics.snapshot import CounterValue, Snapshot
from penstock.outbox.wing import OwedOutput, owed_of
from penstock.replay.wing import REPLAY, shown_following
from penstock.side.wing import side_inputs_in
from penstock.standby.wing import STANDBY_WING, StandbyFacts
from penstock.tables.wing import tables_in
from penstock.wing import Wing, wings

logger = logging.getLogger(__name__)


_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class JobLook:
    """A look at a job, before its systems have answered."""

    known: JobStatus
    """The part of the status that needs no system: without `inputs`, and without what is published."""
    _inputs: Callable[[], tuple[InputStatus, ...]]
    _outbox: Callable[[], OutboxStatus | None]

    def completed(self) -> JobStatus:
        """The whole status, once the questions of the look are answered."""
        return replace(self.known, inputs=self._inputs(), outbox=self._outbox())


def statuses(jobs: Sequence[FoundJob], *, wait: bool = True) -> list[JobStatus | UnreadableJob]:
    """The status of each job, several at once. A damaged job does not hide the others. Systems have five seconds for
    the questions about all jobs together, as in `status`.

    Args:
        jobs: open jobs, from `open_all_jobs`.
        wait: as in `status`.

    Example:
        >>> with admin.open_all_jobs() as jobs:
        ...     [(each.job, each.status) for each in admin.statuses(jobs)]
        [('flights-1', 'not running')]
    """
    questions = Questions()

    def look(job: FoundJob) -> JobLook | UnreadableJob:
        try:
            return look_at(job, questions, wait=wait)
        except PenstockError as error:
            return UnreadableJob(job.paths.root, str(error))

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        looks = list(threads.map(look, jobs))
    questions.await_answers()
    return [each.completed() if isinstance(each, JobLook) else each for each in looks]


def status(job: FoundJob, *, wait: bool = True) -> JobStatus:
    """The status of a job: is it running, how far has it read, and its last checkpoint. Writes nothing.

    The systems of its inputs and outputs are asked side by side, and have five seconds together. What is not known then
    is None, and an input's `problem` says why.

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
    questions = Questions()
    look = look_at(job, questions, wait=wait)
    questions.await_answers()
    return look.completed()


def facts_of_wings(job: FoundJob, run_id: str | None) -> dict[str, Facts]:
    """The facts that each wing has about a job. `run_id`: of its present run."""
    found = {wing.name: _facts_of(wing, job, run_id) for wing in wings() if wing.facts}
    return {name: facts for name, facts in found.items() if facts != Facts()}


def _facts_of(wing: Wing, job: FoundJob, run_id: str | None) -> Facts:
    """The facts of one wing. If they fail, or cannot be laid out, a line says so, and nothing else is hidden."""
    try:
        facts = wing.load(wing.facts)(job.objects, job.paths, run_id)
        if not isinstance(facts, Facts):
            raise TypeError(f"it gives {facts!r} in place of Facts")
        for table in facts.tables:
            table.grid()
    except Exception as error:  # a wing may be of another distribution
        logger.debug("the facts of the wing `%s` failed", wing.name, exc_info=True)
        reason = without_secrets(f"{type(error).__name__}: {error}")
        return Facts({f"wing {wing.name}": f"its facts cannot be read, because of {reason}"})
    return facts


def look_at(job: FoundJob, questions: Questions, *, wait: bool = True) -> JobLook:
    """Read the job's folder, and put what its systems are to be asked to the questions. Raises as `status`."""
    lease = watch_lease(job.objects, job.paths.lease, wait=wait)
    view = job.log.read()
    startpoints = _startpoints(job, view)
    successor = handed_to(view) or None
    # A start that was refused because it has handed over is no failure of the job.
    failure = None if successor else _failure(job, lease, view)
    drain = drain_status(job, view)
    owner, last = view.owner, view.checkpoints[-1] if view.checkpoints else None
    run_id = None if owner is None or lease.running == "not running" else owner.run_id
    logs = str(log_directory(job.config, job.paths, uid_here(job.objects, job.paths, job.config.job.root)))
    outage = None if run_id is None else outage_board(job.objects, job.paths).get_of(run_id)
    # A start after a crash keeps the run's id. What the one before has shown says nothing about now.
    phase, shown = None if run_id is None else _phase(job, run_id, lease.token), _shown_run(job)
    is_present = shown is not None and shown.driver == lease.token
    said = facts_of_wings(job, run_id) | _charge(view)
    inputs, owed = AskedInputs(view, job.config, questions), owed_of(view)
    marks = AskedMarks(owed.unpublished, owed.publisher, job.config, questions)
    is_known = shown is not None and (is_present or lease.running == "not running")
    home = read_home(job.objects, job.paths)
    metrics = shown.metrics if shown is not None and is_known else Snapshot({})
    known = JobStatus(
        job=job.paths.root,
        name=job.paths.name,
        id=job.paths.job_id,
        root=job.config.job.root,
        logs=logs,
        containers=tuple(containers_here(logs)),
        status=lease.running if failure is None else "failed",
        reason=lease.reason,
        holder=lease.holder,
        run_id=None if owner is None else owner.run_id,
        epoch=None if owner is None else owner.epoch,
        checkpoints=len(view.checkpoints),
        last_checkpoint=None if last is None else CheckpointSummary.of(last),
        inputs=(),
        backends=() if last is None else _backends(last, job.config),
        startpoints=startpoints,
        taken_startpoints=taken_facts(view),
        watermarks=() if last is None else _watermarks(last),
        drains=() if drain.step == "drained" else tuple(each.uuid for each in drain.requests),
        drain=drain,
        standbys=said.get(STANDBY_WING.name, Facts()).of(StandbyFacts),
        wings=said,
        side_inputs=side_inputs_in(metrics),
        tables=tables_in(metrics),
        forked_from=None if home is None else f"{home.parent.root}, checkpoint {home.checkpoint}",
        successor=successor,
        dead_letters=_dead_letters_in(metrics),
        ways=ways_in(metrics),
        metrics_ms=None if shown is None or lease.running == "running" else shown.time_ms,
        intermediate=() if last is None else intermediate_facts(last),
        side_stores=side_stores(job),
        outbox=_outbox(owed, {}),
        outage=None if outage is None else outage.outage,
        quiet_offsets=None if last is None else _quiet_offsets(last),
        phase=phase,
        failure=failure,
    )
    read = shown.positions if shown is not None and is_present and lease.running != "not running" else None
    return JobLook(known, partial(inputs.statuses, read), lambda: _outbox(owed, marks.marks()))


def _charge(view: LogView) -> dict[str, Facts]:
    """By wing, who is in charge in place of the job, and which job it follows."""
    found = {DEPLOY.name: shown_deployment(view), REPLAY.name: shown_following(view)}
    return {name: facts for name, facts in found.items() if facts != Facts()}


def _phase(job: FoundJob, run_id: str, driver: str) -> RunPhase | None:
    try:
        found = phase_board(job.objects, job.paths).get_of(run_id)
    except (CorruptError, IncompatibleError):
        return None  # nothing depends on it
    return found if found is not None and found.driver == driver else None


def _quiet_offsets(last: CheckpointRecord) -> int | None:
    if not last.quiet_until:
        return None
    positions = to_positions(last.next_offsets)
    left = {at: until - positions.get(at, until) for at, until in to_positions(last.quiet_until).items()}
    return sum(max(0, each) for each in left.values())


def _dead_letters_in(metrics: Snapshot) -> int:
    return sum(
        value.count
        for key, value in metrics.items()
        if key.name == "dead-letters" and isinstance(value, CounterValue)
        if key.group.startswith("stage.")
    )


def _failure(job: FoundJob, lease: LeaseFacts, view: LogView) -> Failure | None:
    """The last words of the last start; without any, the silence of its driver."""
    if (words := _words_on_host(job, lease)) is not None:
        return words  # it has ended, although it could not give the lease back
    if lease.running != "not running":
        return None
    epoch, gone = 0 if view.owner is None else view.owner.epoch, lease.token if lease.gone else None
    with suppress(CorruptError, IncompatibleError):  # nothing depends on the words
        words = failure_of(failure_board(job.objects, job.paths), epoch, gone)
        if words is not None:
            return words
    if view.owner is None:
        return None
    last = view.latest
    has_ended = last is not None and last.epoch == view.owner.epoch and last.ended is not None
    if not lease.gone or lease.holder is None or lease.holder.run_id != view.owner.run_id or has_ended:
        return None
    since_ms = lease.last_sign_ms
    sign = "" if since_ms is None else f", its last sign of life was at {utc_text(since_ms)}"
    if lease.holder.known_dead():
        how = "it was killed, or could not write to the job root"
        return Failure(since_ms, f"its driver is gone{sign}: {lease.holder}; {how}")
    how = "it is gone, is stopped, or does not reach the job root, and a start takes the job over"
    return Failure(since_ms, f"its driver is silent{sign}: {lease.holder}; {lease.reason}: {how}")


def _words_on_host(job: FoundJob, lease: LeaseFacts) -> Failure | None:
    """The last words of a driver of this host, if the job root took nothing any more."""
    found = WordsOnHost(logs_folder(job.config), lease.token).read() if lease.token else None
    with suppress(CorruptError, IncompatibleError):
        return None if found is None else failure_board(job.objects, job.paths).decode(found).failure
    return None


def _shown_run(job: FoundJob) -> ShownRun | None:
    """The last metrics of the last run; None if it wrote none, or they cannot be read."""
    try:
        return MetricsBoard(job.objects, job.paths).get()
    except PenstockError:
        return None


def _outbox(owed: OwedOutput, marks: Marks) -> OutboxStatus | None:
    if not owed.unpublished:
        return None
    outputs = outbox_outputs(owed.unpublished, marks)
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
        for operator, watermark in last.section(TIME).watermarks.items()
    )


def _startpoints(job: FoundJob, view: LogView) -> tuple[RequestFacts, ...]:
    ttl_ms = job.config.job.startpoint_ttl_ms
    found = job.startpoints.waiting(view)
    tasks = None if view.latest is None else view.latest.next_offsets
    return request_facts(replace(found, taken=()), tasks, ttl_ms)


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
    keys = (StoreSettings.all_backup_factories.name, StoreSettings.backup_factories.full(store))
    return any(config.origin(key) != "default" for key in keys)
