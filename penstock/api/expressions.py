"""Expressions over the columns of a message: evaluated by column where a stream has columns, else row by row.

Arrow is imported in the functions that need it: an application without columns starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from penstock.arrays.calculation import ROWS
from penstock.errors import ConfigError

if TYPE_CHECKING:  # loaded when the first batch is computed: the command line does without
    import pyarrow as pa

Batch: TypeAlias = "pa.RecordBatch"


class Expression:
    """A value computed from the columns of a message. Make one with `ps.col`.

    It has the operators `+ - * /`, the comparisons, and `& | ~` for conditions, which need brackets:
    `(ps.col("miles") > 100) & (ps.col("tail") != "N1")`. A null makes the result null, except that `&` with a false
    side is false and `|` with a true side is true. `/` always gives a float: dividing by zero gives an infinity or NaN.
    Comparisons are of the exact values. Integers are calculated in 64 bits, and a result that does not fit is an error.

    A filter keeps the messages for which it is true, and not those for which it is null.

    Example:
        >>> is_long = (ps.col("miles") > 1000) & ~ps.col("cancelled")
        >>> is_long({"miles": 1400, "cancelled": False}), is_long({"miles": 90, "cancelled": False})
        (True, False)
        >>> print(is_long)
        ((miles > 1000) & ~cancelled)
    """

    def __call__(self, row: Any) -> Any:
        """The value for one row.

        Args:
            row: a dict with the columns. A column that it lacks is None.

        Raises:
            TypeError: the row is not a dict.
        """
        if not isinstance(row, Mapping):
            raise TypeError(f"`{self}` needs a dict with columns, not a value of type {type(row).__name__}")
        return self.row_value(row)

    def row_value(self, row: Mapping[str, Any]) -> Any:
        """As `__call__`, for a dict.

        Args:
            row: the dict.
        """
        raise NotImplementedError

    def of_batch(self, batch: Batch) -> pa.Array:
        """The values for all rows of a batch, as a column.

        Args:
            batch: has the columns.

        Raises:
            pyarrow.ArrowException: a value does not fit, as in the sum of two integers that no integer holds.
        """
        import pyarrow as pa

        found = self.batch_value(batch)
        return pa.repeat(found, batch.num_rows) if isinstance(found, pa.Scalar) else found

    def batch_value(self, batch: Batch) -> Any:
        """As `of_batch`; a constant is one value.

        Args:
            batch: has the columns.
        """
        raise NotImplementedError

    @property
    def columns(self) -> frozenset[str]:
        """The names of the columns that it uses."""
        return frozenset(self.used_columns())

    def used_columns(self) -> Iterator[str]:
        """The names of the columns, as often as they occur."""
        yield from ()

    def type_in(self, schema: pa.Schema, what: str) -> pa.DataType:
        """The type of its values.

        Args:
            schema: the columns.
            what: the beginning of an error's text.

        Raises:
            ConfigError: the schema has no such columns, or their types do not fit.
        """
        import pyarrow as pa

        for name in sorted(self.columns):
            if name not in schema.names:
                raise ConfigError(f"{what}: there is no column `{name}`; the columns are {', '.join(schema.names)}")
        try:
            return self.of_batch(pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)).type
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
            raise ConfigError(f"{what}: `{self}` does not fit the types of the columns: {error}") from None

    def check_time(self, schema: pa.Schema, what: str) -> None:
        """Raise ConfigError unless its values are points in time or epoch milliseconds.

        Args:
            schema: the columns.
            what: the beginning of an error's text.
        """
        import pyarrow as pa

        kind = self.type_in(schema, what)
        if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
            raise ConfigError(f"{what}: `{self}` is {kind}; an event time is a timestamp, or epoch milliseconds")

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"`{self}` is a condition for each message, not one truth value: combine conditions with &, | and ~ in "
            "place of `and`, `or` and `not`, and put brackets around comparisons"
        )

    __hash__ = object.__hash__

    def is_null(self) -> Expression:
        """True where the value is null."""
        return _Call("is_null", (self,))

    def is_in(self, values: Collection[Any]) -> Expression:
        """True where the value is one of these; never null.

        Args:
            values: the values.
        """
        return _IsIn(self, tuple(values))

    def fill_null(self, value: Any) -> Expression:
        """The value, or another one where it is null.

        Args:
            value: the other one, a constant or an expression.
        """
        return _Call("fill_null", (self, _expression(value)))

    def __add__(self, other: Any) -> Expression:
        return _Call("+", (self, _expression(other)))

    def __radd__(self, other: Any) -> Expression:
        return _Call("+", (_expression(other), self))

    def __sub__(self, other: Any) -> Expression:
        return _Call("-", (self, _expression(other)))

    def __rsub__(self, other: Any) -> Expression:
        return _Call("-", (_expression(other), self))

    def __mul__(self, other: Any) -> Expression:
        return _Call("*", (self, _expression(other)))

    def __rmul__(self, other: Any) -> Expression:
        return _Call("*", (_expression(other), self))

    def __truediv__(self, other: Any) -> Expression:
        return _Call("/", (self, _expression(other)))

    def __rtruediv__(self, other: Any) -> Expression:
        return _Call("/", (_expression(other), self))

    def __eq__(self, other: object) -> Any:
        return _Call("==", (self, _expression(other)))

    def __ne__(self, other: object) -> Any:
        return _Call("!=", (self, _expression(other)))

    def __lt__(self, other: Any) -> Expression:
        return _Call("<", (self, _expression(other)))

    def __le__(self, other: Any) -> Expression:
        return _Call("<=", (self, _expression(other)))

    def __gt__(self, other: Any) -> Expression:
        return _Call(">", (self, _expression(other)))

    def __ge__(self, other: Any) -> Expression:
        return _Call(">=", (self, _expression(other)))

    def __and__(self, other: Any) -> Expression:
        return _Call("&", (self, _expression(other)))

    def __rand__(self, other: Any) -> Expression:
        return _Call("&", (_expression(other), self))

    def __or__(self, other: Any) -> Expression:
        return _Call("|", (self, _expression(other)))

    def __ror__(self, other: Any) -> Expression:
        return _Call("|", (_expression(other), self))

    def __invert__(self) -> Expression:
        return _Call("~", (self,))


def col(name: str, *more: str) -> Expression:
    """The column of this name, in an expression.

    Args:
        name: a column of the stream's schema; in a stream of JSON objects, a field.
        more: with the names of further columns, it is a tuple of all of them, which is a key of several columns:
            `partition_by(ps.col("carrier", "day"), key=ps.Tuple(ps.String(), ps.Long()))`.

    Raises:
        ConfigError: a name is not text.

    Example:
        >>> app = ps.StreamApplication("long-flights")
        >>> flights = app.input("local.flights").filter(ps.col("miles") >= 1000)
        >>> _ = flights.send_to(app.output("local.long"))
        >>> runner = TestRunner(app).input("local.flights", [{"miles": 1400}, {"miles": 90}]).run()
        >>> [message.value for message in runner.output("local.long")]
        [{'miles': 1400}]
    """
    for each in (name, *more):
        if not isinstance(each, str):
            raise ConfigError(f"ps.col() takes the name of a column, not {each!r}")
    return _Tuple((name, *more)) if more else _Column(name)


def _expression(value: Any) -> Expression:
    return value if isinstance(value, Expression) else _Constant(value)


@dataclass(frozen=True, eq=False)
class _Column(Expression):
    name: str

    def __str__(self) -> str:
        return self.name

    def row_value(self, row: Mapping[str, Any]) -> Any:
        return row.get(self.name)

    def batch_value(self, batch: Batch) -> Any:
        return batch.column(self.name)

    def used_columns(self) -> Iterator[str]:
        yield self.name


@dataclass(frozen=True, eq=False)
class _Tuple(Expression):
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"({', '.join(self.names)})"

    def row_value(self, row: Mapping[str, Any]) -> Any:
        return tuple(row.get(name) for name in self.names)

    def batch_value(self, batch: Batch) -> Any:
        import pyarrow as pa

        return pa.StructArray.from_arrays([batch.column(name) for name in self.names], names=self.names)

    def used_columns(self) -> Iterator[str]:
        yield from self.names


@dataclass(frozen=True, eq=False)
class _Constant(Expression):
    value: Any

    def __str__(self) -> str:
        return repr(self.value)

    def row_value(self, row: Mapping[str, Any]) -> Any:
        return self.value

    def batch_value(self, batch: Batch) -> Any:
        from penstock.arrays.arithmetic import constant

        return constant(self.value)


@dataclass(frozen=True, eq=False)
class _IsIn(Expression):
    of: Expression
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.of}.is_in({list(self.values)!r})"

    def row_value(self, row: Mapping[str, Any]) -> Any:
        return self.of.row_value(row) in self.values

    def batch_value(self, batch: Batch) -> Any:
        from penstock.arrays.arithmetic import is_one_of

        return is_one_of(self.of.of_batch(batch), self.values)

    def used_columns(self) -> Iterator[str]:
        yield from self.of.used_columns()


@dataclass(frozen=True, eq=False)
class _Call(Expression):
    name: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        shown = [str(each) for each in self.arguments]
        if self.name == "~":
            return f"~{shown[0]}"
        if self.name in ("is_null", "fill_null"):
            return f"{shown[0]}.{self.name}({', '.join(shown[1:])})"
        return f"({shown[0]} {self.name} {shown[1]})"

    def row_value(self, row: Mapping[str, Any]) -> Any:
        return ROWS[self.name](*(each.row_value(row) for each in self.arguments))

    def batch_value(self, batch: Batch) -> Any:
        return _batches()[self.name](*(each.batch_value(batch) for each in self.arguments))

    def used_columns(self) -> Iterator[str]:
        for each in self.arguments:
            yield from each.used_columns()


@dataclass(frozen=True, eq=False)
class Selection(Expression):
    """Named expressions: a row of their values."""

    parts: tuple[tuple[str, Expression], ...]

    def __str__(self) -> str:
        return ", ".join(f"{name}={each}" for name, each in self.parts)

    def row_value(self, row: Mapping[str, Any]) -> Any:
        return {name: each.row_value(row) for name, each in self.parts}

    def batch_value(self, batch: Batch) -> Any:
        import pyarrow as pa

        arrays = [each.of_batch(batch) for _, each in self.parts]
        return pa.StructArray.from_arrays(arrays, names=[name for name, _ in self.parts])

    def used_columns(self) -> Iterator[str]:
        for _, each in self.parts:
            yield from each.used_columns()


@cache
def _batches() -> Mapping[str, Callable[..., Any]]:
    import pyarrow.compute as pc

    from penstock.arrays.arithmetic import calculated, compared, divided, filled

    return {
        **{name: partial(calculated, name) for name in ("+", "-", "*")},
        **{name: partial(compared, name) for name in ("==", "!=", "<", "<=", ">", ">=")},
        "/": divided,
        "&": pc.and_kleene,
        "|": pc.or_kleene,
        "~": pc.invert,
        "is_null": pc.is_null,
        "fill_null": filled,
    }
