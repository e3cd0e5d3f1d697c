"""run_application: a StreamApplication on the batches of a streaming query, DataFrames in and DataFrames out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.api.serdes import ColumnSerde, PackedColumns
from penstock.api.time.firing import BoundedOutOfOrderness
from penstock.application.application import Application
from penstock.base.application_code import Callback
from penstock.batch.watermarks import QueryWatermark
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph, InputSpec, OutputSpec
from penstock.spark import row_batches
from penstock.spark.queries import Frames, StreamWriter, check_begin_at
from penstock.spark.query.plan import QueryInput, QueryOutput, QueryPlan
from penstock.spark.query.rows import FrameReader
from penstock.spark.row_serde import Rows, check_keyed, check_same, with_schemas
from penstock.spark.versions import QUERIES, needs, needs_classic
from penstock.system.contract.definition import QUERY_SYSTEM

Inputs: TypeAlias = Callable[[DataFrame], Frames]
"""Makes the inputs, by name, of a batch."""


def run_application(
    app: Application,
    df: DataFrame,
    *,
    root: str,
    inputs: Inputs | None = None,
    partitions: int | None = None,
    config: Mapping[str, object] | None = None,
    from_checkpoint: Literal["matching"] | None = None,
    begin_at: Literal["here"] | None = None,
) -> ApplicationStream:
    """Run an application inside a streaming query, with DataFrames as its inputs and outputs.

    Spark owns the offsets and the ids of batches, Penstock the state. Each batch of the query is processed once: its
    changes to the state and its rows take effect together, and the handler gets the same rows however often Spark asks
    for the batch. A sink that is idempotent by batch id is therefore exactly once.

    The inputs of the application are named `spark.<name>` and have the serde `pss.Rows()`, or `ps.Columns(<schema>)`
    for an application that works by column; each row is a message without a key, and `partition_by` gives it one.
    Outputs named `spark.<name>`, with the serde `pss.Rows(<schema>)` or `ps.Columns(<schema>)`, come back as
    DataFrames. Outputs to other systems work as in any job; the only inputs from other systems are side inputs. If an
    input has a column with a watermark (`withWatermark`), this column has the event times, and its delay is that of the
    application's watermark. Otherwise the timestamp of a row is the time when it was read.

    Args:
        app: the application. The name of the job is its name.
        df: a streaming DataFrame of any source.
        root: where the state is, as `job.root`: a folder, or `s3://`, `gs://`, `az://`.
        inputs: a function that makes the inputs of a batch of `df`, as a dict by name. It is called once with `df`
            itself, for the schemas, and then with each batch. Without it, the application has one input, which is `df`.
        partitions: how many tasks share the keys, which is also how many can run at once. The number is chosen once,
            and later starts keep it. By default, as many as Spark runs at once, and at least as many as inputs.
        config: further keys of Penstock's configuration.
        from_checkpoint: "matching": if the checkpoint location was set back, the state goes back with it, to the
            retained checkpoint of the batch with which the location ends. Without it, such a query is refused. If the
            newest state fits, it has no effect.
        begin_at: "here": a query that has already had batches begins with empty state at its next batch. Without it,
            such a query is refused. Once the root has a checkpoint, it has no effect.

    Returns:
        a stream; pass a handler to its `for_each_batch`.

    Raises:
        ConfigError: an argument is wrong, or the application cannot run inside a query.

    Example:
        >>> app = ps.StreamApplication("visits")
        >>> visits = ps.Windows.tumbling(3_600_000, aggregates={"n": ps.Count()})
        >>> _ = (
        ...     app.input("spark.clicks", value=pss.Rows())
        ...     .partition_by(lambda row: row.user)
        ...     .window(visits)
        ...     .map(lambda pane: {"user": pane.key, "n": pane.message["n"]})
        ...     .send_to(app.output("spark.visits", value=pss.Rows("user STRING, n LONG")))
        ... )
        >>> query = (  # doctest: +SKIP
        ...     pss.run_application(app, clicks.withWatermark("at", "10 minutes"), root="s3://bucket/penstock")
        ...     .for_each_batch(lambda out, batch_id: out["visits"].write.mode("append").parquet(path))
        ...     .option("checkpointLocation", location)
        ...     .start()
        ... )
    """
    needs(QUERIES, "run_application")
    needs_classic(df, "run_application")
    if not df.isStreaming:
        raise ConfigError("run_application takes a streaming DataFrame, as `spark.readStream` makes them")
    check_begin_at(begin_at)
    graph = _packed(app.graph())
    if graph.patterns:
        raise ConfigError(
            f"the input `{graph.patterns[0].pattern}` is a pattern: the inputs of an application inside a query are "
            "DataFrames, each with a name, as `spark.clicks`"
        )
    names = _names(graph)
    made = _needed(_inputs_of(names, inputs), graph)
    schemas = _schemas(made, df)
    graph = with_schemas(graph, schemas, _parsed)
    check_keyed(graph)
    if partitions is not None and partitions < len(names):
        raise ConfigError(f"partitions={partitions}: an application with {len(names)} inputs has at least {len(names)}")

    def same(batch: DataFrame) -> Frames:
        frames = made(batch)
        for name, frame in frames.items():
            check_same(f"{QUERY_SYSTEM}.{name}", schemas[name], frame.schema)
        return frames

    plan = QueryPlan(
        graph=graph.replacing({op.id: [_timed(op, schemas, graph)] for op in graph.inputs}),
        inputs=[QueryInput(op.stream.stream, _reader(op, schemas[op.stream.stream])) for op in graph.inputs],
        outputs=[_output(each) for each in graph.outputs if each.stream.system == QUERY_SYSTEM],
        root=root,
        partitions=partitions,
        config=config or {},
        from_checkpoint=from_checkpoint,
        begins_here=begin_at == "here",
        timed=graph.uses_time,
    )
    return ApplicationStream(df, plan, same)


class ApplicationStream:
    """The result of `run_application`: starts the query."""

    def __init__(self, df: DataFrame, plan: QueryPlan, inputs: Inputs) -> None:
        self._df, self._plan, self._inputs = df, plan, inputs

    def for_each_batch(self, handler: Callable[[Frames, int], object]) -> StreamWriter:
        """Give the outputs of each batch to a handler, as `foreachBatch` does.

        Args:
            handler: gets the outputs of a batch, a dict of DataFrames by name without `spark.`, and the id of the
                batch. It may use each of them any number of times until it returns. If it raises, the query fails,
                and its next start calls it with the same rows.

        Returns:
            the writer, with those methods of Spark's DataStreamWriter that apply to such a query.
        """
        Callback("the handler", handler).check("for_each_batch")
        return StreamWriter(self._df, self._plan, self._inputs, handler)


def _names(graph: ApplicationGraph) -> list[str]:
    """The names of the inputs. Raises ConfigError if the application cannot run inside a query."""
    for op in graph.inputs:
        if op.stream.system != QUERY_SYSTEM:
            raise ConfigError(
                f"input `{op.stream}`: the inputs of an application inside a query are its DataFrames, named "
                f"`{QUERY_SYSTEM}.<name>`. Read another stream with Spark, or as a side input"
            )
    if graph.intermediates:
        raise ConfigError(
            f"`{graph.intermediates[0].stream}`: an application inside a query has no durable intermediate streams. "
            "Use partition_by without `through`"
        )
    frames = [("input", op.stream, op.value_serde) for op in graph.inputs]
    frames += [("output", out.stream, out.value_serde) for out in graph.outputs if out.stream.system == QUERY_SYSTEM]
    for kind, stream, serde in frames:
        if not isinstance(serde, Rows | ColumnSerde):
            schema = "" if kind == "input" else "'user STRING, n LONG'"
            raise ConfigError(f'{kind} `{stream}` is a DataFrame: app.{kind}("{stream}", value=pss.Rows({schema}))')
    return [op.stream.stream for op in graph.inputs]


def _packed(graph: ApplicationGraph) -> ApplicationGraph:
    """The graph whose outputs of columns are packed on their way to a DataFrame, not JSON."""

    def packed(each: OutputSpec) -> OutputSpec:
        own = each.stream.system == QUERY_SYSTEM and isinstance(each.value_serde, ColumnSerde)
        return replace(each, value_serde=each.value_serde.for_store_values()) if own else each

    return replace(graph, outputs=tuple(map(packed, graph.outputs)))


def _reader(op: InputSpec, schema: StructType) -> FrameReader:
    event_time = _event_time(schema)
    if isinstance(op.value_serde, ColumnSerde):
        return row_batches.ColumnsReader(str(op.stream), op.value_serde, event_time)
    return row_batches.RowsReader(schema, event_time)


def _output(each: OutputSpec) -> QueryOutput:
    name, serde = each.stream.stream, each.value_serde
    if isinstance(serde, PackedColumns):
        return QueryOutput(name, row_batches.spark_schema(str(each.stream), serde), row_batches.ColumnsWriter(serde))
    schema = cast("Rows", serde).schema
    return QueryOutput(name, schema, row_batches.RowsWriter(schema))


def _needed(inputs: Inputs, graph: ApplicationGraph) -> Inputs:
    """The same inputs, with no more columns than the application declares."""
    serdes = {op.stream.stream: op.value_serde for op in graph.inputs}

    def made(df: DataFrame) -> Frames:
        found = {}
        for name, frame in inputs(df).items():
            serde = serdes[name]
            found[name] = (
                row_batches.needed(frame, f"{QUERY_SYSTEM}.{name}", serde) if isinstance(serde, ColumnSerde) else frame
            )
        return found

    return made


def _inputs_of(names: list[str], inputs: Inputs | None) -> Inputs:
    if inputs is None:
        if len(names) > 1:
            raise ConfigError(f"the application has the inputs {', '.join(names)}: give inputs=lambda df: {{...}}")
        return lambda df: {names[0]: df}

    def made(df: DataFrame) -> Frames:
        frames = inputs(df)
        if not isinstance(frames, Mapping) or set(frames) != set(names) or not _all_frames(frames):
            found = sorted(map(str, frames)) if isinstance(frames, Mapping) else frames
            raise ConfigError(f"inputs=... returns a dict of DataFrames for {', '.join(sorted(names))}, not {found}")
        return frames

    return made


def _all_frames(frames: Mapping[str, object]) -> bool:
    return all(isinstance(frame, DataFrame) for frame in frames.values())


def _schemas(inputs: Inputs, df: DataFrame) -> dict[str, StructType]:
    try:
        return {name: frame.schema for name, frame in inputs(df).items()}
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            "inputs=... is called once with the streaming DataFrame, for the schemas, and must count or collect "
            f"nothing: {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error


def _timed(op: InputSpec, schemas: Mapping[str, StructType], graph: ApplicationGraph) -> InputSpec:
    """The input with the watermark of its DataFrame, unless the application declares another one. Spark has one
    watermark for all inputs, so each of several inputs has a separate one."""
    if op.uses_time or not graph.uses_time:
        return op
    column = row_batches.event_time_column(schemas[op.stream.stream])
    if column is None:
        return op
    own = len(graph.inputs) > 1
    return replace(
        op, watermark=BoundedOutOfOrderness(max_delay_ms=row_batches.delay_ms(column)) if own else QueryWatermark()
    )


def _event_time(schema: StructType) -> str | None:
    column = row_batches.event_time_column(schema)
    return None if column is None else column.name


def _parsed(ddl: str) -> StructType:
    return row_batches.parsed_schema(ddl, f"pss.Rows({ddl!r})")
