"""The progress of a running job. Fields are named as in Spark's StreamingQueryProgress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import counted, duration_text, lag_text
from penstock.batch.batch import Positions
from penstock.driver.show.metrics import JobMetrics, Replay, RunFacts, UncommittedTime
from penstock.driver.show.work import StateOperatorProgress, work_of
from penstock.facts import Column, Facts, FactTable, Shown
from penstock.job.shown import Outage, RunWork
from penstock.system.contract.definition import System
from penstock.wire.protocol import Beat


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One input stream. Offsets are the next to read, by partition, before and after the batch. If several tasks
    read a partition, it is the smallest one, and messages count once for each task."""

    description: Annotated[str, Column("stream")]
    start_offset: Mapping[str, int]
    end_offset: Mapping[str, int]
    latest_offset: Mapping[str, int]
    num_input_rows: Annotated[int, Column("messages", right=True), Column("lag", right=True, of=lambda each: each.lag)]
    watermark: int | None = None
    """The event time up to which the input is complete, in epoch milliseconds; None if the application does not use
    event time, and until every partition has had a message or is idle."""
    held_back_by: Annotated[str | None, Column("held back by")] = None
    """The partition that holds the watermark back."""
    input_rows_per_second: float | None = None
    """As in `JobProgress`."""
    processed_rows_per_second: float = 0.0
    metrics: Mapping[str, str] = field(default_factory=dict)
    lag: int = 0
    """Messages that the stream held and the batch did not read. If several tasks read a partition, it counts the
    unread ones of the slowest. Offsets are subtracted, so gaps count as messages."""
    lag_unit: str = "message"
    """The unit of `lag`: `file` for a folder. The number of a file's rows is known when it is read."""


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """All outputs together."""

    description: str = ""
    num_output_rows: int = 0
    metrics: Mapping[str, str] = field(default_factory=dict)


class SourceTime(NamedTuple):
    """The event time of an input: see `SourceProgress`."""

    watermark: int | None = None
    held_back_by: str | None = None


@dataclass(frozen=True, slots=True)
class JobProgress(Shown):
    """The last batch that ended.

    Durations are milliseconds: `triggerExecution` of the whole batch, `addBatch` of all its stages, `end` of applying
    it, `walCommit` of the synchronous part of the commit after it, if there was one, and `commitWait` of
    waiting for the one before.
    """

    id: str
    run_id: str
    name: str
    timestamp: str
    batch_id: int
    num_input_rows: int
    num_output_rows: int
    dead_letters: int
    processed_rows_per_second: float
    duration_ms: Mapping[str, int]
    sources: tuple[SourceProgress, ...]
    total_input_rows: int
    """Since this run began."""
    last_checkpoint: str | None
    container_bytes: int
    total_dead_letters: int = 0
    """Since this run began."""
    commit_ms: Mapping[str, int] = field(default_factory=dict)
    """`snapshot`, which processing waited for, and `total`, of the last complete commit."""
    batch_duration: int = 0
    """`triggerExecution`."""
    input_rows_per_second: float | None = None
    """Since the batch before began; None for the first one of a run."""
    event_time: Mapping[str, str] = field(default_factory=dict)
    """`max` of the batch, and `watermark`, the lowest one of the inputs; each is left out if it is not known."""
    state_operators: tuple[StateOperatorProgress, ...] = ()
    sink: SinkProgress = SinkProgress()
    observed_metrics: Mapping[str, Any] = field(default_factory=dict)
    """Empty: `observe` is a DataFrame's."""
    way: str = ""
    """With `job.latency.target.ms`: `direct`, or `spark-` and the reason why Spark ran the batch."""

    @property
    def lag(self) -> int:
        """The `lag` of all sources that count messages."""
        return sum(source.lag for source in self.sources if source.lag_unit == "message")

    @property
    def behind(self) -> str:
        """The `lag` of all sources, for people; empty if there is none."""
        return lag_text([(source.lag, source.lag_unit) for source in self.sources])

    def as_facts(self) -> Facts:
        rate = f"{self.processed_rows_per_second:,.0f} messages a second"
        lines = {
            "job": self.name,
            "batch": f"{self.batch_id}, at {self.timestamp}",
            "messages": f"{self.num_input_rows:,} in, {self.num_output_rows:,} out; {rate}",
            "duration": duration_text(self.batch_duration),
            "way": self.way,
            "behind": self.behind,
            "watermark": self.event_time.get("watermark"),
            "dead letters": self.total_dead_letters or None,
            "last checkpoint": self.last_checkpoint,
        }
        return Facts(lines, (FactTable("Inputs", self.sources),))

    def to_dict(self) -> dict[str, Any]:
        """The fields in Spark's spelling (`batchId`, `numInputRows`, ...)."""
        fields: dict[str, Any] = _camel(asdict(self))
        return fields


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The batch that runs: its messages, and those that its containers have processed."""

    batch: int
    messages: int
    processed: Mapping[int, int]
    """By stage. A stage may send more messages to the next one than it gets, or fewer."""

    def __str__(self) -> str:
        where = " in stage {}" if len(self.processed) > 1 else ""
        done = [f"{count:,} processed" + where.format(stage) for stage, count in self.processed.items()]
        return ", ".join([f"batch {self.batch} of {counted(self.messages, 'message')}", *(done or ["0 processed"])])


@dataclass(slots=True)
class ProgressBoard:
    """The progress of a run: the run loop writes it, everybody else reads it."""

    last: JobProgress | None = None
    restored_bytes: int = 0
    last_checkpoint: str | None = None
    phase: str = "starting"
    phase_since_ms: int = field(default_factory=SYSTEM_CLOCK.now_ms)
    """The begin of the phase, in epoch milliseconds, as in the next two."""
    checkpoint_ms: int = 0
    """The time at which the last checkpoint was complete; 0 before the first one of the run."""
    batch_since_ms: int = 0
    """The begin of the running batch; 0 if none runs."""
    epoch: int = 0
    failures: int = 0
    """Since the last checkpoint; waits for a system that is away are none."""
    uncommitted: UncommittedTime = field(default_factory=UncommittedTime)
    positions: Positions = field(default_factory=dict)
    """The next offsets of all tasks."""
    ends: dict[SystemStreamPartition, int] = field(default_factory=dict)
    """The next offset that each input partition assigns, as far as it is known."""
    drained: bool = False
    waits_for: Callable[[], str] = lambda: ""
    """The reason why the running batch does not end, in words; empty if it is not known."""
    outage: Outage | None = None
    """The system that the run waits for; None if it waits for none."""
    remaining: int | None = None
    """Messages left to read until the job ends by itself; gaps in the offsets count as messages. None if it does not
    end."""
    running: tuple[int, int] | None = None
    """The number and messages of the batch that runs."""
    processed: Callable[[int], Mapping[int, int]] = lambda _: {}
    """For a batch: stage with state → messages processed, as of the containers' last beats."""
    wings: Mapping[str, Any] = field(default_factory=dict)
    """By wing, its present work as it is shown: a value, or a function that returns one."""
    phase_of: str = ""
    """The wing that the phase waits for; empty: the kernel's."""
    beats: Callable[[], Sequence[Beat]] = lambda: ()
    """The last beats of all containers."""
    metrics: JobMetrics = field(default_factory=JobMetrics)
    replay: Replay = field(default_factory=Replay)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def update(self, **values: Any) -> None:
        """Set fields and wake the threads that wait."""
        with self.changed:
            if values.get("phase", self.phase) != self.phase:
                self.phase_since_ms = SYSTEM_CLOCK.now_ms()
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def tell(self, wing: str, work: Any) -> None:
        """Set what a wing tells of its present work; None: it tells nothing. May be called by any thread."""
        with self.changed:  # wings tell from several threads, and none may lose what another one told
            self.update(wings={**self.wings, wing: work})

    def told(self, wing: str) -> Any:
        """The work of a wing at this moment; None if it shows none."""
        found = self.wings.get(wing)
        return found() if callable(found) else found

    @contextmanager
    def during(self, phase: str, wing: str = "") -> Iterator[None]:
        """A phase in which the run waits for a wing; afterwards it is in the one before again. `wing`: the one whose
        work is the progress of the phase; empty: none is shown."""
        before = self.phase
        self.update(phase=phase, phase_of=wing)
        try:
            yield
        finally:
            self.update(phase=before, phase_of="")

    def note_ends(self, ends: Mapping[SystemStreamPartition, int]) -> None:
        """Note the ends of inputs. One that is known is never replaced by an earlier one, from whoever looked first."""
        with self.changed:
            self.ends |= {ssp: max(end, self.ends.get(ssp, end)) for ssp, end in ends.items()}

    def facts(self) -> RunFacts:
        """The state of the run now."""
        outage, beats = self.outage, self.beats()
        return RunFacts(
            self.phase,
            self.phase_since_ms,
            self.epoch,
            self.failures,
            self.checkpoint_ms,
            0 if outage is None else outage.since_ms,
            self.batch_since_ms,
            self.uncommitted.since_ms,
            len(beats),
            max((beat.stalled_ms for beat in beats), default=0),
        )

    def work_now(self) -> RunWork:
        """The running batch by stage and task, and the keys with the most messages, as of the last beats."""
        return work_of(self.beats(), self.running, self.batch_since_ms)

    @contextmanager
    def batch(self, number: int, messages: int) -> Iterator[None]:
        self.update(running=(number, messages), batch_since_ms=SYSTEM_CLOCK.now_ms())
        try:
            yield
        finally:
            self.update(running=None, batch_since_ms=0)


class BatchTimer:
    """Measures named parts of a batch in milliseconds."""

    def __init__(self) -> None:
        self._start = self._mark = time.monotonic()
        self.parts: dict[str, int] = {}

    def lap(self, name: str) -> None:
        """Add the time since the last lap to the part `name`."""
        now = time.monotonic()
        self.parts[name] = self.parts.get(name, 0) + round((now - self._mark) * 1000)
        self._mark = now

    def total_ms(self) -> int:
        return round((time.monotonic() - self._start) * 1000)


def source_progress(
    before: Positions,
    after: Positions,
    latest: Mapping[SystemStreamPartition, int],
    rows: Mapping[SystemStream, int],
    times: Mapping[SystemStream, SourceTime],
    systems: Mapping[str, System],
) -> tuple[SourceProgress, ...]:
    """The progress of every input stream in one batch; `rows` are the messages that were read."""
    began, stands = _smallest(before), _smallest(after)
    found = []
    for stream in sorted({ssp.system_stream for ssp in began}):
        own, system = sorted(ssp for ssp in began if ssp.system_stream == stream), systems[stream.system]
        found.append(
            SourceProgress(
                str(stream),
                {str(s.partition): began[s] for s in own},
                {str(s.partition): stands[s] for s in own},
                {str(s.partition): latest[s] for s in own},
                rows.get(stream, 0),
                *times.get(stream, SourceTime()),
                lag=sum(system.lag(stands[s], latest[s]) for s in own),
                lag_unit=system.lag_unit,
            )
        )
    return tuple(found)


def _smallest(positions: Positions) -> dict[SystemStreamPartition, int]:
    found: dict[SystemStreamPartition, int] = {}
    for at, offset in positions.items():
        found[at.ssp] = min(offset, found.get(at.ssp, offset))
    return found


def now_text() -> str:
    return (
        datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {camel(key): _camel(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_camel(item) for item in value]
    return value


def camel(name: str) -> str:
    """A field's name in Spark's spelling."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
