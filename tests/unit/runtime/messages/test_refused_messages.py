"""Values and records that cannot be taken are one failed message: the run goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.graph.serdes import input_place
from penstock.system.contract.messages import RecordLimits
from penstock.system.memory import MemoryAdmin
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
def by_row(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[Any], Any]], TestRunner]]:
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
def test_a_row_that_no_object_holds_is_one_dead_letter(by_row: Any, build: Callable[[Any], Any]) -> None:
    runner = by_row(build).run()
    found = [each.value["a"] if isinstance(each.value, dict) else each.value for each in runner.output("local.out")]
    assert found == [1, 3] * (len(found) // 2)
    assert runner.dead_letters == len(found) // 2 > 0
    assert "out of range" in str(runner.output("local.dead")[0].value)


async def _a(row: Any) -> Any:
    return row["a"]


@pytest.mark.parametrize("text", ['"0001-01-01T00:00:00+01:00"', "[" * 1200 + "]" * 1200])
def test_texts_that_no_row_has(by_row: Any, text: str) -> None:
    runner = by_row(lambda rows: rows.map(number))
    append(runner, [f'{{"a":5,"t":{text}}}', f'{{"a":6,"more":{text}}}'])
    runner.run()
    values = [message.value for message in runner.output("local.out")]
    assert values[-1] == 6 if "0001" in text else 3
    assert 5 not in values
    assert runner.dead_letters == (1 if "0001" in text else 2)


LIMITS = RecordLimits(needs_key=True, max_bytes=50)
ONCE = {"streams.m.out.output.guarantee": "exactly-once"}
WRONG = [(None, "no key"), ("k", "x" * 60)]
REASONS = ["it has no key, and the stream is compacted", "it has 61 bytes, and the stream takes at most 50"]


class Send(ps.StreamTask):
    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        collector.send("m.out", key=envelope.key, value=envelope.value)


def of_columns(app: ps.StreamApplication, source: Any, out: Any) -> None:
    source.filter(lambda message: True).send_to(out)


def of_raw_columns(app: ps.StreamApplication, source: Any, out: Any) -> None:
    source.send_to(out)


def of_a_task(app: ps.StreamApplication, source: Any, out: Any) -> None:
    source.process(Send)


def runner_of(build: Any, config: dict[str, str], **more: Any) -> TestRunner:
    app = ps.StreamApplication("copy")
    source = app.input("m.in", key=ps.String(), value=ps.String())
    build(app, source, app.output("m.out", key=ps.String(), value=ps.String()))
    return TestRunner(app, partitions=1, config=config, **more)


WAYS = [of_columns, of_raw_columns, of_a_task]


@pytest.fixture
def _limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryAdmin, "record_limits", lambda self, stream: LIMITS)


@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("build", WAYS)
@pytest.mark.parametrize(("wrong", "reason"), [*zip(WRONG, REASONS, strict=True)])
def test_the_run_ends_before_a_checkpoint_has_it(build: Any, wrong: Any, reason: str) -> None:
    runner = runner_of(build, ONCE)
    runner.input("m.in", [("a", "1")]).run().commit()
    with pytest.raises(ps.UserCodeError) as failed:
        runner.input("m.in", [("b", "2"), wrong, ("c", "3")]).run()
    assert f"the output `m.out` refuses a message: {reason}" in str(failed.value)
    assert [message.value for message in runner.output("m.out")] == ["1"]
    runner.close()


@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("build", WAYS)
def test_it_goes_to_the_dead_letters_if_there_are_any(build: Any) -> None:
    runner = runner_of(build, ONCE, dead_letter="m.dead")
    runner.input("m.in", [("a", "1"), *WRONG, ("b", "2")]).run().commit()
    assert [message.value for message in runner.output("m.out")] == ["1", "2"]
    assert len(runner.output("m.dead")) == 2
    runner.close()


@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("build", WAYS)
def test_headers_count(build: Any) -> None:
    runner = runner_of(build, ONCE, dead_letter="m.dead")
    runner.input("m.in", [("a", "x" * 30)], headers={"h": "y" * 18}).input("m.in", [("b", "x" * 30)]).run()
    runner.input("m.in", [("c", "x" * 30)], headers={"h": "y" * 19}).run().commit()
    assert [(message.key, len(message.headers)) for message in runner.output("m.out")] == [("a", 1), ("b", 0)]
    (letter,) = runner.output("m.dead")
    assert b"it has 51 bytes, and the stream takes at most 50" in letter.value
    runner.close()


@pytest.mark.usefixtures("_limited")
def test_an_output_that_is_at_least_once_has_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system refuses what it refuses with the batch; nothing is looked at here."""
    runner = runner_of(of_columns, {})
    runner.input("m.in", [("a", "1"), *WRONG]).run().commit()
    assert len(runner.output("m.out")) == 3
    runner.close()


def test_a_record_that_is_small_when_compressed_is_taken() -> None:
    limits = RecordLimits(max_bytes=1000, compression="zstd", max_plain_bytes=5000)
    assert limits.refused(b"", b"x" * 4000) is None
    assert "when compressed" in (limits.refused(b"", os.urandom(4000)) or "")
    assert "the client sends at most 5,000" in (limits.refused(b"", b"x" * 5001) or "")
    assert limits.refused(b"", os.urandom(1001)) is None  # not certain
    assert limits.least_bytes == 1000
    assert RecordLimits().least_bytes is None
