"""A value that no object of Python holds, or no JSON, is one failed message: the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.graph.serdes import input_place
from penstock.testing import TestRunner
from penstock.testing.runner.streams import StreamOfTest

ROWS = ps.Columns(pa.schema({"a": pa.int64(), "t": pa.timestamp("us", "UTC"), "x": pa.float64()}))
YEAR_10000 = 253_402_300_800_000_000


def append(runner: TestRunner, lines: list[str]) -> None:
    """As another program would write them."""
    stream = StreamOfTest(ps.SystemStream.parse("local.rows"), input_place("local.rows"), ps.String(), ps.String())
    runner._home.streams.append(stream, lines, None, 0)


def far_off(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times that a column holds, and a `datetime` does not, where a is 2."""
    far = pa.repeat(pa.scalar(YEAR_10000, pa.int64()), batch.num_rows).view(ROWS.schema.field("t").type)
    nan = pa.repeat(pa.scalar(float("nan")), batch.num_rows)
    here = pc.equal(batch["a"], 2)
    return batch.set_column(1, "t", pc.if_else(here, far, batch["t"])).set_column(2, "x", pc.if_else(here, nan, 1.0))


class Emits(ps.StreamTask):
    def process(self, message: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=message.key, value=message.value)


@pytest.fixture(params=[1, 4])
def runner_of(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[Any], Any]], TestRunner]]:
    made: list[TestRunner] = []

    def make(build: Callable[[Any], Any]) -> TestRunner:
        app = ps.StreamApplication("unfit")
        build(app.input("local.rows", value=ROWS)).send_to(app.output("local.out", value=ps.Json()))
        made.append(TestRunner(app, partitions=1, dead_letter="local.dead"))
        append(made[0], ['{"a":1}', '{"a":2,"t":"2024-01-01T00:00:00Z"}', '{"a":3}'] * request.param)
        return made[0]

    yield make
    for runner in made:
        runner.close()


def number(row: Any) -> Any:
    return row["a"]


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.map_batches(far_off, ROWS.schema).map(number),
        lambda rows: rows.map_batches(far_off, ROWS.schema).filter(lambda row: True).map(number),
        lambda rows: rows.map_batches(far_off, ROWS.schema).filter(ps.col("a") > 0).map(number),
        lambda rows: rows.map_batches(far_off, ROWS.schema).flat_map(lambda row: [row["a"]]),
        lambda rows: rows.map_batches(far_off, ROWS.schema).map(lambda m: m.value["a"], envelope=True),
        lambda rows: rows.map_batches(far_off, ROWS.schema).map_async(_a),
        lambda rows: rows.map_batches(far_off, ROWS.schema).partition_by(lambda row: str(row["a"])).map(number),
        lambda rows: rows.map_batches(far_off, ROWS.schema).process(Emits, value=ROWS).map(number),
        lambda rows: rows.process(Emits, value=ROWS).map_batches(far_off, ROWS.schema).map(number),
        lambda rows: rows.map_batches(far_off, ROWS.schema),
    ],
)
def test_a_row_that_no_object_holds_is_one_dead_letter(runner_of: Any, build: Callable[[Any], Any]) -> None:
    runner = runner_of(build).run()
    found = [each.value["a"] if isinstance(each.value, dict) else each.value for each in runner.output("local.out")]
    assert found == [1, 3] * (len(found) // 2)
    assert runner.dead_letters == len(found) // 2 > 0
    assert "out of range" in str(runner.output("local.dead")[0].value)


async def _a(row: Any) -> Any:
    return row["a"]


@pytest.mark.parametrize("text", ['"0001-01-01T00:00:00+01:00"', "[" * 1200 + "]" * 1200])
def test_texts_that_no_row_has(runner_of: Any, text: str) -> None:
    runner = runner_of(lambda rows: rows.map(number))
    append(runner, [f'{{"a":5,"t":{text}}}', f'{{"a":6,"more":{text}}}'])
    runner.run()
    values = [message.value for message in runner.output("local.out")]
    assert values[-1] == 6 if "0001" in text else 3
    assert 5 not in values
    assert runner.dead_letters == (1 if "0001" in text else 2)
