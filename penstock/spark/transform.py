"""transform_with_state: PySpark's StatefulProcessor on a streaming DataFrame, with its state in Penstock.

The processor is pickled, and becomes an operator of an application, which runs inside the streaming query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isfunction
from typing import Any, Literal, TypeAlias

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructField, StructType

import penstock as ps
from penstock.api.serdes import Bytes
from penstock.application.message_stream import MessageStream
from penstock.base.application_code import Callback
from penstock.batch.watermarks import QueryWatermark
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph, BatchTaskSpec
from penstock.graph.stores import StoreSpec
from penstock.spark.processor.columns import ColumnsProcessor, ColumnsTask, declare_columns
from penstock.spark.processor.declared import DeclaredVariables, TimeMode, declare
from penstock.spark.processor.declared import time_mode as parsed_time_mode
from penstock.spark.processor.rows import check_pandas
from penstock.spark.processor.task import Form, ProcessorSpec, ProcessorTask
from penstock.spark.queries import StreamWriter, check_begin_at
from penstock.spark.query.plan import QueryInput, QueryOutput, QueryPlan
from penstock.spark.row_batches import (
    ChunkReader,
    ChunkWriter,
    event_time_columns,
    operators,
    parsed_schema,
    with_initial,
)
from penstock.spark.takeover import Takeover
from penstock.spark.versions import QUERIES, arrow_schema, needs, needs_classic


def processor_stores(spec: ProcessorSpec) -> tuple[StoreSpec, ...]:
    """The stores of the operator that runs the processor: its state variables, and its timers if it may have any."""
    return spec.declared.stores(spec.operator, spec.key, spec.mode)


def add_processor(chunks: MessageStream[Any], spec: ProcessorSpec) -> MessageStream[Any]:
    """The stream of the processor's output for chunks, in the application of these chunks.

    Args:
        chunks: chunks as `groups.chunk` makes them: all rows of a chunk are of the task that gets it.
        spec: the processor. Its `operator` becomes the operator's id.
    """
    stores = processor_stores(spec)
    for store in stores:
        chunks._declared._stores[store.name] = store  # noqa: SLF001
    operator = BatchTaskSpec(
        id=spec.operator,
        upstream=(chunks._operator.id,),  # noqa: SLF001
        key_serde=Bytes(),
        value_serde=Bytes(),
        stores=tuple(store.name for store in stores),
        deletes=spec.declared.forgotten,
        task=partial(ColumnsTask if spec.form == "columns" else ProcessorTask, spec),
        event_time=spec.mode == "eventtime",
    )
    return chunks._next("processor", spec.operator, lambda _: operator)  # noqa: SLF001


_OF_SPARK = (
    (
        b"_deserialize_accumulator",
        "an accumulator",
        "Yield what it is to count, and add that up in the handler, or count in a state variable",
    ),
    (b"pyspark.core.broadcast", "a broadcast variable", "Give the processor the value itself, as an attribute"),
)
"""(part of its pickled form, its name, the remedy) of each object that works in tasks of Spark only."""


def pickled(processor: object) -> bytes:
    """The processor, pickled. Raises ConfigError, naming the part, if it cannot be pickled or uses an object that works
    in tasks of Spark only."""
    try:
        data: bytes = cloudpickle.dumps(processor)
    except Exception as error:  # whatever the objects in it raise
        why = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"the processor {type(processor).__name__} cannot be sent to executors, because {_culprit(processor)} "
            f"cannot be pickled: {why}. Make such an object, a lock, a connection or a client, in `init`"
        ) from error
    for mark, what, instead in _OF_SPARK:
        if mark in data:
            raise ConfigError(
                f"the processor {type(processor).__name__} uses {what}, which works in tasks of Spark only, and a "
                f"processor runs in containers of Penstock. {instead}"
            )
    return data


def _culprit(processor: object) -> str:
    for name, value in vars(processor).items():
        if not _can_be(value):
            return f"its attribute `{name}`, of type {type(value).__name__},"
    for name, value in vars(type(processor)).items():
        if isfunction(value) and not _can_be(value):
            return f"something that its method `{name}` uses"
    return "it"


def _can_be(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


Handler: TypeAlias = Callable[[DataFrame, int], object]
"""A function for `foreachBatch`: it gets the rows of a batch, and its id."""
_INPUT, _OUTPUT = "rows", "output"


def transform_with_state(
    df: DataFrame,
    *,
    processor: StatefulProcessor | ColumnsProcessor,
    key: str | Sequence[str],
    output: StructType | str,
    time_mode: str = "None",
    form: Form = "row",
    root: str,
    name: str | None = None,
    initial_state: GroupedData | DataFrame | None = None,
    partitions: int | None = None,
    config: Mapping[str, object] | None = None,
    import_state: bool = False,
    begin_at: Literal["here"] | None = None,
    from_checkpoint: Literal["matching"] | None = None,
) -> TransformedStream:
    """The rows that a StatefulProcessor makes of a streaming DataFrame, as `df.groupBy(key).transformWithState` makes
    them, with the state in Penstock.

    The processor is the class that was written for PySpark, unchanged. Each batch of the query is processed once: its
    changes to the state and its rows take effect together, and the handler gets the same rows however often Spark asks
    for the batch. A sink that is idempotent by batch id is therefore exactly once.

    Args:
        df: a streaming DataFrame of any source.
        processor: the processor. It is pickled; each task and batch uses a separate one.
        key: the columns by which rows are grouped.
        output: the schema of the rows that the processor yields, as a StructType or as DDL.
        time_mode: "None", "ProcessingTime" or "EventTime", as in PySpark. In event time, `df` must have a watermark
            (`withWatermark`).
        form: "row" for a processor of `transformWithState`, which gets and yields Row objects; "pandas" for one of
            `transformWithStateInPandas`; "columns" for a `ColumnsProcessor`, which gets all rows of a task at once. It
            has no timers, and `time_mode` is "None".
        root: where the state is, as `job.root`: a folder, or `s3://`, `gs://`, `az://`.
        name: the name of the job in the root; by default that of the processor's class. A root may have several jobs.
        initial_state: a batch DataFrame with the key's columns, or one that is grouped by them, as in PySpark. In the
            job's first batch only, `handleInitialState` gets each of its rows.
        partitions: how many tasks share the keys, which is also how many can run at once. The number is chosen once,
            and later starts keep it. By default, as many as Spark runs at once.
        config: further keys of Penstock's configuration.
        import_state: True if the start takes over the state that PySpark's transformWithState kept in the checkpoint
            location, which is that of a query that ran in PySpark. Later starts have nothing to take over, and it has
            no effect.
        begin_at: "here": a query that has already had batches begins with empty state, and does not take over the state
            that PySpark kept.
        from_checkpoint: "matching": if the checkpoint location was set back, the state goes back with it, to the
            retained checkpoint of the batch with which the location ends. Without it, such a query is refused. If the
            newest state fits, it has no effect.

    Returns:
        a stream; pass a handler to its `for_each_batch`.

    Raises:
        ConfigError: an argument is wrong.
        PySparkRuntimeError: the processor declares state that it cannot have.

    Example:
        >>> class CountVisits(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.visits = handle.getValueState("visits", "n LONG")
        ...
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         (before,) = self.visits.get() or (0,)
        ...         now = before + sum(1 for _ in rows)
        ...         self.visits.update((now,))
        ...         yield Row(user=key[0], visits=now)
        >>> query = (  # doctest: +SKIP
        ...     pss.transform_with_state(
        ...         events,
        ...         processor=CountVisits(),
        ...         key="user",
        ...         output="user STRING, visits LONG",
        ...         root="s3://bucket/penstock",
        ...     )
        ...     .for_each_batch(lambda df, batch_id: df.write.mode("append").parquet(path))
        ...     .option("checkpointLocation", location)
        ...     .start()
        ... )
    """
    _check_given(df, processor)
    mode = parsed_time_mode(time_mode)
    _check_form(form, mode, {"import_state": import_state, "initial_state": initial_state is not None})
    keys = _key_columns(df, key)
    timed = _event_time(df.schema, mode)
    if any(name.startswith("TransformWithState") for name in operators(df)):
        raise ConfigError(
            "the DataFrame is the output of a processor of PySpark: begin a second query with what the first one writes"
        )
    before = None if initial_state is None else _initial(initial_state, df.schema, keys)
    check_begin_at(begin_at)
    if import_state and begin_at is not None:
        raise ConfigError(f'import_state=True and begin_at="{begin_at}" exclude each other: with state, or without it')

    spec = _processor_spec(df, processor, form=form, mode=mode, keys=keys, output=output, timed=timed, before=before)
    graph = _graph(name or type(processor).__name__, spec, timed)
    first = None if before is None else partial(_with_initial, before)
    return TransformedStream(
        df,
        QueryPlan(
            graph=graph,
            inputs=(QueryInput(_INPUT, ChunkReader(spec.key, spec.event_time), first),),
            outputs=(QueryOutput(_OUTPUT, spec.output, ChunkWriter()),),
            root=root,
            partitions=partitions,
            config=config or {},
            timed=mode != "none",
            from_checkpoint=from_checkpoint,
            takeover=Takeover(graph, spec, imports=import_state, begins_here=begin_at == "here"),
        ),
    )


def _check_given(df: DataFrame, processor: object) -> None:
    """Raise ConfigError if these are no streaming DataFrame, and no processor for it."""
    needs(QUERIES, "transform_with_state")
    needs_classic(df, "transform_with_state")
    given: object = df
    if isinstance(given, GroupedData):
        raise ConfigError("transform_with_state takes the DataFrame before `groupBy`: name the columns as key=[...]")
    if not df.isStreaming:
        raise ConfigError("transform_with_state takes a streaming DataFrame, as `spark.readStream` makes them")
    if isinstance(processor, type):
        raise ConfigError(f"processor={processor.__name__} is a class: give an object, {processor.__name__}()")


def _key_columns(df: DataFrame, key: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of the key, as the schema writes them. Raises ConfigError."""
    keys = (key,) if isinstance(key, str | Column) else tuple(key)
    if any(not isinstance(each, str) for each in keys):
        raise ConfigError(
            'key= takes names of columns, as key="user" or key=["user", "day"]; add others to the DataFrame'
        )
    return tuple(_column(each, df.schema.names, df.sparkSession, f"key={list(keys)}: the DataFrame") for each in keys)


def _processor_spec(
    df: DataFrame,
    processor: StatefulProcessor | ColumnsProcessor,
    *,
    form: Form,
    mode: TimeMode,
    keys: Sequence[str],
    output: StructType | str,
    timed: StructField | None,
    before: DataFrame | None,
) -> ProcessorSpec:
    """The processor as tasks get it. `timed` is the column with a watermark, `before` the initial state."""
    schema, conf = df.schema, df.sparkSession.conf
    # By column, times are in UTC as those of the state are: two zones in one computation are an error in Polars.
    zone = "UTC" if form == "columns" else conf.get("spark.sql.session.timeZone") or "UTC"
    return ProcessorSpec(
        operator="processor",
        processor=pickled(processor),
        declared=_declared(processor, form, mode),
        key=StructType([schema[each] for each in keys]),
        input=arrow_schema(schema, timezone=zone),
        output=_parsed(output) if isinstance(output, str) else output,
        mode=mode,
        form=form,
        event_time=None if timed is None else timed.name,
        initial=None if before is None else arrow_schema(before.schema, timezone=zone),
        timezone=zone,
        checks_casts=conf.get("spark.sql.execution.pandas.convertToArrowArraySafely") == "true",
        makes_decimals=conf.get("spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled") == "true",
    )


class TransformedStream:
    """The result of `transform_with_state`: starts the query."""

    def __init__(self, df: DataFrame, plan: QueryPlan) -> None:
        self._df = df
        self._plan = plan

    def for_each_batch(self, handler: Handler) -> StreamWriter:
        """Give each batch of rows to a handler, as `foreachBatch` does.

        Args:
            handler: gets the rows of a batch as a DataFrame, and the id of the batch. It may use the DataFrame any
                number of times until it returns. If it raises, the query fails, and its next start calls it with the
                same rows.

        Returns:
            the writer, with those methods of Spark's DataStreamWriter that apply to such a query.
        """

        Callback("the handler", handler).check("for_each_batch")

        def handle(outputs: Mapping[str, DataFrame], batch: int) -> object:
            return handler(outputs[_OUTPUT], batch)

        return StreamWriter(self._df, self._plan, lambda df: {_INPUT: df}, handle)


def _check_form(form: Form, mode: TimeMode, given: Mapping[str, bool]) -> None:
    """Raise ConfigError if there is no such form, or it does not go with the other arguments."""
    if form not in ("row", "pandas", "columns"):
        raise ConfigError(f'form="{form}": it is "row", "pandas" or "columns"')
    if form == "pandas":
        check_pandas()
    if form != "columns":
        return
    if mode != "none":
        raise ConfigError('form="columns": such a processor has no timers, so leave time_mode="None"')
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(f'form="columns": such a processor begins with empty state, so leave out {name}')


def _declared(processor: StatefulProcessor | ColumnsProcessor, form: Form, mode: TimeMode) -> DeclaredVariables:
    if form == "columns":
        return declare_columns(processor, _parsed)
    if isinstance(processor, ColumnsProcessor):
        raise ConfigError(f'processor={type(processor).__name__}() is a ColumnsProcessor: give form="columns"')
    return declare(processor, mode, _parsed)


def _parsed(ddl: str) -> StructType:
    return parsed_schema(ddl, f"`{ddl}`")


def _event_time(schema: StructType, mode: TimeMode) -> StructField | None:
    """The column with a watermark. Raises ConfigError if the mode needs one and there is none."""
    if mode != "eventtime":
        return None
    found = event_time_columns(schema)
    if not found:
        raise ConfigError('time_mode="EventTime" needs a watermark: df.withWatermark("<column>", "<delay>")')
    if len(found) > 1:
        raise ConfigError(f"the columns {[each.name for each in found]} have a watermark each: select one of them")
    return found[0]


def _initial(given: GroupedData | DataFrame, schema: StructType, keys: Sequence[str]) -> DataFrame:
    """The rows of initial state. Raises ConfigError if they are not of these keys."""
    if isinstance(given, GroupedData):
        found: Any = given._jgd.groupingExprs()  # noqa: SLF001
        grouped = [str(found.apply(number).toString()).lstrip("'").split("#")[0] for number in range(found.size())]
        rows = given._df  # noqa: SLF001
        if grouped != list(keys) and [_column(each, keys, rows.sparkSession) for each in grouped] != list(keys):
            raise ConfigError(
                f"initial_state is grouped by {grouped}, and the stream by key={list(keys)}: rename columns"
            )
    else:
        rows = given
    if rows.isStreaming:
        raise ConfigError("initial_state is a streaming DataFrame: it is read once, so give a table or a folder")
    for key in keys:
        named = _column(key, rows.columns, rows.sparkSession, f"key={list(keys)}: initial_state")
        rows = rows if named == key else rows.withColumnRenamed(named, key)
        own, other = rows.schema[key].dataType.simpleString(), schema[key].dataType.simpleString()
        if own != other:
            raise ConfigError(
                f"the column `{key}` of initial_state is {own}, and that of the stream is {other}: cast it"
            )
    return rows


def _column(name: str, columns: Sequence[str], spark: SparkSession, where: str = "") -> str:
    """The column that Spark means by a name. Raises ConfigError if there is none, unless `where` is empty."""
    if name in columns:
        return name
    is_exact = spark.conf.get("spark.sql.caseSensitive") == "true"
    alike = [] if is_exact else [each for each in columns if each.lower() == name.lower()]
    if len(alike) != 1 and where:
        has = f"the columns {alike}: name one of them" if alike else f"no column `{name}`; it has {list(columns)}"
        raise ConfigError(f"{where} has {has}")
    return alike[0] if len(alike) == 1 else name


def _with_initial(initial: DataFrame, rows: DataFrame) -> DataFrame:
    return with_initial(rows, initial)


def _graph(name: str, spec: ProcessorSpec, timed: StructField | None) -> ApplicationGraph:
    app = ps.StreamApplication(name)
    watermark = None if timed is None else QueryWatermark()
    rows = app.input(f"spark.{_INPUT}", key=ps.Bytes(), value=ps.Bytes(), watermark=watermark)
    parted = rows.partition_by(_key, envelope=True, key=ps.Bytes())
    chosen = app.output(f"spark.{_OUTPUT}", key=ps.Bytes(), value=ps.Bytes())
    add_processor(parted, spec).send_to(chosen)
    return app.graph()


def _key(message: Any) -> bytes:
    """The key of a chunk's first row: all its rows are of that key's task."""
    key: bytes = message.key
    return key
