"""The status of a job, as a value and for people; and its metrics and graph, from outside its process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from penstock.admin.checkpoint.facts import CheckpointSummary, IntermediateFacts
from penstock.admin.job.inputs import InputStatus, input_facts
from penstock.admin.job.running import NO_DRAIN, DrainStatus, Running
from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.waiting import RequestFacts, TakenFacts, waiting_facts
from penstock.base.wording import argument, counted, duration_text, lag_text, listed, utc_text
from penstock.errors import NotFoundError
from penstock.facts import Column, Facts, FactTable, Shown
from penstock.host.logs import ContainerProcess
from penstock.job.lease import LeaseHolder
from penstock.job.shown import Failure, JobGraph, MetricsBoard, Outage, RunPhase, ShownRun, graph_board
from penstock.metrics.snapshot import CounterValue, Snapshot
from penstock.side.wing import SideInputStatus, SideStoreFacts
from penstock.standby.wing import StandbyFacts
from penstock.tables.wing import TableUse


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
    forked_from: str | None = None
    """The parent whose objects it still needs, with the checkpoint that was forked."""
    successor: str | None = None
    """The job that is in charge in place of this one, which has handed over to it."""
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
        """The part that is in the job's folder."""
        seen = "a few seconds ago" if self.metrics_ms is None else f"at {utc_text(self.metrics_ms)}"
        lines = {
            "job": self.job,
            **({"forked from": self.forked_from} if self.forked_from else {}),
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
        """The part that the systems have answered."""
        done = {} if self.outbox is None else {"exactly once": self.outbox.text(has_ended=self.has_ended)}
        return Facts(done) + input_facts(self.inputs)

    def _state_lines(self) -> dict[str, object]:
        charge = f", and job {self.successor} is in charge" if self.successor and self.has_ended else ""
        lines: dict[str, object] = {"status": f"{self.status}{charge}: {self.reason}"}
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
        if found.successor and found.has_ended:  # no message waits for it
            return cls(found.job, f"handed over to {found.successor}", run_id=found.run_id)
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


_WAY = "batches-"


def run_of(job: FoundJob) -> ShownRun | None:
    """The metrics of the job's last run, with the moment at which they were those; None if no run has put any. Raises
    as `metrics_of`."""
    return MetricsBoard(job.objects, job.paths).get()


def metrics_of(job: FoundJob) -> Snapshot:
    """The metrics of a running job some seconds ago, or those at the end of its last run.

    Raises:
        NotFoundError: no run has put any yet.
        CorruptError: they cannot be read.
        IncompatibleError: a newer Penstock put them.
        RetryableError: the object store failed.
    """
    found = run_of(job)
    if found is None:
        raise NotFoundError(
            f"job {job.paths.root} has no metrics yet: a run writes them to the job's folder every ten seconds and "
            "when it ends"
        )
    return found.metrics


def ways_in(metrics: Snapshot) -> Mapping[str, int]:
    """The batches of a run with a latency target by their way, named as `JobProgress.way`."""
    return {
        key.name.removeprefix(_WAY): value.count
        for key, value in sorted(metrics.items())
        if isinstance(value, CounterValue) and key.group == "job" and key.name.startswith(_WAY)
    }


def graph(job: FoundJob) -> JobGraph | None:
    """The stages of the job's last run, and what flows between them and the streams; None if no run has shown any.

    Args:
        job: the job.

    Raises:
        CorruptError: it cannot be read.
        IncompatibleError: a newer Penstock wrote it.
        RetryableError: the object store failed.

    Example:
        >>> with admin.open_job("flights") as job:  # doctest: +SKIP
        ...     [(each.source, each.target) for each in admin.graph(job).edges]
        [('local.trips', 0), (0, 1)]
    """
    return graph_board(job.objects, job.paths).get()
