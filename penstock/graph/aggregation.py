"""Aggregates by key: whether they are computed by column, and the types of their states and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.api.expressions import Expression
from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.time.aggregates import (
    Aggregate,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    Variance,
    is_whole_value,
)
from penstock.columns import folds
from penstock.columns.folds import Fold
from penstock.errors import ConfigError

_FOLDS: Mapping[type[Aggregate], Callable[[pa.DataType | None], Fold]] = {
    Count: folds.count_fold,
    First: folds.first_fold,
    Last: folds.last_fold,
    Max: folds.greatest_fold,
    Mean: folds.mean_fold,
    Min: folds.least_fold,
    Sum: folds.sum_fold,
    Variance: folds.variance_fold,
}


class ColumnAggregate(NamedTuple):
    """An aggregate that is computed by column."""

    name: str
    of: Expression | None
    """None: each message that has a value counts."""
    fold: Fold


def column_aggregates(aggregates: Mapping[str, Aggregate], serde: Serde[Any]) -> list[ColumnAggregate] | None:
    """The aggregates with empty states, if all of them can be computed by column; None if messages are added one at a
    time.

    Raises:
        ConfigError: the type of a column does not fit its aggregate.
    """
    if not isinstance(serde, ColumnSerde):
        return None
    found = []
    for name, each in aggregates.items():
        fold, of = _FOLDS.get(type(each)), each.of
        counts_all = type(each) is Count and is_whole_value(of)
        if fold is None or not (counts_all or isinstance(of, Expression)):
            return None
        expression = of if isinstance(of, Expression) else None
        kind = None if expression is None else expression.type_in(serde.schema, f"aggregate(): `{name}`")
        try:
            found.append(ColumnAggregate(name, expression, fold(kind)))
        except TypeError as error:
            raise ConfigError(
                f"aggregate(): `{name}`: {type(each).__name__} of `{of}`: {error}. Take a function of the row in "
                "place of the expression, or another column"
            ) from None
    return found


def column_results(aggregates: Mapping[str, Aggregate], serde: Serde[Any]) -> list[pa.Field] | None:
    """The columns of the results, if the aggregates are computed by column. Raises ConfigError."""
    found = column_aggregates(aggregates, serde)
    return None if found is None else [pa.field(each.name, each.fold.result_type) for each in found]


def state_fields(aggregates: list[ColumnAggregate]) -> list[pa.Field]:
    """The columns of the stored states."""
    return [
        pa.field(f"{number}.{name}", kind) for number, each in enumerate(aggregates) for name, kind in each.fold.fields
    ]


def definition_of(aggregates: Mapping[str, Aggregate], serde: Serde[Any]) -> str:
    """The properties that the bytes of an aggregate's store depend on, as one word."""
    by_column = column_aggregates(aggregates, serde)
    kinds = [f"{name}={type(each).__qualname__}" for name, each in aggregates.items()]
    if by_column is None:
        return f"aggregate({','.join(kinds)})"
    types = [str(kind) for each in by_column for _, kind in each.fold.fields]
    return f"aggregate-columns({','.join(kinds)}:{','.join(types)})".replace(" ", "")
