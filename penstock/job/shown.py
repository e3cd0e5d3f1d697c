"""Documents that a run shows on boards, for commands, the dashboard and the next start: its graph and phase, its
progress and metrics, the work of one moment by stage, task and key, the system that it waits for, and its last words
if it failed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from types import TracebackType
from typing import TypeAlias

import msgspec
import orjson

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import Count, decoding
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.secrets import without_secrets
from penstock.base.wording import utc_text
from penstock.errors import PenstockError, UserCodeError
from penstock.job.board import FORMAT, Board, last_run
from penstock.job.lease import Lease
from penstock.job.paths import JobPaths
from penstock.metrics.snapshot import Row, Snapshot
from penstock.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class GraphOperator:
    """An operator of a stage."""

    id: str
    kind: str
    """In words, such as `partition by`."""
    stores: tuple[str, ...] = ()
    stream: str = ""
    """The stream that an input reads; empty for other operators, and in what an earlier Penstock wrote."""


@dataclass(frozen=True, slots=True)
class GraphStage:
    """The operators between two exchanges, in order."""

    number: Count
    operators: tuple[GraphOperator, ...]


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Messages from a stage or a stream to another one. Ends are a stage's number, or a stream `system.stream`."""

    source: Count | str
    target: Count | str
    channel: str = ""
    """The operator that sends the messages; empty where a stage reads a stream."""


@dataclass(frozen=True, slots=True)
class JobGraph:
    """The stages of a run, and what flows between them and the streams."""

    run_id: str
    stages: tuple[GraphStage, ...]
    edges: tuple[GraphEdge, ...]


def graph_board(objects: ObjectStore, paths: JobPaths) -> Board[JobGraph]:
    """The board that a run replaces as it begins."""
    damage = "does not hold the graph of a run. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "graph"), JobGraph, damage)


MOST_TASKS = 20
MOST_KEYS = 10


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The work of a task in one stage of the running batch, so far."""

    stage: Count
    task: Count
    messages: Count
    process_ms: Count
    """The time that its messages and timers took."""
    operator: str = ""
    """The operator that is busy now, by its id; empty if none is, and once the task has finished the stage."""


@dataclass(frozen=True, slots=True)
class KeyWork:
    """A key with many messages, by a sample of the last minute."""

    stage: Count
    key: str
    """As text; `0x...` if it is none. A long key is cut, and has a digest at its end."""
    messages: Count
    """About how many."""
    share: float
    """Its part of all messages with a key that came into the stage."""


@dataclass(frozen=True, slots=True)
class RunWork:
    """The work of a run. Times are in epoch milliseconds."""

    batch: Count | None = None
    """The batch that runs; None between batches."""
    messages: Count = 0
    """The messages of the batch."""
    since_ms: Count = 0
    """The begin of the batch."""
    processed: tuple[tuple[Count, Count], ...] = ()
    """(Stage, messages that it has processed), of the stages in containers."""
    tasks: tuple[TaskWork, ...] = ()
    """The tasks with the most messages, and those that took the most time."""
    keys: tuple[KeyWork, ...] = ()
    """The keys with the most messages, of all stages behind an exchange."""


def most_work(work: Collection[TaskWork]) -> list[TaskWork]:
    """The work with the most messages, and that which took the most time, ordered by stage and messages.

    Example:
        >>> [each.task for each in most_work([TaskWork(1, task, 10 * task, 0) for task in range(50)])][:3]
        [49, 48, 47]
    """
    half = MOST_TASKS // 2
    chosen = {
        *nlargest(half, work, key=lambda each: (each.messages, each.process_ms)),
        *nlargest(half, work, key=lambda each: (each.process_ms, each.messages)),
    }
    return sorted(chosen, key=lambda each: (each.stage, -each.messages, -each.process_ms, each.task))


@dataclass(frozen=True, slots=True)
class ShownRun:
    """The state of a run at one moment."""

    run_id: str
    time_ms: int
    """The moment, in epoch milliseconds."""
    metrics: Snapshot
    reached: Mapping[tuple[int, SystemStreamPartition], int] = field(default_factory=dict)
    """The next offset of every task in every partition that it reads, the furthest that it came. Batches up to there
    have ended; the last checkpoint may be older."""
    driver: str = ""
    """The token of the driver's lease: a start after a crash keeps the id of the run, and counts from 0."""
    now_at: Mapping[tuple[int, SystemStreamPartition], int] = field(default_factory=dict)
    """The present positions, where they differ from `reached`: the run reads again what it had read."""
    work: RunWork = field(default_factory=RunWork)
    """The running batch, and the keys with the most messages."""

    @property
    def positions(self) -> Mapping[SystemStreamPartition, int]:
        """The present position in each partition; of several tasks that of the slowest."""
        found: dict[SystemStreamPartition, int] = {}
        for (_, ssp), offset in {**self.reached, **self.now_at}.items():
            found[ssp] = min(offset, found.get(ssp, offset))
        return found


_Row: TypeAlias = tuple[Count, str, str, Count, Count]


class _RunFields(msgspec.Struct):
    run_id: str
    time_ms: Count
    metrics: list[Row]
    reached: list[_Row]
    driver: str = ""
    now_at: list[_Row] = []
    work: RunWork = msgspec.field(default_factory=RunWork)


class MetricsBoard(Board[ShownRun]):
    """The board that the driver replaces from time to time."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        damage = "does not hold the metrics of a run. Delete it, and the next run writes it. The cause"
        super().__init__(objects, last_run(paths, "metrics"), ShownRun, damage)

    def encode(self, document: ShownRun) -> bytes:
        return orjson.dumps(
            {
                "format": FORMAT,
                "run_id": document.run_id,
                "time_ms": document.time_ms,
                # JSON has no NaN and no infinity: a gauge that an application set to one is left out.
                "metrics": [row for row in document.metrics.rows() if all(map(math.isfinite, row[4]))],
                "reached": _rows(document.reached),
                **({"driver": document.driver} if document.driver else {}),
                **({"now_at": _rows(document.now_at)} if document.now_at else {}),
                **({"work": msgspec.to_builtins(document.work)} if document.work != RunWork() else {}),
            }
        )

    def decode(self, data: bytes) -> ShownRun:
        with decoding(self.damage):
            fields = self._convert(_RunFields, data)
            metrics = Snapshot.of_rows(fields.metrics)
            reached, now_at = _positions(fields.reached), _positions(fields.now_at)
            return ShownRun(fields.run_id, fields.time_ms, metrics, reached, fields.driver, now_at, fields.work)


def _rows(positions: Mapping[tuple[int, SystemStreamPartition], int]) -> list[_Row]:
    return [(task, ssp.system, ssp.stream, ssp.partition, offset) for (task, ssp), offset in sorted(positions.items())]


def _positions(rows: list[_Row]) -> dict[tuple[int, SystemStreamPartition], int]:
    return {
        (task, SystemStreamPartition(system, stream, partition)): offset
        for task, system, stream, partition, offset in rows
    }


@dataclass(frozen=True, slots=True)
class Outage:
    """A system that a run waits for."""

    since_ms: int
    """The first time that it did not answer, in epoch milliseconds."""
    reason: str
    """The system, its place, the request to it, and why there is no answer, as of the last try."""

    def __str__(self) -> str:
        return f"waits since {utc_text(self.since_ms)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RunOutage:
    """The outage of a run. None: the run waits for nothing."""

    run_id: str
    outage: Outage | None


def outage_board(objects: ObjectStore, paths: JobPaths) -> Board[RunOutage]:
    """The board that the driver replaces whenever the outage has changed."""
    damage = "does not hold what a run waits for. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "outage"), RunOutage, damage)


@dataclass(frozen=True, slots=True)
class RunPhase:
    """The phase of a run: see `Job.phase`."""

    run_id: str
    phase: str
    since_ms: int
    """The begin of the phase, in epoch milliseconds."""
    driver: str
    """The token of the driver's lease: a start after a crash keeps the id of the run."""
    progress: str = ""
    """The progress of a restore, a bootstrap or a publication, in words; empty in other phases."""


def phase_board(objects: ObjectStore, paths: JobPaths) -> Board[RunPhase]:
    """The board that the driver replaces whenever the phase or its progress has changed."""
    damage = "does not hold the phase of a run. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "phase"), RunPhase, damage)


logger = logging.getLogger(__name__)
_LONGEST = 4_000
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a run ended."""

    since_ms: int | None
    """The end of the run in epoch milliseconds. For a driver that is gone, its last sign of life; None if unknown."""
    error: str
    """The error's message, without its traceback."""
    place: str | None = None
    """The message, timer or start at which the application failed, in words; None if something else did."""
    traceback: str | None = None
    """The end of the application's traceback; None if something else failed."""

    @classmethod
    def of(cls, error: BaseException, now_ms: int) -> Failure:
        """The failure of a run that an error ends now."""
        if isinstance(error, UserCodeError):
            failed = error.failed
            traceback = _storable(without_secrets(failed.traceback)[-_LONGEST:])
            return cls(now_ms, _storable(failed.reason), _storable(failed.place), traceback)
        name = "" if isinstance(error, PenstockError) else f"{type(error).__name__}: "
        return cls(now_ms, _storable(f"{name}{error}"))


def _storable(text: str) -> str:
    """The text cut to a sensible length, without secrets, and without the lone surrogates that a file name in a message
    may have."""
    return without_secrets(text)[:_LONGEST].encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The failure of a start, and the epoch of the log's last claim then: its own, or the one before if it failed
    before it claimed the log; 0 in an empty log."""

    epoch: Count
    failure: Failure
    driver: str = ""
    """The token of the driver's lease; empty if an earlier Penstock wrote the words."""


def failure_board(objects: ObjectStore, paths: JobPaths) -> Board[RunFailure]:
    """The board for the last words of runs. Use `put_failure` and `failure_of`."""
    damage = "does not hold why a run failed. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "failure"), RunFailure, damage)


def put_failure(board: Board[RunFailure], words: RunFailure) -> None:
    """Show the failure of a start, unless a later epoch has failed as well: the words of a replaced driver must not
    hide those of the newer run. Raises RetryableError."""
    for _ in range(_TRIES):
        if board.put(words, unless=lambda found: found.epoch > words.epoch):
            return


def failure_of(board: Board[RunFailure], epoch: int, gone: str | None = None) -> Failure | None:
    """The failure of the last start, if it wrote one. The next claim of the job makes it a thing of the past.

    Args:
        board: the board that holds the words.
        epoch: the epoch of the log's last claim; 0 in an empty log.
        gone: the token of a lease whose driver has not given it back. The words of another driver are older.

    Raises:
        As `Board.get`.
    """
    found = board.get()
    if found is None or found.epoch != epoch or (gone is not None and found.driver not in ("", gone)):
        return None
    return found.failure


class LastWords:
    """Writes the failure of a run while its driver still holds the lease. An exit callback for an `ExitStack`.

    Nothing depends on the words. If the process dies before they are written, the lease shows that it is gone. If the
    job root takes nothing any more, they are left on the host, where the lease's token tells whose they are.
    """

    def __init__(
        self,
        board: Board[RunFailure],
        lease: Lease,
        epoch: Callable[[], int],
        *,
        stops: type[Exception] | tuple[()] = (),
        on_host: Callable[[bytes], None] | None = None,
    ) -> None:
        """
        Args:
            board: the board that holds the words.
            lease: the lease of the run.
            epoch: the epoch of the log's last claim, at the end of the run.
            stops: the error of a run that somebody stopped: it is no failure.
            on_host: keeps words that the job root does not take.
        """
        self._board = board
        self._lease = lease
        self._stops = stops
        self._on_host = on_host
        self._epoch = epoch

    def __call__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.say(error)

    def say(self, error: BaseException) -> None:
        """Show the error, if it is a failure: Ctrl-C is none. A driver that has lost its lease writes nothing, because
        the job is another driver's, or its folder was deleted."""
        if not isinstance(error, Exception) or isinstance(error, self._stops) or self._lease.lost is not None:
            return
        failure = Failure.of(error, SYSTEM_CLOCK.now_ms())
        try:
            words = RunFailure(self._epoch(), failure, self._lease.state.token)
            try:
                put_failure(self._board, words)
            except PenstockError as failed:
                if self._on_host is None:
                    raise
                self._on_host(self._board.encode(words))
                logger.warning(
                    "`penstock status` says why this run failed on this host alone, because the job root took no more "
                    "words: %s",
                    failed,
                )
        except Exception as failed:  # no error here may hide the failure of the run
            logger.warning(
                "`penstock status` will not say why this run failed, because that was not written: %s", failed
            )
