"""The functions of a random application that take messages by column. Their results are those of `tasks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

import penstock as ps
from tests.simulation import tasks
from tests.simulation.plans import Node
from tests.simulation.tasks import Message

FIELDS = ("n", "v", "trace")
SCHEMA = pa.schema({"n": pa.string(), "v": pa.int64(), "trace": pa.list_(pa.string())})
GIVEN = pa.schema({"t": pa.int64(), **{field.name: field.type for field in SCHEMA}})
"""The columns of an input."""
KEYED = pa.schema({**{field.name: field.type for field in SCHEMA}, "k": pa.string()})
"""With the key that follows."""
FOUND = pa.schema({"found": pa.string()})
"""A row of a table that is filled from outside."""
TOTAL = pa.schema({"total": pa.int64()})


class RowByRow:
    """A function of a batch that does to each row what a function of rows does."""

    def __init__(self, function: Callable[[Message], Message], schema: pa.Schema = SCHEMA) -> None:
        self.function, self.schema = function, schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([self.function(row) for row in batch.to_pylist()], self.schema)


class Kept:
    """A condition of a batch."""

    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([tasks.kept(self.a, self.b, {"v": v}) for v in batch["v"].to_pylist()], pa.bool_())


class Mapped:
    """`tasks.mapped`, with a new column of numbers that Arrow has computed."""

    def __init__(self, mark: str, a: int) -> None:
        self.mark, self.a = mark, a

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from pyarrow import compute

        names = [f"{n}{self.mark}" for n in batch["n"].to_pylist()]
        v = compute.add(compute.multiply(batch["v"], 1 + self.a), 1)
        return pa.RecordBatch.from_arrays([pa.array(names, pa.string()), v, batch["trace"]], schema=SCHEMA)


def with_key(a: int, b: int, row: Message) -> Message:
    return {**row, "k": tasks.key_of(a, b, row)}


def named_by_key(row: Message) -> Message:
    return {"n": f"{row['n']}@{row['k']}", "v": row["v"], "trace": row["trace"]}


def looked_up(node: int, row: Message) -> Message:
    return tasks.noted(row, node, 0, row["found"])


def condition(node: Node) -> Any:
    """`oracle.is_where`, as an expression."""
    v = ps.col("v")
    return (v * 2 - node.a > 3 + 4 * node.b) | (v.is_in([1, 2, 3 + node.a]) & ~(v == node.b))


def aggregates(node: Node) -> dict[str, ps.Aggregate]:
    """The aggregates of an `aggregate`; by column if they are of expressions."""
    of: Any = ps.col("v") if node.form >= 2 else _value
    return {
        "count": ps.Count(),
        "sum": ps.Sum(of),
        "least": ps.Min(of),
        "most": ps.Max(of),
        "mean": ps.Mean(of),
        "first": ps.First(of),
        "last": ps.Last(of),
    }


def of_window() -> dict[str, ps.Aggregate]:
    v = ps.col("v")
    return {"count": ps.Count(), "sum": ps.Sum(v), "least": ps.Min(v), "most": ps.Max(v)}


def _value(value: Message) -> Any:
    return value["v"]


class Batch(ps.BatchProcessor):
    """As `tasks.Kept` with the kind `sum`, for all messages at once. The places are in a store that it uses by row."""

    def __init__(self, node: int) -> None:
        self.node = node

    def init(self, context: Any) -> None:
        self.totals = context.store(f"store{self.node}")
        self.counts = context.row_store(f"count{self.node}")

    def process(self, batch: Any, collector: Any) -> None:
        keys, rows = batch.keys.to_pylist(), batch.values.to_pylist()
        known = sorted(set(keys))
        before = self.totals.get_many(pa.array(known, pa.string()))["total"].to_pylist()
        totals = {key: total or 0 for key, total in zip(known, before, strict=True)}
        results = []
        for key, row in zip(keys, rows, strict=True):
            totals[key] += row["v"]
            place = self.counts[key] = self.counts.get(key, 0) + 1
            results.append(tasks.noted(row, self.node, place, totals[key]))
        written = pa.RecordBatch.from_pylist([{"total": totals[key]} for key in known], TOTAL)
        self.totals.put_many(pa.array(known, pa.string()), written)
        collector.emit(batch.keys, pa.RecordBatch.from_pylist(results, SCHEMA))


def decoded(data: bytes, schema: pa.Schema) -> Any:
    """A row of a store."""
    return ps.Columns(schema).for_store_values().from_bytes(data)
