"""Taking over the state of a query of PySpark's transformWithState, before the query is started."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.admin.state.store_uploads import FirstState, first_record, write_first_state
from penstock.api.time.firing import timers_store
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_values import Markers
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, IncompatibleError, PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.spark import state_from_spark as from_spark
from penstock.spark.processor.task import ProcessorSpec
from penstock.spark.query.checkpoint_location import CheckpointLocation, plan_of
from penstock.spark.query.plan import reached_batch
from penstock.spark.session.gateway import cause_of
from penstock.spark.state_import.checkpoint import OperatorFacts, SparkCheckpoint
from penstock.state.outside_backup import FirstBackup
from penstock.system.contract.definition import QUERY_SYSTEM

logger = logging.getLogger(__name__)

_OPERATOR = "transformWithState"
_NO_TIME = "NoTime"
"""Spark's word for the time mode that its users call "None"."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """The fate of PySpark's state in the checkpoint location."""

    graph: ApplicationGraph
    processor: ProcessorSpec
    imports: bool
    begins_here: bool

    def run(self, spark: SparkSession, location: str, config: JobConfig, partitions: int | None) -> None:
        """Do it. Nothing happens if PySpark has no state there. Idempotent: the same call continues after a
        process that died, and does nothing later.

        Args:
            location: the query's checkpoint location.
            config: the job's.
            partitions: how many tasks the job has; None: as many as Spark runs at once.

        Raises:
            IncompatibleError: the state does not fit the processor, belongs to another query, or was not asked for.
            ConfigError: the checkpoint location cannot be read, or there is nothing in it to take over.
        """
        folder = CheckpointLocation(spark, location)
        if self.imports and not folder.has_begun():
            raise _nothing_to_import(location)
        known = folder.operators()
        if not known and not self.begins_here:
            return
        checkpoint = SparkCheckpoint(folder, folder.url)
        has_committed = bool(folder.list("commits"))
        last = checkpoint.committed() if has_committed else 0
        operators = [each for each in known if _is_processor(checkpoint.operator(each, last))]
        if not operators and not (self.begins_here and has_committed):
            return  # the state that there is belongs to the DataFrame's plan, or Spark refuses it
        batch = checkpoint.committed()
        if not (self.imports or self.begins_here):
            raise _not_asked_for(folder.url, batch)
        if operators and len(known) > 1:
            raise _not_alone(folder.url, known)
        latest = first_record(config)
        if operators and folder.is_read():
            raise _still_running(folder.url)
        if latest is None:
            tasks = partitions or spark.sparkContext.defaultParallelism
            self._begin(spark, checkpoint, operators, batch, config, tasks)
        elif operators:
            _check_bound(latest, checkpoint, batch, config)
        for operator in operators:
            folder.set_aside(operator, batch)

    def _begin(
        self,
        spark: SparkSession,
        checkpoint: SparkCheckpoint,
        operators: list[int],
        batch: int,
        config: JobConfig,
        tasks: int,
    ) -> None:
        counts: dict[str, int] = {}
        try:
            state = self._first_state(spark, checkpoint, operators, batch, config, tasks, counts)
            record = write_first_state(state)
        except (Py4JJavaError, PySparkException) as error:
            cause = cause_of(error)
            if "_stateSchema" in cause:  # by its whole path
                cause += ". Put the checkpoint location back where PySpark had it: Spark finds the schema nowhere else"
            raise PenstockError(
                f"the state of {checkpoint.url} was not taken over, and nothing was changed: {cause}"
            ) from error
        logger.info(
            "the query of %s continues after batch %d with %s, in checkpoint %s",
            checkpoint.url,
            batch,
            ", ".join(f"{count} entries of {store}" for store, count in sorted(counts.items())),
            record.id,
        )

    def _first_state(
        self,
        spark: SparkSession,
        checkpoint: SparkCheckpoint,
        operators: list[int],
        batch: int,
        config: JobConfig,
        tasks: int,
        counts: dict[str, int],
    ) -> FirstState:
        """The state that the job begins with. Its backup adds the number of entries of each store to `counts`."""
        sources: Mapping[str, from_spark.StateRowsSource] = {}
        if self.imports:
            reader, sources = self.sources(spark, checkpoint, operators[0], batch)
            spark = reader.spark

        def backed_up(first: FirstBackup) -> dict[int, Markers]:
            found, entries = from_spark.back_up(spark, sources, self._heads(sources), first)
            counts.update(entries)
            return found

        return FirstState(
            graph=self.graph,
            config=config,
            query=checkpoint.query_id(),
            batch=batch,
            plan=plan_of(checkpoint.files.get(f"offsets/{batch}")),
            tasks=tasks,
            stores=tuple(each.name for each in self.graph.written_stores),
            back_up=backed_up,
            batches=batch + 1 if self.imports else 0,
        )

    def sources(
        self, spark: SparkSession, checkpoint: SparkCheckpoint, operator: int, batch: int
    ) -> tuple[from_spark.SparkReader, dict[str, from_spark.StateRowsSource]]:
        facts = checkpoint.operator(operator, batch)
        self._check(facts, checkpoint.url)
        checkpoint.check_last_partition(facts)
        has_ids = checkpoint.has_checkpoint_ids(operator, batch)
        reader = from_spark.SparkReader(spark, checkpoint.url, operator, batch, has_ids=has_ids)
        spec = self.processor
        found: dict[str, from_spark.StateRowsSource] = {}
        for variable in spec.declared.variables:
            if variable.name in facts.variables:  # any other one is new
                rows = reader.variable(variable.name)
                found[variable.name] = from_spark.StateRowsSource(
                    rows, from_spark.variable_entries(spec, variable, rows.schema)
                )
        if from_spark.TIMERS.get(spec.mode) in facts.variables:
            found[timers_store(spec.operator)] = from_spark.StateRowsSource(
                reader.timers(), from_spark.TimerEntries(spec.key, spec.mode)
            )
        return reader, found

    def _heads(self, sources: Mapping[str, from_spark.StateRowsSource]) -> dict[str, dict[bytes, bytes]]:
        variables = self.processor.declared.variables
        return {each.name: from_spark.heads(each) for each in variables if each.name in sources}

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
            if (
                own is None
                or own.kind != from_spark.KINDS.get(kind)
                or (own.ttl_ms is not None) != (name in facts.expiring)
            ):
                ttl = "with" if name in facts.expiring else "without"
                raise IncompatibleError(
                    f"the query of {url} has the state variable `{name}`, a {kind} {ttl} a time to live, and the "
                    f"processor declares {'no such variable' if own is None else own.layout()}: declare it as it is. "
                    "Nothing was changed"
                )


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
    """True if a stateful operator is PySpark's in the place of the processor. Spark's others are in the plan of the
    DataFrame that the processor gets."""
    return operator.name.startswith(_OPERATOR)


def _nothing_to_import(location: str) -> ConfigError:
    return ConfigError(
        f"import_state=True, and the checkpoint location {location} has had no batch, so there is no state of PySpark "
        "in it. Nothing was started. Give the query the checkpoint location that it had in PySpark. A new query begins "
        "without import_state"
    )


def _not_asked_for(url: str, batch: int) -> IncompatibleError:
    return IncompatibleError(
        f"the checkpoint location {url} has the state that PySpark kept until batch {batch}. Take it over with "
        'transform_with_state(..., import_state=True), or begin without it with begin_at="here". Nothing was started'
    )


def _not_alone(url: str, known: Sequence[int]) -> IncompatibleError:
    return IncompatibleError(
        f"the query of {url} has the stateful operators {known}: without {_OPERATOR}, Spark would give the others "
        f"different numbers, and find no state of theirs. A query can continue here if {_OPERATOR} is its only one. "
        "Nothing was started"
    )


def _still_running(url: str) -> IncompatibleError:
    return IncompatibleError(
        f"the query of {url} is running in this program: it would have more batches while its state is taken over, and "
        "these would be missing. Nothing was started. Stop it first, and wait until it has ended"
    )
