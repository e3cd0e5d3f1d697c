"""The form of columns: a processor that gets all rows of its task in a batch at once, and its state by the thousand."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.api.serdes import PackedColumns
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Entries, last_rows
from penstock.arrays.given import RowsLike, batch_of, converted
from penstock.base.application_code import check_all, methods, not_started
from penstock.errors import ConfigError
from penstock.graph.specs.code import BatchInfo, BatchTask, BatchTaskContext, Emit, KeyedValue
from penstock.spark.processor.declared import DeclaredVariables, ParseSchema, Variable
from penstock.spark.processor.fields import KeyCodec, rows_of
from penstock.spark.processor.rows import Chunks, arrow_schema
from penstock.spark.processor.task import ProcessorSpec, task_context
from penstock.state.stores.columns import ColumnTaskStore
from penstock.state.stores.task_store import TaskStore

_AT_ONCE = 1 << 15


@dataclass(frozen=True, slots=True)
class ProcessorBatch:
    """All rows of a task in a batch."""

    rows: pa.RecordBatch
    """With all columns of the DataFrame. Rows of one key are in the order in which they came."""
    keys: pa.RecordBatch
    """The key's columns, each key once, in the order in which they came first."""
    groups: npt.NDArray[np.int64]
    """For each row, the number of its key in `keys`."""
    time_ms: int
    """The batch time, in epoch milliseconds."""


class ColumnState(ABC):
    """A state variable of a `ColumnsProcessor`: a row for each key.

    Keys are rows with the key's columns, which may have further columns, so that what a processor has computed by key
    can be given as it is. Rows are a RecordBatch, a Table, or a DataFrame of Polars or pandas.
    """

    @abstractmethod
    def get_many(self, keys: RowsLike) -> pa.RecordBatch:
        """The rows of these keys, in their order; a key without state has nulls in all columns.

        Args:
            keys: may have the same key several times.

        Raises:
            ValueError: a column of the key is missing, or has another type.
        """

    @abstractmethod
    def put_many(self, keys: RowsLike, rows: RowsLike) -> None:
        """Store a row under each key. If a key occurs several times, its last row counts.

        Args:
            keys: one for each row.
            rows: with the columns of the variable, in any order.

        Raises:
            ValueError: a column is missing, unknown, or of another type, or there are fewer or more keys.
        """

    @abstractmethod
    def delete_many(self, keys: RowsLike) -> None:
        """Remove the rows of these keys. Nothing happens for those without state.

        Args:
            keys: the keys.

        Raises:
            ValueError: a column of the key is missing, or has another type.
        """

    @abstractmethod
    def scan(self, rows: int = 65_536) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Every key with state, as (keys, rows), in no particular order.

        Args:
            rows: the most rows in a batch.
        """


class ColumnsProcessor(ABC):
    """A processor for `transform_with_state(..., form="columns")`: it sees all rows of its task in a batch at once.

    A task has one object of it, for all of its batches. What it keeps in attributes may be lost at any time, and must
    be derived from what `init` loads: state belongs into `state`, whose changes take effect with the batch.

    Example:
        >>> import pyarrow as pa
        >>> class Totals(pss.ColumnsProcessor):
        ...     state = {"totals": "views LONG, seconds DOUBLE"}
        ...
        ...     def handle_batch(self, batch, state):
        ...         rows = pa.table(batch.rows).group_by("user")
        ...         new = rows.aggregate([([], "count_all"), ("seconds", "sum")])
        ...         before = state["totals"].get_many(new)
        ...         views = pa.compute.add(new["count_all"], before["views"].fill_null(0))
        ...         seconds = pa.compute.add(new["seconds_sum"], before["seconds"].fill_null(0.0))
        ...         totals = pa.table({"views": views, "seconds": seconds})
        ...         state["totals"].put_many(new, totals)
        ...         return totals.add_column(0, "user", new["user"])
    """

    state: ClassVar[Mapping[str, StructType | str]] = {}
    """The state variables: for each name, the columns of the row that a key may have."""

    def init(self) -> None:  # noqa: B027
        """Called once, before the first batch, in the process of the task."""

    @abstractmethod
    def handle_batch(self, batch: ProcessorBatch, state: Mapping[str, ColumnState]) -> RowsLike | None:
        """Process the rows of a batch. Not called for a batch without rows.

        Args:
            batch: the rows, and their keys.
            state: the state variables by name.

        Returns:
            output rows, with the columns of the output in any order; None for no rows.
        """

    def close(self) -> None:  # noqa: B027
        """Called at most once, after the last batch."""


def declare_columns(processor: object, parse: ParseSchema) -> DeclaredVariables:
    """The state variables of a `ColumnsProcessor`. Raises ConfigError if it is none, or would do none of its work."""
    if not isinstance(processor, ColumnsProcessor):
        raise ConfigError(f'form="columns" takes a pss.ColumnsProcessor, not a {type(processor).__name__}')
    check_all(methods(processor, ("init", "handle_batch", "close")), "transform_with_state")
    given: object = processor.state
    if not isinstance(given, Mapping):
        raise ConfigError(f'{type(processor).__name__}.state is a dict, as {{"totals": "n LONG"}}, not {given!r}')
    found = []
    for name, schema in given.items():
        variable = Variable("columns", name, parse(schema) if isinstance(schema, str) else schema)
        serde_of(variable.schema, f"the state variable `{name}`")
        found.append(variable)
    return DeclaredVariables(tuple(found))


def serde_of(schema: StructType, what: str) -> PackedColumns:
    """The serde of rows with these columns. Raises ConfigError, which begins with `what`, for types that it lacks."""
    try:
        return PackedColumns(arrow_schema(schema))
    except Exception as error:
        raise ConfigError(f"{what}: {error}. Cast the column, or leave it out") from error


class ColumnsTask(BatchTask):
    """Calls a `ColumnsProcessor`."""

    def __init__(self, spec: ProcessorSpec) -> None:
        self._spec = spec
        self._keys = _Keys(spec.key)
        self._output = serde_of(spec.output, "the output")

    def init(self, context: BatchTaskContext) -> None:
        self._context = context
        self._processor: ColumnsProcessor = pickle.loads(self._spec.processor)  # noqa: S301 - the application's own
        self._state = {each.name: _StoredVariable(self._keys, each, context) for each in self._spec.declared.variables}
        with task_context(context.task):
            not_started("`init`", self._processor.init())

    def process(self, messages: Sequence[KeyedValue], batch: BatchInfo, emit: Emit) -> None:
        if not messages:
            return
        rows = rows_of([value for _, value in messages], self._spec.input)
        found = self._keys.encoded(rows).dictionary_encode()
        groups = found.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        first = np.unique(groups, return_index=True)[1]
        keys = self._keys.of(rows.take(pa.array(first)))
        with task_context(self._context.task):
            result = self._processor.handle_batch(ProcessorBatch(rows, keys, groups, batch.time_ms), self._state)
        if result is not None:
            self._send(result, emit)

    def _send(self, result: object, emit: Emit) -> None:
        try:
            rows = batch_of(result)
        except TypeError as error:
            raise TypeError(f"the result of `handle_batch`: {error}") from None
        found = pa.RecordBatch.from_struct_array(self._output.fitted(rows))
        chunks = Chunks(emit)
        for start in range(0, found.num_rows, _AT_ONCE):
            chunks.add(found.slice(start, _AT_ONCE))
        chunks.flush()

    def close(self) -> None:
        self._processor.close()


class _Keys:
    """The key's columns, and their bytes."""

    def __init__(self, schema: StructType) -> None:
        self._codec = KeyCodec(schema)
        self._schema = arrow_schema(schema)

    def of(self, rows: RowsLike) -> pa.RecordBatch:
        """The key's columns of these rows. Raises ValueError if one is missing, or of another type."""
        found, columns = batch_of(rows), []
        for field in self._schema:
            if field.name not in found.schema.names:
                raise ValueError(
                    f"the keys have no column `{field.name}`; they have {', '.join(found.schema.names) or 'none'}"
                )
            column = found.column(found.schema.get_field_index(field.name))
            try:
                columns.append(converted(column, field.type))
            except ValueError as error:
                raise ValueError(f"column `{field.name}` of the keys does not fit {field.type}: {error}") from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def encoded(self, rows: RowsLike) -> pa.BinaryArray:
        return self._codec.encode_columns(self.of(rows))

    def decoded(self, keys: ByteArray) -> pa.RecordBatch:
        found = [tuple(self._codec.decode(key)) for key in keys.to_arrow().to_pylist()]
        columns = [pa.array([key[n] for key in found], field.type) for n, field in enumerate(self._schema)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _StoredVariable(ColumnState):
    """A state variable in its store."""

    def __init__(self, keys: _Keys, variable: Variable, context: BatchTaskContext) -> None:
        store = context.store(variable.name)
        found = store.find(ColumnTaskStore) if isinstance(store, TaskStore) else None
        if found is None:
            raise TypeError(f"store `{variable.name}` cannot be used by column")
        self._name, self._keys, self._store = variable.name, keys, found
        self._serde = serde_of(variable.schema, f"the state variable `{variable.name}`")

    def get_many(self, keys: RowsLike) -> pa.RecordBatch:
        values, present = self._store.get_many(self._bytes(keys))
        return self._batch(values, present)

    def put_many(self, keys: RowsLike, rows: RowsLike) -> None:
        found, key_bytes = batch_of(rows), self._bytes(keys)
        if len(key_bytes) != found.num_rows:
            raise ValueError(f"state variable `{self._name}`: {len(key_bytes)} keys and {found.num_rows} rows")
        values = self._serde.packed.pack(self._serde.fitted(found))
        last = last_rows(key_bytes)
        self._store.put_many(Entries(key_bytes.take(last), values.take(last), np.ones(len(last), np.bool_)))

    def delete_many(self, keys: RowsLike) -> None:
        found = self._bytes(keys)
        found = found.take(last_rows(found))
        self._store.put_many(Entries(found, ByteArray.empty(len(found)), np.zeros(len(found), np.bool_)))

    def scan(self, rows: int = 65_536) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        for block in self._store.blocks(rows):
            yield self._keys.decoded(block.key_bytes), self._batch(block.value_bytes, None)

    def _bytes(self, keys: RowsLike) -> ByteArray:
        return ByteArray.of(self._keys.encoded(keys))

    def _batch(self, values: ByteArray, present: Any) -> pa.RecordBatch:
        rows = self._serde.packed.unpack(values, present)
        return pa.RecordBatch.from_arrays(rows.flatten(), schema=self._serde.schema)
