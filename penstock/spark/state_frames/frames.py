"""The state of a job as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from penstock.admin.jobs import FoundJob, open_all_jobs, open_job
from penstock.admin.state.serdes import store_serdes
from penstock.admin.state.version import choose_versions
from penstock.admin.table import refuse_side_stores
from penstock.application.application import Application
from penstock.base.wording import listed
from penstock.checkpoint.record import CheckpointRecord, StoreLayout
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.spark.state_frames.columns import ColumnSource, Function, GivenType, StateColumns, column_of
from penstock.spark.state_frames.processor_state import is_state_variable, variable_columns
from penstock.spark.state_frames.stored_state import ReadChanges, ReadEntries, StoreSource
from penstock.spark.versions import map_in_arrow
from penstock.state.reading.reader import check_store

_SHOWN = 10
_TASK = StructField("task", IntegerType(), nullable=False)


def read_state(
    spark: SparkSession,
    root: str,
    store: str,
    checkpoint: str | int = "latest",
    *,
    job: str | None = None,
    app: Application | None = None,
    key_type: GivenType | None = None,
    value_type: GivenType | None = None,
    key_function: Function | None = None,
    value_function: Function | None = None,
    backend: str | None = None,
    config: Mapping[str, object] | None = None,
) -> DataFrame:
    """A store of a job as of a retained checkpoint: one row for each entry, with the columns task, key and value.

    The checkpoint is chosen now; the DataFrame is lazy and shows that checkpoint whenever it is used. Each task of the
    job is a partition: an executor restores it from the job's backups to its scratch folder, and reads it there. A
    running job is not disturbed. If it stops retaining the checkpoint meanwhile, the DataFrame raises an error that
    says so.

    Keys and values of Penstock's serdes have the types that follow from them: `String` STRING, `Integer` INT, `Long`
    BIGINT, `Double` DOUBLE, `Bytes` BINARY, `Json` STRING (the JSON's text), `Tuple` a struct with the fields `_1` and
    so on. Keys and values with another serde are BINARY, unless `app` and a type are given. The state variables of a
    `StatefulProcessor` have the types that the processor declared: key is a struct of the grouping key, and value is a
    struct, for a list an array of structs, or for a map one entry, with the column `user_key` before it.

    Args:
        spark: the session.
        root: `job.root` of the job.
        store: the name of the store.
        checkpoint: the id of a checkpoint, the number of its batch, `latest`, or `latest-N`, the N-th before it. A job
            inside a query counts from 1: its batch is the one with the query's number + 1.
        job: the job, as `name` or `name-id`. It may be left out if the root has only one.
        app: the application of the job. It is needed for serdes that are not Penstock's.
        key_type, value_type: the Spark type of a column: a `DataType`, or a text such as "name STRING, visits LONG". An
            object of JSON, and a tuple, fits a struct. BINARY is always the stored bytes.
        key_function, value_function: a function of each decoded key or value (or of its bytes, if its serde is not
            known) that returns the column's value. The type of the column is then required.
        backend: the backend to restore from; the first one that can, if None.
        config: further keys of the job's configuration, such as systems that hold changelogs, and settings of backends.

    Returns:
        the DataFrame. Its rows are in the order of the keys' bytes within each partition.

    Raises:
        NotFoundError: there is no such job or store, or the checkpoint is not retained. The message lists those that
            exist.
        ConfigError: the root has several jobs and none is named, or a type does not fit the serdes.

    Example::

        visits = pss.read_state(spark, root, "visits", value_type="count LONG, last STRING")
        visits.groupBy().sum("value.count").show()
    """
    given = _GivenTypes(app, key_type, value_type, key_function, value_function)
    with _job(root, job, config) as found:
        (record,) = _records(found, store, [str(checkpoint)])
        source = StoreSource(found.config, found.paths, store, backend)
        keys, value, columns = given.columns(record, store)
    schema = StructType([_TASK, *keys, value])
    return _by_task(spark, record, ReadEntries(source, record, columns), schema)


def read_changes(
    spark: SparkSession,
    root: str,
    store: str,
    from_checkpoint: str | int,
    to_checkpoint: str | int = "latest",
    *,
    job: str | None = None,
    app: Application | None = None,
    key_type: GivenType | None = None,
    value_type: GivenType | None = None,
    key_function: Function | None = None,
    value_function: Function | None = None,
    backend: str | None = None,
    config: Mapping[str, object] | None = None,
) -> DataFrame:
    """The differences in a store between two retained checkpoints: one row for each entry that was added, changed or
    removed, with the columns change, task, key, before and after.

    `change` is `added`, `changed` or `removed`. `before` is null for an added entry, `after` for a removed one. The
    values that entries had between the two checkpoints are not shown. Everything else is as in `read_state`. A task
    whose state did not change is not restored.

    Args:
        spark: the session.
        root: `job.root` of the job.
        store: the name of the store.
        from_checkpoint, to_checkpoint: the checkpoints, as in `read_state`.
        job, app, key_type, value_type, key_function, value_function, backend, config: as in `read_state`.

    Raises:
        NotFoundError, ConfigError: as `read_state`.
        IncompatibleError: the store has other serdes, or the job another number of tasks, at one checkpoint than at the
            other.

    Example::

        changes = pss.read_changes(spark, root, "visits", "latest-1", "latest")
        changes.where("change = 'removed'").select("key", "before").show()
    """
    given = _GivenTypes(app, key_type, value_type, key_function, value_function)
    with _job(root, job, config) as found:
        before, after = _records(found, store, [str(from_checkpoint), str(to_checkpoint)])
        _check_comparable(before, after, store)
        source = StoreSource(found.config, found.paths, store, backend)
        keys, value, columns = given.columns(after, store)
    values = [StructField(name, value.dataType) for name in ("before", "after")]
    schema = StructType([StructField("change", StringType(), nullable=False), _TASK, *keys, *values])
    return _by_task(spark, after, ReadChanges(source, before, after, columns), schema)


class _GivenTypes:
    """The caller's types and functions for keys and values."""

    def __init__(
        self,
        app: Application | None,
        key_type: GivenType | None,
        value_type: GivenType | None,
        key_function: Function | None,
        value_function: Function | None,
    ) -> None:
        self._app = app
        self._key = (key_type, key_function)
        self._value = (value_type, value_function)

    def columns(self, record: CheckpointRecord, store: str) -> tuple[list[StructField], StructField, StateColumns]:
        layout = StoreLayout.parse(record.stores[store])
        if is_state_variable(layout) and not any((*self._key, *self._value)):
            return variable_columns(store, layout, DataType.fromDDL)
        serdes = store_serdes(record, store, self._app)
        key, keys = column_of(ColumnSource("key", store, serdes.key_name, serdes.key, *self._key))
        value, values = column_of(ColumnSource("value", store, serdes.value_name, serdes.value, *self._value))
        columns = StateColumns(store, (("key", keys),), values)
        return [StructField("key", key)], StructField("value", value), columns


@contextmanager
def _job(root: str, name: str | None, config: Mapping[str, object] | None) -> Iterator[FoundJob]:
    overrides = {**(config or {}), "job.root": str(root)}
    if name is None:
        name = _only_job(root, overrides)
    with open_job(name, overrides=overrides) as found:
        yield found


def _only_job(root: str, overrides: Mapping[str, object]) -> str:
    with open_all_jobs(overrides=overrides) as jobs:
        names = [found.paths.root for found in jobs]
    if not names:
        raise NotFoundError(f"there is no job in `{root}`: give the `job.root` of the job")
    if len(names) > 1:
        shown = listed([f"`{name}`" for name in names[:_SHOWN]])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ConfigError(f"`{root}` has {len(names)} jobs: {shown}{more}. Name one, as in job={names[0]!r}")
    return names[0]


def _records(found: FoundJob, store: str, versions: Sequence[str]) -> list[CheckpointRecord]:
    records = choose_versions(found, versions)
    for record in records:
        refuse_side_stores(found, record, [store])
        check_store(record, store)
    return records


def _check_comparable(before: CheckpointRecord, after: CheckpointRecord, store: str) -> None:
    if before.task_count != after.task_count:
        raise IncompatibleError(
            f"checkpoint {before.id} has {before.task_count} tasks and {after.id} has {after.task_count}: the job was "
            "started with other tasks in between. Read both with `read_state`, and join them by key"
        )
    old, new = (StoreLayout.parse(record.stores[store]) for record in (before, after))
    if (old.key, old.value) != (new.key, new.value):
        raise IncompatibleError(
            f"store `{store}` has the serdes `{old.key}` and `{old.value}` at checkpoint {before.id}, and `{new.key}` "
            f"and `{new.value}` at {after.id}. Read both with `read_state`, and join them by key"
        )


def _by_task(
    spark: SparkSession,
    record: CheckpointRecord,
    function: Callable[[Any], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    tasks = record.task_count
    return map_in_arrow(spark.range(0, tasks, 1, tasks), function, schema)
