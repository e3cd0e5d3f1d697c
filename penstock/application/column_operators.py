"""The operators of a stream that work on columns.

Arrow is imported in the functions that need it: an application without columns starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.api.expressions import Expression, Selection, col
from penstock.api.serdes import Columns, ColumnSerde, Json, Serde
from penstock.api.ssp import SystemStream
from penstock.api.store import Table
from penstock.api.task import BatchProcessor
from penstock.api.time.aggregates import Aggregate
from penstock.base.wording import counted
from penstock.errors import ConfigError
from penstock.graph import specs
from penstock.graph.aggregation import aggregates_definition, check_aggregates, column_aggregates
from penstock.graph.event_time import Order, stores_of
from penstock.graph.serdes import process_place

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.application.message_stream import MessageStream
    from penstock.graph.declarations import Declarations


class ColumnOperators:
    """The part of `MessageStream` that works on columns."""

    _declared: Declarations
    _operator: specs.OperatorSpec

    def _next(
        self, kind: str, op_id: str | None, make: Callable[[str], specs.OperatorSpec], renamed_from: str | None = None
    ) -> MessageStream[Any]:
        raise NotImplementedError

    def _same(self) -> dict[str, Any]:
        raise NotImplementedError

    def _schema(self, what: str) -> ColumnSerde:
        """The serde of the values, if they are rows of a schema. Raises ConfigError if they are not."""
        serde = self._operator.value_serde
        if not isinstance(serde, ColumnSerde):
            raise ConfigError(
                f"{what} takes columns, and the values of `{self._operator.id}` have no schema: declare it with "
                "value=ps.Columns(pa.schema([...])) where they come from, or in a .partition_by(..., value=...) before"
            )
        return serde

    def _check_expression(self, function: object, what: str, *, envelope: bool = False) -> pa.DataType | None:
        """The type of the values, if the function is an expression and the columns are known. Raises ConfigError if it
        does not fit them."""
        if not isinstance(function, Expression):
            return None
        if envelope:
            raise ConfigError(f"{what}: an expression is of the value, not of the envelope: leave out envelope=True")
        serde = self._operator.value_serde
        return function.type_in(serde.schema, what) if isinstance(serde, ColumnSerde) else None

    def _check_condition(self, function: object, what: str, *, envelope: bool) -> None:
        import pyarrow as pa

        kind = self._check_expression(function, what, envelope=envelope)
        if kind is not None and not pa.types.is_boolean(kind):
            raise ConfigError(f"{what}: `{function}` is {kind}, not a condition")

    def select(
        self,
        *columns: str,
        id: str | None = None,  # noqa: A002
        **expressions: Expression,
    ) -> MessageStream[Any]:
        """Replace each value with a row of these columns.

        Args:
            columns: the names of columns that are kept.
            id: the operator's stable name.
            expressions: more columns, each with its expression (`ps.col`).

        Raises:
            ConfigError: there is no such column, or an expression does not fit its type.

        Example:
            >>> import pyarrow as pa
            >>> app = ps.StreamApplication("kilometres")
            >>> trip = ps.Columns(pa.schema({"tail": pa.string(), "miles": pa.int64()}))
            >>> trips = app.input("local.trips", value=trip)
            >>> _ = trips.select("tail", km=ps.col("miles") * 1.609).send_to(app.output("local.km"))
            >>> runner = TestRunner(app).input("local.trips", [{"tail": "N1", "miles": 1000}]).run()
            >>> [message.value for message in runner.output("local.km")]
            [{'tail': 'N1', 'km': 1609.0}]
        """
        import pyarrow as pa

        if not (columns or expressions):
            raise ConfigError("select() takes at least one column")
        parts = {**{name: col(name) for name in columns}, **expressions}
        for name, each in parts.items():
            if not isinstance(each, Expression):
                raise ConfigError(f"select({name}={each!r}): a column is an expression, as ps.col({name!r})")
        if len(parts) < len(columns) + len(expressions):
            raise ConfigError("select(): a column is given twice")
        selection, serde, value = Selection(tuple(parts.items())), self._operator.value_serde, Json()
        if isinstance(serde, ColumnSerde):
            value = Columns(pa.schema(list(selection.type_in(serde.schema, "select()"))))  # type: ignore[assignment]
        same = {**self._same(), "value_serde": value}
        return self._next("select", id, lambda i: specs.MapSpec(id=i, function=selection, **same))

    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema,
        *,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Replace the values of many messages at once. Keys and timestamps stay.

        Args:
            function: gets a `pyarrow.RecordBatch` with the columns of this stream, and returns one with as many rows,
                in the same order. How many messages it gets at once is not defined, so it must not depend on it.
            schema: the columns of the result. Types that fit are converted.
            id: the operator's stable name.

        Raises:
            ConfigError: this stream has no schema, or `schema` is none.

        Example:
            >>> import pyarrow as pa, pyarrow.compute as pc
            >>> app = ps.StreamApplication("upper")
            >>> schema = pa.schema({"tail": pa.string()})
            >>> def upper_case(batch):
            ...     return pa.record_batch({"tail": pc.utf8_upper(batch["tail"])})
            >>> upper = app.input("local.tails", value=ps.Columns(schema)).map_batches(upper_case, schema)
            >>> _ = upper.send_to(app.output("local.upper"))
            >>> runner = TestRunner(app).input("local.tails", [{"tail": "n1"}]).run()
            >>> [message.value for message in runner.output("local.upper")]
            [{'tail': 'N1'}]
        """
        serde = self._schema("map_batches()")
        result = Columns(schema)
        same = {**self._same(), "value_serde": result, "result_serde": result, "message_serde": serde}
        return self._next("map_batches", id, lambda i: specs.MapBatchesSpec(id=i, function=function, **same))

    def filter_batches(
        self,
        function: Callable[[pa.RecordBatch], Any],
        *,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Keep the messages for which the function gives true, many at once.

        Args:
            function: gets a `pyarrow.RecordBatch` with the columns of this stream, and returns a column of truth
                values, as Arrow's or NumPy's arrays; null counts as false.
            id: the operator's stable name.

        Raises:
            ConfigError: this stream has no schema.

        Example:
            >>> import pyarrow as pa, pyarrow.compute as pc
            >>> app = ps.StreamApplication("american")
            >>> tails = app.input("local.tails", value=ps.Columns(pa.schema({"tail": pa.string()})))
            >>> american = tails.filter_batches(lambda batch: pc.starts_with(batch["tail"], "N"))
            >>> _ = american.send_to(app.output("local.american"))
            >>> runner = TestRunner(app).input("local.tails", [{"tail": "N1"}, {"tail": "D-AI"}]).run()
            >>> [message.value for message in runner.output("local.american")]
            [{'tail': 'N1'}]
        """
        same = {**self._same(), "message_serde": self._schema("filter_batches()")}
        return self._next("filter_batches", id, lambda i: specs.FilterBatchesSpec(id=i, function=function, **same))

    def with_key(
        self,
        *columns: str,
        id: str | None = None,  # noqa: A002
    ) -> MessageStream[Any]:
        """Add the key to each value, as its first column. Keys stay.

        Args:
            columns: the name of the column; for keys that are tuples, the name of a column for each of their fields.
            id: the operator's stable name.

        Raises:
            ConfigError: this stream has no schema, or has a column of that name, or its keys are of no one type, as
                those of `ps.Json()` are, or have another number of fields.

        Example:
            >>> import pyarrow as pa
            >>> flight = ps.Columns(pa.schema({"tail": pa.string(), "miles": pa.int64()}))
            >>> app = ps.StreamApplication("totals")
            >>> by_tail = app.input("local.flights", value=flight).partition_by(ps.col("tail"))
            >>> totals = by_tail.aggregate({"miles": ps.Sum(ps.col("miles"))}).with_key("tail")
            >>> _ = totals.send_to(app.output("local.totals"))
            >>> runner = TestRunner(app).input("local.flights", [{"tail": "N1", "miles": 7}]).run()
            >>> [message.value for message in runner.output("local.totals")]
            [{'tail': 'N1', 'miles': 7}]
        """
        import pyarrow as pa

        from penstock.graph.keys import key_type

        serde, key = self._schema("with_key()"), self._operator.key_serde
        kind = key_type(key)
        if kind is None:
            raise ConfigError(
                f"with_key(): the keys of `{self._operator.id}` have no type of a column: give their serde, as in "
                "partition_by(..., key=ps.String())"
            )
        kinds = [field.type for field in kind] if pa.types.is_struct(kind) else [kind]
        if len(columns) != len(kinds):
            raise ConfigError(
                f"with_key({', '.join(map(repr, columns))}): the keys are of {key.name}, so give "
                f"{counted(len(kinds), 'name')}"
            )
        for column in columns:
            if column in serde.schema.names:
                raise ConfigError(f"with_key(): there is a column `{column}` already")
        fields = [pa.field(column, each) for column, each in zip(columns, kinds, strict=True)]
        result = Columns(pa.schema([*fields, *serde.schema]))
        same = {**self._same(), "value_serde": result}
        return self._next(
            "with_key",
            id,
            lambda i: specs.WithKeySpec(id=i, columns=columns, message_serde=serde, message_key=key, **same),
        )

    def aggregate(
        self,
        aggregates: Mapping[str, Aggregate],
        *,
        id: str | None = None,  # noqa: A002
        renamed_from: str | None = None,
    ) -> MessageStream[Any]:
        """Keep running aggregates for each key. After each batch, the keys that it changed are emitted, each once, with
        all their aggregates.

        Of a stream with a schema, aggregates are computed by column, if each of them is `Count`, `Sum`, `Min`, `Max`,
        `Mean`, `Variance`, `First` or `Last` of an expression (`ps.col`).

        Args:
            aggregates: by the name of the result.
            id: the operator's stable name. Its store is named after it.
            renamed_from: the id that the operator had when its state was made, if it has another one now. Its stores
                keep that name.

        Raises:
            ConfigError: there are no aggregates, one is none, or one does not fit the type of its column.

        Example:
            >>> import pyarrow as pa
            >>> flight = ps.Columns(pa.schema({"tail": pa.string(), "miles": pa.int64()}))
            >>> app = ps.StreamApplication("totals")
            >>> by_tail = app.input("local.flights", value=flight).partition_by(ps.col("tail"))
            >>> totals = by_tail.aggregate({"flights": ps.Count(), "miles": ps.Sum(ps.col("miles"))})
            >>> _ = totals.send_to(app.output("local.totals"))
            >>> flights = [{"tail": "N1", "miles": 7}, {"tail": "N1", "miles": 9}]
            >>> runner = TestRunner(app).input("local.flights", flights).run()
            >>> [(message.key, message.value) for message in runner.output("local.totals")]
            [('N1', {'flights': 2, 'miles': 16})]
        """
        import pyarrow as pa

        if not isinstance(aggregates, Mapping) or not aggregates:
            raise ConfigError("aggregate() takes a dict from names to aggregates, as {'flights': ps.Count()}")
        for name, each in aggregates.items():
            if not isinstance(name, str) or not isinstance(each, Aggregate):
                raise ConfigError(
                    f"aggregate({{{name!r}: {each!r}}}): an aggregate is one of ps.Count(), ps.Sum(...), ..."
                )
        given, serde = dict(aggregates), self._operator.value_serde
        check_aggregates(given, serde, "aggregate()")
        by_column = column_aggregates(given, serde)
        result = Json() if by_column is None else Columns(pa.schema(by_column.result_fields))
        same = {**self._same(), "value_serde": result}

        def make(i: str) -> specs.AggregateSpec:
            definition = aggregates_definition(given, by_column)
            store = self._declared.own_store(i, ".aggregate", "aggregate", definition, by_column=by_column is not None)
            return specs.AggregateSpec(id=i, stores=(store,), aggregates=given, message_serde=serde, **same)

        return self._next("aggregate", id, make, renamed_from)

    def _join_columns(
        self, table: Table, columns: Sequence[str], kind: specs.TableJoinKind, op_id: str | None
    ) -> MessageStream[Any]:
        import pyarrow as pa

        if isinstance(columns, str):
            raise ConfigError(f"join_table(): columns is a list of names, as [{columns!r}]")
        if kind not in ("inner", "left"):
            raise ConfigError(f'join_table(): kind is "inner" or "left", not {kind!r}')
        serde = self._schema("join_table(columns=...)")
        added = self._declared.columns_of(table, columns, "join_table()")
        fields = [*serde.schema, *added]
        names = [field.name for field in fields]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(
                f"join_table(): the messages and table `{table.name}` both have a column `{twice[0]}`: choose others "
                "with .select(...) before"
            )
        same = {**self._same(), "value_serde": Columns(pa.schema(fields))}

        def make(i: str) -> specs.TableColumnsSpec:
            return specs.TableColumnsSpec(
                id=i,
                stores=(table.name,),
                table=table.name,
                columns=tuple(columns),
                kind=kind,
                message_serde=serde,
                message_key=self._operator.key_serde,
                **same,
            )

        return self._next("join_table", op_id, make)

    def process_batch(
        self,
        processor: Callable[[], BatchProcessor],
        *,
        stores: Iterable[str] = (),
        schema: pa.Schema | None = None,
        key: Serde[Any] | None = None,
        order: Order | None = None,
        late_to: SystemStream | None = None,
        id: str | None = None,  # noqa: A002
        renamed_from: str | None = None,
    ) -> MessageStream[Any]:
        """Run a BatchProcessor on all messages of each task in a batch at once, as columns.

        With `order="event-time"`, messages wait in a store until the watermark has passed them. The processor then gets
        them in the order of their event times, from one batch to the next; at equal times by key, and of a key by
        stream, partition and offset.

        Args:
            processor: the class of the processor, or a function without arguments that makes it.
            stores: the names of the declared stores that it uses.
            schema: the columns of the results; by default those of this stream.
            key: the serde of the keys of the results; by default that of this stream.
            order: "event-time" for messages in the order of their event times; None for the order in which they come.
            late_to: with `order`, the output for late messages. Without it, they are counted and dropped.
            id: the operator's stable name. The store of the messages that wait is named after it.
            renamed_from: the id that the operator had when its state was made, if it has another one now. Its stores
                keep that name.

        Raises:
            ConfigError: this stream has no schema, a store is not declared, `order` is none, or `late_to` is no output
                of the application or given without `order`.

        Example:
            See `BatchProcessor`.
        """
        serde = self._schema("process_batch()")
        names = self._declared.check_stores(stores, "process_batch()")
        if not callable(processor):
            raise ConfigError(
                f"process_batch() takes a BatchProcessor class or a function that makes one, not {processor!r}"
            )
        result = Columns(serde.declared if schema is None else schema)

        def make(i: str) -> specs.ColumnTaskSpec:
            place, default = process_place(f"operator `{i}`"), self._operator.key_serde
            self._declared.use_by_column(names)
            ordering = self._declared.ordering(i, [self._operator], order, late_to, by_column=True)
            return specs.ColumnTaskSpec(
                id=i,
                upstream=(self._operator.id,),
                key_serde=default if key is None else place.serde("key", key, default).for_keys(),
                value_serde=result,
                result_serde=result,
                stores=names + stores_of(ordering),
                ordering=ordering,
                processor=processor,
                message_key=self._operator.key_serde,
                message_serde=serde,
            )

        return self._next("process_batch", id, make, renamed_from)
