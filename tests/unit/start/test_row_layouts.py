"""Refusals when a processor of PySpark no longer fits the state of a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DataType, DateType, IntegerType, LongType, MapType, StringType, StructType

from penstock.checkpoint.record import Claim
from penstock.errors import IncompatibleError
from penstock.spark.processor.declared import DeclaredVariables, TimeMode, Variable
from penstock.spark.processor.task import ProcessorSpec
from penstock.start.layout import check_layout, store_layout
from tests.support.oracles.processors import application
from tests.support.stores.checkpoints import checkpoint

TYPES: dict[str, DataType] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "date": DateType(),
    "array<int>": ArrayType(IntegerType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def schema(ddl: str) -> StructType:
    found = StructType()
    for column in ddl.split(", "):
        name, _, kind = column.rpartition(" ")
        found = found.add(name, TYPES[kind])
    return found


def layout(*variables: Variable, key: str = "user string", mode: TimeMode = "none") -> dict[str, str]:
    spec = ProcessorSpec(
        operator="processor",
        processor=b"",
        declared=DeclaredVariables(variables),
        key=schema(key),
        input=pa.schema([]),
        output=schema("n int"),
        mode=mode,
        event_time=None,
    )
    return store_layout(application(spec).graph())


def check(before: dict[str, str], now: dict[str, str]) -> None:
    check_layout(replace(checkpoint(Claim(1, "run", "writer"), 1), stores=before), now, 0)


VISITS = Variable("value", "visits", schema("n bigint, of array<int>"))
BEFORE = layout(VISITS)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (Variable("value", "visits", schema("n int, of array<int>")), "column `n` was bigint and is int now"),
        (Variable("value", "visits", schema("n bigint")), "column `of` of type array<int> is gone"),
        (
            Variable("value", "visits", schema("n bigint, new int, of array<int>")),
            "its columns were n and of and are n, new and of now; new ones go to the end",
        ),
        (Variable("list", "visits", VISITS.schema), "it was a value and is a list now"),
    ],
)
def test_a_changed_state_variable_is_named_with_its_column_and_types(now: Variable, said: str) -> None:
    with pytest.raises(IncompatibleError) as raised:
        check(BEFORE, layout(now))
    assert str(raised.value).startswith(f"the state variable `visits` has changed: {said}. Set it back, or begin")


def test_columns_may_be_added_at_the_end_and_a_time_to_live() -> None:
    check(BEFORE, layout(Variable("value", "visits", schema("n bigint, of array<int>, new map<string,int>"))))
    check(BEFORE, layout(replace(VISITS, ttl_ms=1000)))


def test_a_time_to_live_cannot_be_removed() -> None:
    with pytest.raises(IncompatibleError, match="`visits` has changed: its values had a time to live"):
        check(layout(replace(VISITS, ttl_ms=1000)), BEFORE)


def test_a_variable_that_is_no_longer_declared() -> None:
    with pytest.raises(IncompatibleError, match="`visits` is in the checkpoint, and the processor does not declare it"):
        check(BEFORE, layout())


def test_a_changed_key_of_a_map() -> None:
    old, new = (Variable("map", "m", schema("n int"), schema(key)) for key in ("a string", "a string, b date"))
    with pytest.raises(IncompatibleError, match=r"its key was \(a string\) and is \(a string, b date\) now"):
        check(layout(old), layout(new))


def test_a_changed_grouping_key() -> None:
    with pytest.raises(IncompatibleError, match=r"the grouping key was \(user string\) and is \(id bigint\) now"):
        check(BEFORE, layout(VISITS, key="id bigint"))


def test_a_changed_time_mode() -> None:
    timed = layout(VISITS, mode="processingtime")
    with pytest.raises(IncompatibleError, match="the time mode was processingtime and is eventtime now"):
        check(timed, layout(VISITS, mode="eventtime"))
    with pytest.raises(IncompatibleError, match="timers of the processor have a time mode in the checkpoint, and the"):
        check(timed, BEFORE)
    check(BEFORE, timed)
