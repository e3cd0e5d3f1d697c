"""The plan of a job that runs inside a streaming query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.spark.query.binding import FromCheckpoint
from penstock.spark.query.outputs import RowWriter
from penstock.spark.query.source import FrameReader

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
