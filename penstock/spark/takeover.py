"""Taking over the state of a query of PySpark's transformWithState, before the query is started."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from penstock.admin.state.query_state import Fill, FirstState, Put, first_record, write_first_state
from penstock.api.graph import ApplicationGraph
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.model import JobConfig
from penstock.engine.query.binding import reached_batch
from penstock.engine.query.offsets import OffsetLog, plan_of
from penstock.errors import ConfigError, IncompatibleError
from penstock.metadata.open import open_store
from penstock.spark.processor.from_spark import (
    KINDS,
    TIMERS,
    Convert,
    heads,
    timer_entries,
    timers_of,
    variable_entries,
)
from penstock.spark.processor.task import ProcessorSpec
from penstock.state.spark.checkpoint import DEFAULT_STORE, OperatorFacts, SparkCheckpoint
from penstock.state.spark.reader import SparkState, open_state
from penstock.system.partitioner import partition_of
from penstock.system.query import QUERY_SYSTEM

logger = logging.getLogger(__name__)

_OPERATOR = "transformWithState"
_NO_TIME = "NoTime"
"""Spark's word for the time mode that its users call "None"."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """What is to become of the state that PySpark has in the checkpoint location."""

    graph: ApplicationGraph
    processor: ProcessorSpec
    imports: bool
    """Whether the state is taken over."""
    begins_here: bool
    """Whether the query continues without it."""

    def run(self, spark: SparkSession, location: str, config: JobConfig, partitions: int | None, scratch: Path) -> None:
        """Do it. Nothing happens if PySpark has no state there. What was done stays done: the same call continues after
        a process that died, and does nothing later.

        Args:
            location: the query's checkpoint location.
            config: the job's.
            partitions: how many tasks the job has; None: as many as Spark runs at once.
            scratch: a folder on this machine that does not outlive the program, however that ends.

        Raises:
            IncompatibleError: the state does not fit the processor, belongs to another query, or was not asked for.
            ConfigError: the checkpoint location cannot be read, or there is nothing in it to take over.
        """
        folder = _Location(spark, location)
        if self.imports and not folder.has_begun():
            raise ConfigError(
                f"import_state=True, and the checkpoint location {location} has had no batch, so there is no state of "
                "PySpark in it. Nothing was started. Give the query the checkpoint location that it had in PySpark. A "
                "new query begins without import_state"
            )
        known = folder.operators()
        if not known and not self.begins_here:
            return
        url = folder.url()
        files = open_store(url)
        with closing(files):
            checkpoint = SparkCheckpoint(files, url)
            has_committed = bool(files.list("commits"))
            last = checkpoint.committed() if has_committed else 0
            operators = [each for each in known if _is_processor(checkpoint.operator(each, last))]
            if not operators and not (self.begins_here and has_committed):
                return  # the state that there is belongs to the DataFrame's plan, or Spark refuses it
            batch = checkpoint.committed()
            if not (self.imports or self.begins_here):
                raise IncompatibleError(
                    f"the checkpoint location {url} has the state that PySpark kept until batch {batch}. Take it over "
                    'with transform_with_state(..., import_state=True), or begin without it with begin_at="here". '
                    "Nothing was started"
                )
            if operators and len(known) > 1:
                raise IncompatibleError(
                    f"the query of {url} has the stateful operators {known}: without {_OPERATOR}, Spark would give "
                    "the others different numbers, and find no state of theirs. A query can continue here if "
                    f"{_OPERATOR} is its only one. Nothing was started"
                )
            latest = first_record(config)
            if operators and folder.is_read():
                raise IncompatibleError(
                    f"the query of {url} is running in this program: it would have more batches while its state is "
                    "taken over, and these would be missing. Nothing was started. Stop it first, and wait until it "
                    "has ended"
                )
            if latest is None:
                tasks = partitions or spark.sparkContext.defaultParallelism
                self._begin(checkpoint, operators, batch, config, tasks, scratch)
            elif operators:
                _check_bound(latest, checkpoint, batch, config)
        for operator in operators:
            folder.set_aside(operator, batch)

    def _begin(
        self,
        checkpoint: SparkCheckpoint,
        operators: list[int],
        batch: int,
        config: JobConfig,
        tasks: int,
        scratch: Path,
    ) -> None:
        counts: Counter[str] = Counter()
        if self.imports:
            stores = self._found_stores(checkpoint, operators, batch, tasks, counts)
        else:
            stores = {each.name: _nothing for each in self.graph.written_stores}
        made = batch + 1 if self.imports else 0
        plan = plan_of(checkpoint.files.get(f"offsets/{batch}"))
        state = FirstState(self.graph, config, checkpoint.query_id(), batch, plan, tasks, stores, made)
        record = write_first_state(state, scratch)
        logger.info(
            "the query of %s continues after batch %d with %s, in checkpoint %s",
            checkpoint.url,
            batch,
            ", ".join(f"{count} entries of {store}" for store, count in sorted(counts.items())) or "empty state",
            record.id,
        )

    def _found_stores(
        self, checkpoint: SparkCheckpoint, operators: list[int], batch: int, tasks: int, counts: Counter[str]
    ) -> dict[str, Fill]:
        checkpoint.check_batch(batch)
        facts = checkpoint.operator(operators[0], batch)
        self._check(facts, checkpoint.url)
        return self._stores(checkpoint, facts, batch, tasks, counts)

    def _check(self, facts: OperatorFacts, url: str) -> None:
        """Raise IncompatibleError unless the state is that of such a processor."""
        spec = self.processor
        mode = "None" if facts.time_mode == _NO_TIME else facts.time_mode
        if mode.lower() != spec.mode:
            raise IncompatibleError(f'the query of {url} ran with the time mode "{mode}": give time_mode="{mode}"')
        declared = {each.name: each for each in spec.declared.variables}
        for name, kind in facts.variables.items():
            if name.startswith("$") or name in spec.declared.forgotten:
                continue
            own = declared.get(name)
            if own is None or own.kind != KINDS.get(kind) or (own.ttl_ms is not None) != (name in facts.expiring):
                ttl = "with" if name in facts.expiring else "without"
                raise IncompatibleError(
                    f"the query of {url} has the state variable `{name}`, a {kind} {ttl} a time to live, and the "
                    f"processor declares {'no such variable' if own is None else own.layout()}: declare it as it is. "
                    "Nothing was changed"
                )

    def _stores(
        self, checkpoint: SparkCheckpoint, facts: OperatorFacts, batch: int, tasks: int, counts: Counter[str]
    ) -> dict[str, Fill]:
        spec = self.processor

        def opened(variable: str) -> SparkState:
            return open_state(checkpoint, facts.number, DEFAULT_STORE, variable, batch)

        found: dict[str, Fill] = {}
        for variable in spec.declared.variables:
            if variable.name in facts.variables:
                state = opened(variable.name)
                convert, each = variable_entries(spec, variable, state.schema), heads(variable)
                found[variable.name] = _fill(state, convert, each, variable.name, tasks, counts)
            else:
                found[variable.name] = _nothing  # it is new
        if spec.mode != "none":
            timers = timers_of(spec)
            if TIMERS[spec.mode] in facts.variables:
                found[timers] = _fill(opened(TIMERS[spec.mode]), timer_entries(spec), {}, timers, tasks, counts)
            else:
                found[timers] = _nothing
        return found


def _check_bound(latest: CheckpointRecord, checkpoint: SparkCheckpoint, batch: int, config: JobConfig) -> None:
    """Raise IncompatibleError unless the job continues the query after the batch: then a process that took the state
    over did not get any further."""
    bound = {each for stream, each in latest.identities.items() if stream.system == QUERY_SYSTEM}
    if bound != {checkpoint.query_id()} or reached_batch(latest) != batch:
        raise IncompatibleError(
            f"the state that PySpark kept until batch {batch} in {checkpoint.url} cannot be taken over: the root "
            f"{config.job.root} has another checkpoint of this job, {latest.id}. Give the query another root or name. "
            "Nothing was changed"
        )


def _is_processor(operator: OperatorFacts) -> bool:
    """Whether a stateful operator is PySpark's in the place of the processor. Spark's others are in the plan of the
    DataFrame that the processor gets."""
    return operator.name.startswith(_OPERATOR)


def _nothing(put: Put, scratch: Path) -> None:
    """The store begins empty."""


def _fill(
    state: SparkState, convert: Convert, each_task: dict[bytes, bytes], store: str, tasks: int, counts: Counter[str]
) -> Fill:
    state.check()
    decode = state.decoder()

    def fill(put: Put, scratch: Path) -> None:
        for task in range(tasks):
            for key, value in each_task.items():
                put(task, key, value)
        for partition in range(state.store.partitions):
            with closing(state.entries(partition, scratch)) as entries:
                for entry in entries:
                    counts[store] += 1
                    for owner, key, value in convert(*decode(*entry)):
                        put(partition_of(owner, tasks), key, value)

    return fill


class _Location:
    """A checkpoint location, as Spark itself sees it."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001
        self._log = OffsetLog(spark, location)
        self._path = jvm.org.apache.hadoop.fs.Path
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        path = self._path(location)
        self._files = path.getFileSystem(configuration)
        self._root = self._files.makeQualified(path)

    def url(self) -> str:
        """What `open_store` takes. Raises ConfigError if it cannot be read here."""
        text = str(self._root.toString())
        parts = urlsplit(text)
        if parts.scheme == "file":
            return str(self._root.toUri().getPath())
        if parts.scheme in {"s3a", "s3n"}:
            return "s3" + text[3:]
        if parts.scheme not in {"s3", "gs"}:
            raise ConfigError(
                f"the state in {text} cannot be read: state is taken over from folders, s3:// and gs://. Copy the "
                "checkpoint location to one of them"
            )
        return text

    def is_read(self) -> bool:
        """See `OffsetLog.is_read`."""
        return self._log.is_read()

    def has_begun(self) -> bool:
        """Whether the query has had a batch."""
        return bool(self._files.exists(self._at("offsets")))

    def operators(self) -> list[int]:
        """The stateful operators that Spark knows of."""
        state = self._at("state")
        if not self._files.exists(state):
            return []
        names = [str(each.getPath().getName()) for each in self._files.listStatus(state)]
        known = [int(name) for name in names if name.isdigit()]
        return sorted(each for each in known if self._files.exists(self._at(f"state/{each}/_metadata")))

    def set_aside(self, operator: int, batch: int) -> None:
        """Let Spark forget that the query had a stateful operator: it refuses to continue without one otherwise. The
        state remains."""
        target = f"state/{operator}/_metadata.until-{batch}"
        if not self._files.rename(self._at(f"state/{operator}/_metadata"), self._at(target)):
            raise IncompatibleError(f"{self._root.toString()}: state/{operator}/_metadata could not be renamed")

    def _at(self, name: str) -> Any:
        return self._path(self._root, name)
