"""A processor that is started again with other state variables."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from penstock.checkpoint.record import StoreLayout
from penstock.start.layout import store_layout
from tests.support.oracles.processors import OneTask, application, spec_of

ROWS = StructType().add("user", StringType())
OUT = StructType().add("user", StringType()).add("found", StringType())
ONE, TWO = StructType().add("n", LongType()), StructType().add("n", LongType()).add("s", StringType())


class Declares(StatefulProcessor):
    def __init__(self, kind: str, schema: StructType, ttl_ms: int | None = None) -> None:
        self.kind, self.schema, self.ttl_ms = kind, schema, ttl_ms

    def init(self, handle: Any) -> None:
        if self.kind == "value":
            self.state = handle.getValueState("state", self.schema, self.ttl_ms)
        elif self.kind == "list":
            self.state = handle.getListState("state", self.schema, self.ttl_ms)
        else:
            self.state = handle.getMapState("state", StructType().add("k", StringType()), self.schema, self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        yield Row(user=key[0], found=repr(self.state.get()))
        self.state.update((5, "s")[: len(self.schema)])

    def close(self) -> None:
        pass


def layout(kind: str, schema: StructType, ttl_ms: int | None = None) -> StoreLayout:
    mode = "None" if ttl_ms is None else "ProcessingTime"
    app = application(spec_of(Declares(kind, schema, ttl_ms), ["user"], ROWS, OUT, mode))
    return StoreLayout.parse(store_layout(app.graph())["state"])


def test_a_layout_names_kind_and_schema() -> None:
    assert str(layout("value", TWO)) == "processor key-1(user:string) value-1(n:bigint,s:string)"
    assert layout("map", ONE).value == "map-1(k:string;n:bigint)"
    assert layout("list", ONE, 1_000).value == "list-1(ttl;n:bigint)"
    odd = StructType([StructField("a,b c", DecimalType(5, 2)), StructField("s", TWO)])
    assert layout("value", odd).value == "value-1(a%2Cb%20c:decimal(5,2),s:struct<n:bigint,s:string>)"


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_fields_may_be_added_at_the_end(kind: str) -> None:
    assert layout(kind, TWO).adds_fields(layout(kind, ONE))
    assert not layout(kind, ONE).adds_fields(layout(kind, TWO))
    assert not layout(kind, ONE).adds_fields(layout(kind, ONE))
    assert not layout(kind, TWO).adds_fields(layout("value" if kind == "map" else "map", ONE))
    first = StructType().add("s", StringType()).add("n", LongType())
    assert not layout(kind, first).adds_fields(layout(kind, ONE))


def test_rows_without_an_added_field_have_none() -> None:
    before = OneTask(spec_of(Declares("value", ONE), ["user"], ROWS, OUT))
    before.batch([{"user": "ann"}])
    after = OneTask(spec_of(Declares("value", TWO), ["user"], ROWS, OUT))
    after.take_over(before)
    assert after.batch([{"user": "ann"}]) == [{"user": "ann", "found": "(5, None)"}]
    assert after.batch([{"user": "ann"}]) == [{"user": "ann", "found": "(5, 's')"}]
