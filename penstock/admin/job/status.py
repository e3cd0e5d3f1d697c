"""The status of a job, from its log, its lease, and the streams that it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

from penstock.admin.checkpoint.facts import CheckpointSummary, IntermediateFacts, intermediate_facts
from penstock.admin.job.drain_status import NO_DRAIN, DrainStatus, drain_status
from penstock.admin.job.inputs import AskedInputs, InputStatus, input_facts
from penstock.admin.job.metrics import SideInputStatus, TableUse, side_inputs_in, tables_in, ways_in
from penstock.admin.job.running import LeaseFacts, Running, watch_lease
from penstock.admin.jobs import FoundJob
from penstock.admin.outbox import AskedMarks, Marks, outbox_outputs
from penstock.admin.questions import Questions
from penstock.admin.side_stores import side_stores
from penstock.admin.startpoint.facts import RequestFacts, TakenFacts, request_facts, taken_facts, waiting_facts
from penstock.api.time.watermarks import END_OF_TIME
from penstock.batch.positions import to_positions
from penstock.batch.watermarks import TIME
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions.markers import markers_of
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings
from penstock.errors import CorruptError, IncompatibleError, PenstockError
from penstock.facts import Column, Facts, FactTable
from penstock.host.found import ContainerProcess, containers_here
from penstock.host.logs import log_directory, logs_folder
from penstock.host.words import WordsOnHost
from penstock.job.identity import uid_here
from penstock.job.lease import LeaseHolder
from penstock.job.shown_failure import Failure, failure_board, failure_of
from penstock.job.shown_metrics import MetricsBoard, ShownRun
from penstock.job.shown_outage import Outage, outage_board
from penstock.job.shown_phase import RunPhase, phase_board
from penstock.metrics.snapshot import CounterValue, Snapshot
from penstock.notebook import Shown
from penstock.outbox.unpublished import OwedOutput, owed_of
from penstock.plugins import load
from penstock.side.shown import SideStoreFacts
from penstock.standby.shown import StandbyFacts
from penstock.standby.wing import STANDBY_WING
from penstock.wing import wings
from penstock.wording import argument, counted, duration_text, lag_text, listed, utc_text

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """The watermark of an operator at the last checkpoint, in epoch milliseconds, and how far it is behind the batch
    time; None if its inputs have ended."""

    operator: Annotated[str, Column("operator")]
    watermark_ms: Annotated[int | None, Column("watermark", utc_text, absent="its inputs have ended")]
    delay_ms: Annotated[int | None, Column("behind", duration_text, right=True)]


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """A store in one backend, at the last checkpoint. A task whose base is still being made has no marker."""

    store: Annotated[str, Column("store")]
    backend: Annotated[str, Column("backend")]
    tasks_with_marker: Annotated[int, Column("can restore", of=str)]
    tasks: int

    def __str__(self) -> str:
        if self.tasks_with_marker == self.tasks:
            return f"all {self.tasks} tasks"
        return f"{self.tasks_with_marker} of {self.tasks} tasks: its base is being made"


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """The messages of the last checkpoint for exactly-once outputs. A running job publishes them within moments. If the
    job does not run, its next start publishes the part that readers do not see yet."""

    outputs: Mapping[str, int]
    """Output → messages, published or not."""
    messages: int
    since_slot: int
    """The slot of the oldest record with such messages."""
    published: int | None = None
    """The messages that are certainly published; None if a system could not be asked."""

    def text(self, *, has_ended: bool) -> str:
        """The output, and what becomes of it. `has_ended`: no driver has the job."""
        outputs = ", ".join(f"{count:,} to {stream}" for stream, count in self.outputs.items())
        if self.published == self.messages:
            return f"{outputs}: published"
        unknown = " (how many are published is not known)"
        there = unknown if self.published is None else f", {self.published:,} of them are published"
        return f"{outputs}{there}: {'the next start makes sure of it' if has_ended else 'the job publishes them'}"


@dataclass(frozen=True, slots=True)
class JobStatus(Shown):
    """The status of a job. `epoch` and `run_id` are those of the last claim in the log. `startpoints` wait for the next
    start; `taken_startpoints` are those that the last run took at a start, and their effect."""

    job: str
    name: str
    id: str
    root: str
    logs: str
    """The folder of its containers' logs, on each host."""
    containers: tuple[ContainerProcess, ...]
    """The containers on this host."""
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
    wings: Mapping[str, Facts] = field(default_factory=dict)
    """The facts that each wing has about the job, by its name; wings without facts are left out."""
    side_inputs: tuple[SideInputStatus, ...] = ()
    """The lag of stores behind their side inputs, as of some seconds ago or of the end of the last run."""
    tables: tuple[TableUse, ...] = ()
    """The pushed tables, as of some seconds ago or of the end of the last run."""
    dead_letters: int = 0
    """Messages that the last run sent to the dead-letter stream, as of some seconds ago or of its end."""
    ways: Mapping[str, int] = field(default_factory=dict)
    """With `job.latency.target.ms`: the batches of the last run by the way that they took, `direct` or `spark-` and the
    reason, as of some seconds ago or of its end."""
    metrics_ms: int | None = None
    """The time of `side_inputs`, `tables`, `dead_letters` and `ways`, in epoch milliseconds; None while the job runs:
    some seconds ago."""
    intermediate: tuple[IntermediateFacts, ...] = ()
    """The durable intermediate streams, as of the last checkpoint."""
    side_stores: tuple[SideStoreFacts, ...] = ()
    """The stores that the last run only reads, and what fills them."""
    outbox: OutboxStatus | None = None
    """The exactly-once output of the last checkpoint; None if it has none."""
    outage: Outage | None = None
    """The system that the run waits for, as of a few seconds ago; None if it waits for none, or does not run."""
    quiet_offsets: int | None = None
    """The offsets to be read again before output is sent, because a startpoint was set with `with_output="after"`.
    None: all output is sent."""
    phase: RunPhase | None = None
    """The phase of a running job, as of a few seconds ago; None if it does not run."""
    failure: Failure | None = None
    """Since when the job has failed, with which error and at which message; None if it has not."""

    @property
    def has_ended(self) -> bool:
        """True if no driver has the job: it is not running, or has failed."""
        return self.status in {"not running", "failed"}

    def as_facts(self) -> Facts:
        return self.known_facts() + self.asked_facts()

    def known_facts(self) -> Facts:
        """What the job's folder has."""
        seen = "a few seconds ago" if self.metrics_ms is None else f"at {utc_text(self.metrics_ms)}"
        lines = {
            "job": self.job,
            **self._state_lines(),
            "last holder" if self.has_ended else "holder": self.holder,
            "run id": self.run_id,
            "epoch": self.epoch,
            "job root": self.root,
            "container logs": self.logs,
            "containers here": ", ".join(f"{each.container} (pid {each.pid})" for each in self.containers) or "none",
            "checkpoints": self.checkpoints,
            **({} if self.last_checkpoint is None else self.last_checkpoint.lines()),
        }
        if self.dead_letters:
            lines["dead letters"] = f"{self.dead_letters:,} in its last run, {seen}"
        if self.ways:
            lines["batches"] = f"{_ways_text(self.ways)}; in its last run, {seen}"
        before = Facts(lines) + self.drain.as_facts(has_ended=self.has_ended)
        stores = Facts.some({}, FactTable("State, as of the last checkpoint", self.backends))
        behind = Facts.some(
            {},
            FactTable("Stores that the job only reads", self.side_stores),
            FactTable(f"Side inputs, {seen}", self.side_inputs),
            FactTable(f"Pushed tables, {seen}", self.tables),
            FactTable("Intermediate streams, as of the last checkpoint", self.intermediate),
            FactTable("Event time, as of the last checkpoint", self.watermarks),
            notes=self._notes(),
        )
        taken = Facts() if self.taken_startpoints is None else self.taken_startpoints.as_facts()
        waiting = waiting_facts(self.startpoints) if self.startpoints else Facts()
        return sum((stores, *self.wings.values(), behind, taken, waiting), start=before)

    def asked_facts(self) -> Facts:
        """What the systems have answered."""
        done = {} if self.outbox is None else {"exactly once": self.outbox.text(has_ended=self.has_ended)}
        return Facts(done) + input_facts(self.inputs)

    def _state_lines(self) -> dict[str, object]:
        lines: dict[str, object] = {"status": f"{self.status}: {self.reason}"}
        if (failure := self.failure) is not None:
            lines = {"status": f"failed: {failure.error}"}
            lines |= {} if failure.place is None else {"  in": failure.place}
            lines |= {} if failure.since_ms is None else {"  since": utc_text(failure.since_ms)}
        if self.phase is not None and self.phase.phase != "running":
            progress = f" ({self.phase.progress})" if self.phase.progress else ""
            lines["phase"] = f"{self.phase.phase}{progress}, since {utc_text(self.phase.since_ms)}"
        if self.outage is not None:
            lines["waits for"] = f"since {utc_text(self.outage.since_ms)}: {self.outage.reason}"
        return lines

    def _notes(self) -> Iterator[str]:
        for store in sorted({each.store for each in self.side_inputs if each.failing}):
            tries = "the job keeps trying. See the logs of the containers"
            yield f"warning: the side inputs of store `{store}` fail; {tries}"
        for each in self.tables:
            if each.in_use is None and each.loading is None and self.status == "running":
                yield (
                    f"warning: table `{each.table}` has no version yet, and the first batch waits for one. `penstock "
                    f"table versions {self.job} {each.table}` says whether one was refused, and why"
                )
            if each.failing:
                yield (
                    f"warning: version {each.loading} of table `{each.table}` cannot be loaded; the job keeps trying. "
                    "See the logs of the driver and the containers"
                )
        if self.quiet_offsets is not None:
            left, after = counted(self.quiet_offsets, "offset"), argument("with_output", "after")
            yield f"note: nothing is sent to outputs yet: {left} are to be read again first ({after})"


def _ways_text(ways: Mapping[str, int]) -> str:
    reasons = {way.removeprefix("spark-"): count for way, count in ways.items() if way != "direct"}
    by_spark = f"{sum(reasons.values()):,} by Spark"
    if reasons:
        by_spark += f" ({listed([f'{count:,} {reason}' for reason, count in reasons.items()])})"
    return f"{ways.get('direct', 0):,} direct, {by_spark}"


@dataclass(frozen=True, slots=True)
class UnreadableJob:
    """A job whose status cannot be read; `problem` is the reason."""

    job: str
    problem: str


@dataclass(frozen=True, slots=True)
class _JobLine:
    """A job in a list of jobs."""

    job: Annotated[str, Column("job")]
    status: Annotated[str, Column("status")]
    lag: Annotated[int | str | None, Column("lag", right=True)] = None
    checkpoint: Annotated[str | None, Column("last checkpoint")] = None
    batch: Annotated[int | None, Column("batch", right=True, first_to_go=3)] = None
    batch_time_ms: Annotated[int | None, Column("at", utc_text, first_to_go=2)] = None
    run_id: Annotated[str | None, Column("run", first_to_go=1)] = None

    @classmethod
    def of(cls, found: JobStatus | UnreadableJob) -> _JobLine:
        if not isinstance(found, JobStatus):
            return cls(found.job, "cannot be read")
        last, known = found.last_checkpoint, found.inputs and all(each.lag is not None for each in found.inputs)
        lag = (lag_text((each.lag or 0, each.lag_unit) for each in found.inputs) or 0) if known else None
        if last is None:
            return cls(found.job, found.status, lag, run_id=found.run_id)
        return cls(found.job, found.status, lag, last.id, last.batch, last.batch_time_ms or None, found.run_id)


def list_facts(found: Sequence[JobStatus | UnreadableJob], root: str) -> Facts:
    """The jobs in a root, for people."""
    notes = []
    for one in found:
        if not isinstance(one, JobStatus):
            notes.append(f"error: job {one.job}: {one.problem}")
        elif problem := next((each for each in one.inputs if each.lag is None and each.problem is not None), None):
            unknown = f"the lag of job {one.job} is not known"
            notes.append(f"warning: {unknown}: stream `{problem.stream}`: {problem.problem}")
    return Facts({}, (FactTable(f"Jobs in {root}", [_JobLine.of(each) for each in found]),), tuple(notes))


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
    found = {wing.name: load(wing.facts)(job.objects, job.paths, run_id) for wing in wings() if wing.facts}
    return {name: facts for name, facts in found.items() if facts != Facts()}


def look_at(job: FoundJob, questions: Questions, *, wait: bool = True) -> JobLook:
    """Read the job's folder, and put what its systems are to be asked to the questions. Raises as `status`."""
    lease = watch_lease(job.objects, job.paths.lease, wait=wait)
    view = job.log.read()
    startpoints = _startpoints(job, view)
    failure, drain = _failure(job, lease, view), drain_status(job, view)
    owner, last = view.owner, view.checkpoints[-1] if view.checkpoints else None
    run_id = None if owner is None or lease.running == "not running" else owner.run_id
    logs = str(log_directory(job.config, job.paths, uid_here(job.objects, job.paths, job.config.job.root)))
    outage = None if run_id is None else outage_board(job.objects, job.paths).get_of(run_id)
    # A start after a crash keeps the run's id. What the one before has shown says nothing about now.
    phase, shown = None if run_id is None else _phase(job, run_id, lease.token), _shown_run(job)
    is_present = shown is not None and shown.driver == lease.token
    said = facts_of_wings(job, run_id)
    inputs, owed = AskedInputs(view, job.config, questions), owed_of(view)
    marks = AskedMarks(owed.unpublished, owed.publisher, job.config, questions)
    is_known = shown is not None and (is_present or lease.running == "not running")
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
    read = shown.positions if shown is not None and is_present else None
    return JobLook(known, partial(inputs.statuses, read), lambda: _outbox(owed, marks.marks()))


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
