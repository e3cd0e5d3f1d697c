"""Values of all types in state: what is read again is what PySpark reads, and what it wrote can be taken over."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from datetime import UTC, date, timedelta, timezone
from decimal import Decimal
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from penstock.spark.processor.task import ProcessorSpec
from tests.support.oracles import beside_pyspark
from tests.support.oracles.beside_pyspark import run_in_pyspark, shown, taken_over
from tests.support.oracles.processors import OneTask, spec_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

N = StructType().add("n", LongType())
OUT = StructType().add("what", StringType()).add("said", StringType())


class Pair(NamedTuple):
    a: int
    b: str


def at(*parts: int, **more: Any) -> datetime.datetime:
    return datetime.datetime(*parts, **more)  # type: ignore[arg-type]  # noqa: DTZ001


EAST = timezone(timedelta(hours=2))
VALUES: dict[str, list[Any]] = {
    "BOOLEAN": [True, False, np.bool_(True)],
    "TINYINT": [1, -128, 127, np.int8(3)],
    "SMALLINT": [-32768, np.int16(3)],
    "INT": [-(2**31), np.int32(3)],
    "BIGINT": [-(2**63), 2**63 - 1, np.int64(3)],
    "FLOAT": [1.5, 0.1, float("nan"), float("inf"), -0.0, np.float32(0.1)],
    "DOUBLE": [0.1, float("nan"), -float("inf"), -0.0, np.float64(0.1)],
    "DECIMAL(10,2)": [Decimal("1.5"), Decimal("1.005"), Decimal("1.015"), Decimal("-1.005"), Decimal(5), Decimal(0)],
    "DECIMAL(38,18)": [Decimal("-0.000000000000000001"), Decimal("12345678901234567890.123456789012345678")],
    "STRING": ["", "a\u00e9\U0001f600", "a\0b", np.str_("n")],
    "BINARY": [b"", b"\x00\xff", bytearray(b"ab")],
    "DATE": [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)],
    "TIMESTAMP": [
        at(2024, 2, 29, 1, 2, 3, 456789),
        at(1900, 1, 1),
        at(2024, 1, 1, 12, tzinfo=UTC),
        at(2024, 1, 1, 12, tzinfo=EAST),
        at(2024, 3, 31, 2, 30),
        at(2024, 10, 27, 2, 30),
        at(2024, 10, 27, 2, 30, fold=1),
        pd.Timestamp(2024, 5, 6, 7),
    ],
    "TIMESTAMP_NTZ": [at(2024, 2, 29, 1, 2, 3, 456789), at(1900, 1, 1)],
    "ARRAY<BIGINT>": [[1, None, 3], [], (1, 2), [np.int64(4)]],
    "ARRAY<ARRAY<STRING>>": [[["a"], None, []]],
    "ARRAY<TIMESTAMP>": [[at(2024, 1, 1, 5)]],
    "MAP<STRING, BIGINT>": [{"a": 1, "b": None}, {}],
    "MAP<STRING, MAP<STRING, ARRAY<DOUBLE>>>": [{"a": {"b": [1.0]}}],
    "STRUCT<a: BIGINT, b: STRING>": [
        (1, "x"),
        {"a": 1, "b": "y"},
        {"a": 5},
        Row(a=2, b="z"),
        Pair(3, "w"),
        [4, "l"],
        (None, None),
    ],
    "ARRAY<STRUCT<a: BIGINT, b: STRING>>": [[(1, "x"), {"a": 2, "b": "y"}, None, Pair(3, "w")]],
    "STRUCT<t: TIMESTAMP, d: DATE, n: TIMESTAMP_NTZ>": [(at(2024, 1, 1, 5), date(2024, 1, 1), at(2024, 1, 1, 6))],
    "STRUCT<b: BINARY>": [(b"ab",), (bytearray(b"cd"),)],
}


class States(StatefulProcessor):
    """Writes values of all types to state, and says what it reads."""

    def __init__(self, schemas: dict[str, StructType]) -> None:
        self.schemas = schemas

    def init(self, handle: Any) -> None:
        self.kinds: dict[str, Any] = {}
        for number, kind in enumerate(self.schemas):
            field = self.schemas[kind]
            self.kinds[kind] = (
                handle.getValueState(f"value{number}", field),
                handle.getListState(f"list{number}", field),
                handle.getMapState(f"map{number}", N, field),
                None if "MAP" in kind or kind in ("FLOAT", "DOUBLE") else handle.getMapState(f"keys{number}", field, N),
            )

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for kind, states in self.kinds.items():
            yield Row(what=f"{kind} there", said=self.there(*states))
            for number, value in enumerate([None, *VALUES[kind]]):
                for name in ("value", "list", "entry", "keys"):
                    try:
                        said = shown(getattr(self, name)(states, number, value))
                    except Exception as error:
                        said = f"! {type(error).__name__} {error}"
                    yield Row(what=f"{kind} {number} {shown(value)} {name}", said=said)

    def there(self, value: Any, elements: Any, entries: Any, keys: Any) -> str:
        """All that there is."""
        found = sorted(map(shown, entries.iterator())), [] if keys is None else sorted(map(shown, keys.iterator()))
        return repr((shown(value.get()), shown(list(elements.get())), found))

    def value(self, states: Any, number: int, value: Any) -> Any:
        states[0].update((value,))
        return states[0].get()

    def list(self, states: Any, number: int, value: Any) -> Any:
        states[1].appendValue((value,))
        return list(states[1].get())[-1:]

    def entry(self, states: Any, number: int, value: Any) -> Any:
        states[2].updateValue((number,), (value,))
        return states[2].getValue((number,))

    def keys(self, states: Any, number: int, value: Any) -> Any:
        if states[3] is None:
            return None
        states[3].updateValue((value,), (number,))
        return states[3].containsKey((value,)), states[3].getValue((value,))

    def close(self) -> None:
        pass


def both(
    spark: SparkSession, folder: Path, made: type[States | Wide]
) -> tuple[dict[int, list[Row]], ProcessorSpec, list[list[dict[str, Any]]]]:
    """The results of PySpark for two batches, those of Penstock, and the batches."""
    for module in (sys.modules[__name__], beside_pyspark):
        cloudpickle.register_pickle_by_value(module)
    for number in range(2):
        spark.range(number, number + 1, 1, 1).selectExpr("0 AS k", "id").write.parquet(
            str(folder / "in" / f"n={number}")
        )
    rows = (
        spark.readStream.schema("k INT, id BIGINT, n INT").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    )
    processor = made({kind: spark.sql(f"SELECT CAST(NULL AS {kind}) f").schema for kind in VALUES})
    found = run_in_pyspark(rows, folder / "checkpoint", processor, ["k"], OUT, "None")
    assert sorted(found) == [0, 1]
    schema = StructType().add("k", IntegerType()).add("id", LongType())
    return found, spec_of(processor, ["k"], schema, OUT), [[{"k": 0, "id": number}] for number in range(2)]


def test_state_of_all_types(spark: SparkSession, tmp_path: Path) -> None:
    found, spec, rows = both(spark, tmp_path, States)
    task = OneTask(spec)
    first = differences(found[0], task.batch(rows[0]))
    task.restart()
    second = differences(found[1], task.batch(rows[1]))
    assert (first, second) == ([], [])


class Wide(StatefulProcessor):
    """Has values of all types in one row, says what it reads, and writes many of them."""

    def __init__(self, schemas: dict[str, StructType]) -> None:
        self.schema, self.keys = StructType(), StructType()
        self.columns: list[list[Any]] = []
        self.are_keys: list[bool] = []
        for number, (kind, one) in enumerate(schemas.items()):
            self.schema.add(f"f{number}", one["f"].dataType)
            self.columns.append(VALUES[kind])
            self.are_keys.append("MAP" not in kind and kind not in {"FLOAT", "DOUBLE"})
            if self.are_keys[-1]:
                self.keys.add(f"f{number}", one["f"].dataType)

    def init(self, handle: Any) -> None:
        self.one = handle.getValueState("one", self.schema)
        self.all = handle.getListState("all", self.schema)
        self.by_number = handle.getMapState("by_number", N, self.schema)
        self.by_values = handle.getMapState("by_values", self.keys, N)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(what="one", said=shown(self.one.get()))
        yield Row(what="all", said=shown(list(self.all.get())))
        yield Row(what="by number", said=repr(sorted(map(shown, self.by_number.iterator()))))
        yield Row(what="by values", said=repr(sorted(map(shown, self.by_values.iterator()))))
        for number in range(-1, max(map(len, self.columns))):
            values = [None if number < 0 else column[number % len(column)] for column in self.columns]
            self.one.update(tuple(values))
            self.all.appendValue(tuple(values))
            self.by_number.updateValue((number,), tuple(values))
            self.by_values.updateValue(tuple(compress(values, self.are_keys)), (number,))

    def close(self) -> None:
        pass


def test_state_of_all_types_is_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    found, spec, rows = both(spark, tmp_path, Wide)
    other = taken_over(spark, spec, tmp_path / "checkpoint", 0)
    assert differences(found[1], other.batch(rows[1])) == []


def differences(expected: list[Row], found: list[dict[str, Any]]) -> list[str]:
    """The error of PySpark, and that of Penstock."""
    ours = {row["what"]: row["said"] for row in found}
    assert len(ours) == len(expected)
    return [f"{row.what}: {row.said} | {ours[row.what]}" for row in expected if ours[row.what] != row.said]
