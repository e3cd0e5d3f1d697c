"""The serde of rows with a schema, which pass through an application as columns of Arrow.

Arrow is imported in the functions that need it: an application without columns starts without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from penstock.api.serdes.base import Serde
from penstock.base.wording import lone_surrogate
from penstock.errors import ConfigError

if TYPE_CHECKING:  # loaded when the first serde is made: the command line does without
    import pyarrow as pa

    from penstock.arrays.json_rows import JsonRows, Problems
    from penstock.arrays.packed_rows import PackedRows


class ColumnSerde(Serde[Any]):
    """A serde whose objects are rows of a schema: it reads and writes many at once, as columns."""

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        if not isinstance(schema, pa.Schema):
            raise ConfigError(f"ps.Columns() takes a pyarrow.Schema, not {schema!r}: ps.Columns(pa.schema([...]))")
        for name, count in Counter(schema.names).items():
            if count > 1:
                raise ConfigError(f"{count} columns have the name `{name}`")
        if not schema.names:
            raise ConfigError("a schema has at least one column")
        self.declared = schema
        self.required = tuple(field.name for field in schema if not field.nullable)
        self.schema = pa.schema([pa.field(field.name, _without_dictionaries(field.type)) for field in schema])
        """The columns. All may be null, because a message may have no value; none is dictionary-encoded, because each
        message stands alone."""
        self.type = pa.struct(list(self.schema))
        self._names = frozenset(schema.names)
        from penstock.arrays.types import deep_fit

        self._fit = deep_fit(self.type)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.declared,)

    def __repr__(self) -> str:
        return f"ps.Columns({described(self.declared)})"

    @abstractmethod
    def read(self, values: Sequence[bytes | None]) -> tuple[pa.StructArray, Problems]:
        """The rows of the bytes, and the problems of those that do not fit the schema, which are null.

        Args:
            values: the bytes; None is a null.
        """

    @abstractmethod
    def write(self, rows: pa.StructArray) -> Sequence[bytes | None]:
        """The bytes of each row.

        Args:
            rows: of this schema.

        Raises:
            ValueError: a row cannot be written.
        """

    def write_one(self, row: Mapping[str, Any]) -> bytes | None:
        """The bytes of a dict that is a row as it is; None if Arrow has to make one of it.

        Args:
            row: has no unknown columns.
        """
        return None

    def read_one(self, data: bytes) -> dict[str, Any] | None:
        """The row as a dict; None if Arrow has to make one.

        Args:
            data: the bytes.
        """
        return None

    def to_bytes(self, obj: Any) -> bytes:
        """See `Serde.to_bytes`."""
        self._check(obj)
        return self.write_one(obj) or self.write(self.rows_of([obj]))[0] or b""

    def from_bytes(self, data: bytes) -> Any:
        """See `Serde.from_bytes`."""
        if (row := self.read_one(data)) is not None:
            return row
        rows, problems = self.read([data])
        if problems:
            raise ValueError(problems[0])
        return rows[0].as_py()

    def rows_of(self, objects: Sequence[Mapping[str, Any] | None]) -> pa.StructArray:
        """The columns of these dicts.

        Args:
            objects: the dicts; None is a null.

        Raises:
            TypeError, ValueError: one does not fit the schema.
        """
        import pyarrow as pa

        for each in objects:
            if each is not None:
                self._check(each)
        try:
            return pa.array(objects if self._fit is None else [*map(self._fit, objects)], self.type)
        except UnicodeEncodeError as error:
            raise ValueError(lone_surrogate(error)) from None

    def _check(self, row: Any) -> None:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row is a dict, not a value of type {type(row).__name__}")
        if not row.keys() <= self._names:
            unknown = next(iter(row.keys() - self._names))
            raise ValueError(f"there is no column `{unknown}`; the columns are {', '.join(self.schema.names)}")
        for name in self.required:
            if row.get(name) is None:
                raise ValueError(f"column `{name}` must not be null")

    def narrowed(self, names: Collection[str]) -> Self:
        """The serde of some of the columns; without a name, of the smallest, because a row has at least one.

        Args:
            names: of columns.
        """
        import pyarrow as pa

        chosen = [field for field in self.declared if field.name in names]
        return type(self)(pa.schema(chosen or [min(self.declared, key=_width)]))

    def narrow(self, rows: pa.StructArray) -> pa.StructArray:
        """These columns of rows that may have more.

        Args:
            rows: have at least these columns.
        """
        import pyarrow as pa

        if rows.type == self.type:
            return rows
        columns = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))
        absent = rows.is_null() if rows.null_count else None
        fields = list(self.schema)
        return pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields, mask=absent)

    def fitted(self, batch: pa.RecordBatch) -> pa.StructArray:
        """The columns of a batch that code of the application made, in the order and with the types of the schema.

        Args:
            batch: has all columns of the schema, and no others.

        Raises:
            ValueError: a column is missing, unknown, of a type that does not fit, or null where it must not be.
        """
        import pyarrow as pa

        from penstock.arrays.given import converted

        names = batch.schema.names
        if missing := [name for name in self.schema.names if name not in names]:
            raise ValueError(f"the batch has no column `{missing[0]}`; it has {', '.join(names) or 'none'}")
        if unknown := [name for name in names if name not in self._names]:
            raise ValueError(f"there is no column `{unknown[0]}`; the columns are {', '.join(self.schema.names)}")
        columns = []
        for field in self.schema:
            column = batch.column(field.name)
            try:
                column = converted(column, field.type)
            except ValueError as error:
                raise ValueError(f"column `{field.name}` does not fit {field.type}: {error}") from error
            if column.null_count and field.name in self.required:
                raise ValueError(f"column `{field.name}` must not be null")
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(self.schema))


class Columns(ColumnSerde):
    """Rows with a schema, which an application processes as columns of Arrow. In a stream each is a JSON object.

    A row is a dict for code that takes one message at a time, and a row of a `pyarrow.RecordBatch` for code that takes
    all of them. Rows stay in columns from the source through exchanges to stores and outputs; they become dicts only
    for operators that need those.

    In JSON, fields that the schema does not have are passed over, and one that a row lacks is null. Timestamps with a
    zone are text with a zone or epoch milliseconds, bytes are Base64, decimals are text or numbers, times and durations
    are integers in their unit. A row that does not fit is one bad message, and the others of its batch are not touched:
    so is one with a number or a time that its type cannot hold, or that is nested too deeply.

    Example:
        >>> import pyarrow as pa
        >>> flights = ps.Columns(pa.schema({"tail": pa.string(), "miles": pa.int64()}))
        >>> flights.from_bytes(b'{"tail": "N14228", "miles": 1400, "note": "on time"}')
        {'tail': 'N14228', 'miles': 1400}
        >>> flights.to_bytes({"tail": "N14228"})
        b'{"tail":"N14228","miles":null}'
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Make a serde of rows.

        Args:
            schema: the columns. A field with `nullable=False` must not be null.

        Raises:
            ConfigError: the schema has no column, two of the same name, or a type whose values cannot be written.
        """
        super().__init__(schema)
        try:
            self._json = _json_rows(self.schema, self.required)
            _packed_rows(self.schema)
        except TypeError as error:
            raise ConfigError(f"ps.Columns(): {error}. Cast the column, or leave it out") from None

    @property
    def name(self) -> str:
        return "columns"

    def for_store_values(self) -> Serde[Any]:
        return PackedColumns(self.declared)

    def read(self, values: Sequence[bytes | None]) -> tuple[pa.StructArray, Problems]:
        return self._json.read(values)

    def write(self, rows: pa.StructArray) -> Sequence[bytes | None]:
        return self._json.write(rows)

    def write_one(self, row: Mapping[str, Any]) -> bytes | None:
        return self._json.write_one(row)

    def read_one(self, data: bytes) -> dict[str, Any] | None:
        return self._json.read_one(data)


class PackedColumns(ColumnSerde):
    """`Columns` for the values of stores: their bytes are packed, not JSON."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self.packed = _packed_rows(self.schema, counted=True)

    @property
    def name(self) -> str:
        """Two schemas have different names: state is not read with another schema."""
        return f"columns({described(self.declared)})".replace(" ", "%20")

    def for_store_values(self) -> Serde[Any]:
        return self

    def read(self, values: Sequence[bytes | None]) -> tuple[pa.StructArray, Problems]:
        import pyarrow as pa

        from penstock.arrays.byte_arrays import ByteArray

        array = pa.array(values, pa.large_binary())
        valid = ~array.is_null().to_numpy(zero_copy_only=False)
        return self.packed.unpack(ByteArray.of(array), valid), {}

    def write_one(self, row: Mapping[str, Any]) -> bytes | None:
        return self.packed.pack_one(row)

    def read_one(self, data: bytes) -> dict[str, Any] | None:
        return self.packed.unpack_one(data)

    def write(self, rows: pa.StructArray) -> Sequence[bytes | None]:
        found: list[bytes | None] = self.packed.pack(rows).to_arrow(_valid(rows)).to_pylist()
        return found


@lru_cache(maxsize=256)
def _json_rows(schema: pa.Schema, required: tuple[str, ...]) -> JsonRows:
    """The reader of a schema, which takes milliseconds to make: all serdes of the schema share it."""
    from penstock.arrays.json_rows import JsonRows

    return JsonRows(list(schema), required)


@lru_cache(maxsize=256)
def _packed_rows(schema: pa.Schema, *, counted: bool = False) -> PackedRows:
    from penstock.arrays.packed_rows import PackedRows

    return PackedRows(list(schema), counted=counted)


def _without_dictionaries(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _without_dictionaries(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_dictionaries(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_dictionaries(kind.key_type), _without_dictionaries(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_without_dictionaries(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_without_dictionaries(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_without_dictionaries(kind.value_type))
    return kind


def _width(field: pa.Field) -> int:
    try:
        return int(field.type.bit_width)
    except ValueError:
        return 1 << 30  # its values differ in length


def _valid(rows: pa.Array) -> Any:
    return None if rows.null_count == 0 else ~rows.is_null().to_numpy(zero_copy_only=False)


def described(schema: pa.Schema) -> str:
    """The columns and their types, as `tail:string,miles:int64`."""
    return ",".join(f"{field.name}:{field.type}{'' if field.nullable else '!'}" for field in schema)
