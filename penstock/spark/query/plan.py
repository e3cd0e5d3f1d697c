"""The plan of a job that runs inside a streaming query, and the query and the batch that the state in a root belongs
to.

Whether a query may continue from a state, and with which batch, is decided from values alone: `bind`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.base.wording import listed
from penstock.batch.batch import QUERY, to_positions
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.spark.query.rows import FrameReader, RowWriter
from penstock.system.spark import queries_of

FromCheckpoint: TypeAlias = Literal["matching"] | None
"""The checkpoint that a query continues from if its checkpoint location was set back; None: none."""
_OPTION = '`from_checkpoint="matching"`'


@dataclass(frozen=True, slots=True)
class QueryBatchRequest:
    """The batch that a query begins with."""

    query: str
    """The id of the query, which its checkpoint location keeps."""
    number: int
    plan: str = ""
    """Distinguishes the batch from others of its number; empty: not known."""
    before: str = ""
    """The plan of the batch before it."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The state that the query continues from."""

    tasks: int | None = None
    """Number of tasks of the job; None: it is chosen now, because the job has no checkpoint."""
    record: CheckpointRecord | None = None
    """The checkpoint to go back to; None: the newest one."""


def bind(
    view: LogView,
    job: str,
    root: str,
    asked: QueryBatchRequest,
    partitions: int | None,
    chosen: FromCheckpoint = None,
    *,
    begins_here: bool = False,
) -> Binding:
    """Find the state that the batch continues.

    Args:
        view: the job's checkpoint log.
        job: its name, as in commands.
        root: `job.root`.
        asked: the batch that the query begins with.
        partitions: how many tasks the program asks for.
        chosen: "matching": the retained checkpoint of the batch before, if the newest one does not fit.
        begins_here: True if a job without any checkpoint may begin with a later batch than the first.

    Raises:
        IncompatibleError: the state belongs to another query, is of another batch, or has another number of tasks.
    """
    latest = view.latest
    if latest is None:
        if asked.number > 0 and (view.faults or not begins_here):
            raise _no_state(job, root, asked)
        return Binding()
    _check_query(latest, job, root, asked)
    record = latest
    back = None
    if not _fits(latest, asked) or (chosen and view.faults):
        back = matching(view.restorable, asked)
        if chosen is None or back is None:
            raise _wrong_batch(job, latest, asked, view)
        record = back
    if partitions not in (None, record.task_count):
        raise IncompatibleError(
            f"partitions={partitions}, and the state of job {job} has {record.task_count}: each key has its state in "
            f"one of them. Nothing was started. Set partitions={record.task_count}, or leave it out"
        )
    return Binding(record.task_count, back)


def _check_query(latest: CheckpointRecord, job: str, root: str, asked: QueryBatchRequest) -> None:
    """Raise IncompatibleError unless the checkpoint is this query's."""
    bound = queries_of(latest.identities)
    if not bound:
        raise IncompatibleError(
            f"job {job} in {root} runs by itself, and not inside a streaming query: give the query another root, or "
            "another name"
        )
    if other := sorted(bound - {asked.query}):
        raise _other_query(job, root, other[0], asked)


def reached_batch(record: CheckpointRecord) -> int:
    """The last batch of the query that the state has seen."""
    return min(to_positions(record.next_offsets).values()) - 1


def matching(retained: Sequence[CheckpointRecord], asked: QueryBatchRequest) -> CheckpointRecord | None:
    """The newest of these checkpoints, oldest first, of the batch before the requested one.

    Never a later one, and neither one of a batch of that number from before the checkpoint location was set back.
    """
    own = (record for record in retained if queries_of(record.identities) == {asked.query})
    return next((record for record in reversed([*own]) if _is_before(record, asked)), None)


def _fits(latest: CheckpointRecord, asked: QueryBatchRequest) -> bool:
    """True if the batch is the next after the newest checkpoint, or the batch that this checkpoint holds the output
    of."""
    return _is_before(latest, asked) or _is_again(latest, asked)


def _is_before(record: CheckpointRecord, asked: QueryBatchRequest) -> bool:
    return reached_batch(record) == asked.number - 1 and _same(record, asked.before)


def _is_again(latest: CheckpointRecord, asked: QueryBatchRequest) -> bool:
    offered = latest.section(QUERY).offered
    has_output = offered is None or offered.has_output
    return reached_batch(latest) == asked.number and has_output and _same(latest, asked.plan)


def _same(record: CheckpointRecord, plan: str) -> bool:
    """True if the record's batch is the planned one, as far as both are known."""
    offered = record.section(QUERY).offered
    known = "" if offered is None else offered.plan
    return not known or not plan or known == plan


def _no_state(job: str, root: str, asked: QueryBatchRequest) -> IncompatibleError:
    return IncompatibleError(
        f"the query {asked.query} asks for batch {asked.number}, and {root} has no state of job {job}: the state of "
        "the batches before was deleted, or is in another root, or under another name. Nothing was started. If the "
        "root or the name of the job was changed, set it back; without `name=`, the name is that of the processor's "
        "class or of the application. If the state is lost, or there never was any, start the "
        "query with a new checkpoint location: it then reads its sources from the beginning. Or let it begin with "
        'empty state at this batch: begin_at="here"'
    )


def _other_query(job: str, root: str, bound: str, asked: QueryBatchRequest) -> IncompatibleError:
    if asked.number == 0:
        how = (
            "This one is new: another query uses the same root and name, or its checkpoint location was changed or "
            "deleted"
        )
        out = "To begin from nothing, give it another root or another name, or delete the state with the checkpoint"
    else:
        how, out = "Two queries use the same root and name", "Or give this one another root, or another name"
    return IncompatibleError(
        f"the state of job {job} in {root} belongs to the query {bound}, and this is the query {asked.query}. {how}. "
        f"Nothing was started. Give the query the checkpoint location that the state belongs to. {out}"
    )


def _wrong_batch(job: str, latest: CheckpointRecord, asked: QueryBatchRequest, view: LogView) -> IncompatibleError:
    retained, faulty = view.restorable, bool(view.faults)
    reached, number = reached_batch(latest), asked.number
    if faulty:
        how = "the end of the checkpoint log is damaged"
    elif number > reached + 1:
        how = "its checkpoint location is newer than the state"
    elif number == reached + 1:
        how = f"its checkpoint location was set back, and its batch {reached} is not the one that the state has seen"
    else:
        how = "its checkpoint location was set back"
    back = matching(retained, asked)
    if back is None:
        how_to = (
            f"Restore a checkpoint location and a root that belong together. {_OPTION} would continue from a "
            f"checkpoint of batch {number - 1} of this checkpoint location, but none is retained "
            f"(`task.checkpoint.retained`). Those retained are of "
            f"{_batches({reached_batch(each) for each in retained})}"
        )
    else:
        how_to = (
            f"Restore the checkpoint location as it was; or continue from checkpoint {back.id}, which is of batch "
            f"{number - 1}, with {_OPTION}: everything processed since is then processed again"
        )
    return IncompatibleError(
        f"the state of job {job} is at batch {reached}, and the query asks for batch {number}: {how}. Nothing was "
        f"changed. {how_to}"
    )


def _batches(numbers: Collection[int]) -> str:
    """Numbers of batches, in words; -1 is the state before the first one."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1 >= 0:
            runs[-1].append(number)
        else:
            runs.append([number])
    named = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs if run != [-1]]
    batches = [f"{'batches' if len(named) > 1 or ' ' in named[0] else 'batch'} {listed(named)}"] if named else []
    return listed([*(["the time before the first batch"] if -1 in numbers else []), *batches])


_NEVER_MS = str(10 * 365 * 86_400_000)


@dataclass(frozen=True, slots=True)
class QueryInput:
    """A conversion of a DataFrame's rows to messages of the stream `spark.<name>`."""

    name: str
    reader: FrameReader
    first: Callable[[DataFrame], DataFrame] | None = None
    """Makes the DataFrame that the job's first batch reads in place of the rows."""

    def of(self, rows: DataFrame, *, is_first: bool) -> DataFrame:
        return rows if self.first is None or not is_first else self.first(rows)


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """A conversion of messages that are sent to `spark.<name>` to rows."""

    name: str
    schema: StructType
    writer: RowWriter


class FormerState(Protocol):
    """State that PySpark may have kept where the query continues."""

    def run(self, spark: SparkSession, location: str, config: JobConfig, partitions: int | None) -> None:
        """Take it over, before the query starts. Idempotent.

        Args:
            spark: the session.
            location: the query's checkpoint location.
            config: the job's.
            partitions: how many tasks the job has; None: as many as Spark runs at once.
        """


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A job that runs inside a query."""

    graph: ApplicationGraph
    inputs: Sequence[QueryInput]
    outputs: Sequence[QueryOutput]
    root: str
    partitions: int | None = None
    """The number of tasks of a job without a checkpoint; None: as many as Spark runs at once, and one for each input at
    least."""
    config: Mapping[str, object] = field(default_factory=dict)
    timed: bool = False
    """True if something may be due in the job without new rows."""
    takeover: FormerState | None = None
    from_checkpoint: FromCheckpoint = None
    """The checkpoint that the job goes back to, if the query's checkpoint location was set back."""
    begins_here: bool = False
    """True if a job without a checkpoint may begin with any batch of the query."""

    def settings(self) -> JobConfig:
        """Raises ConfigError."""
        if self.from_checkpoint not in (None, "matching"):
            raise ConfigError(f'from_checkpoint={self.from_checkpoint!r}: it is "matching", or not given')
        chosen: dict[str, object] = {
            "systems.spark.samza.factory": "penstock.system.spark:QuerySystem",
            "job.watermark.max.ahead.ms": _NEVER_MS,  # Spark leaves no event time out
            "task.commit.ms": _NEVER_MS,  # every batch is committed by itself
            "job.root": self.root,
        }
        for source in self.inputs:
            chosen[f"streams.spark.{source.name}.samza.offset.default"] = "oldest"
        for output in self.outputs:
            chosen[f"streams.spark.{output.name}.output.guarantee"] = "exactly-once"
        idle = {f"streams.spark.{source.name}.idle.ms" for source in self.inputs}
        own = [
            key
            for key in self.config
            if key in chosen or (key.startswith(("streams.spark.", "systems.spark.")) and key not in idle)
        ]
        if own:
            raise ConfigError(f"`{min(own)}` cannot be configured: Penstock sets it for a job inside a query")
        if "job.dashboard.port" in self.config:
            raise ConfigError("`job.dashboard.port`: a query serves no page; `penstock dashboard` shows its job")
        if of_spark := [key for key in self.config if key.startswith("spark.")]:
            raise ConfigError(f"`{min(of_spark)}` is a key of Spark: set it in your Spark session")
        stores = [store.name for store in self.graph.stores]
        return load_config(overrides={**chosen, **self.config}, default_job_name=self.graph.name, stores=stores)
