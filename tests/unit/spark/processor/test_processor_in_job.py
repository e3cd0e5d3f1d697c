"""A StatefulProcessor in a whole job in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, ValueState
from pyspark.sql.types import LongType, StringType, StructType

import penstock as ps
from penstock.spark.processor.keys import chunk
from penstock.testing import TestRunner
from tests.support.oracles.processors import application, read_rows, spec_of
from tests.support.oracles.tracebacks import frames_of_penstock

ROWS = StructType().add("user", StringType()).add("amount", LongType())
SEEN = StructType().add("n", LongType()).add("total", LongType())
OUT = StructType().add("user", StringType()).add("n", LongType()).add("total", LongType())


class CountAndSum(StatefulProcessor):
    """Counts and sums the amounts of each user."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", SEEN)
        assert isinstance(self.seen, ValueState)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        n, total = self.seen.get() or (0, 0)
        for row in rows:
            if row.amount == 13:
                raise ValueError("thirteen")
            n, total = n + 1, total + row["amount"]
        self.seen.update((n, total))
        yield Row(user=key[0], n=n, total=total)

    def close(self) -> None:
        pass


def rows(*pairs: tuple[str, int]) -> list[tuple[None, bytes]]:
    spec = spec_of(CountAndSum(), ["user"], ROWS, OUT)
    return [(None, chunk(pa.RecordBatch.from_pylist([{"user": u, "amount": a} for u, a in pairs], spec.input)))]


def test_it_counts_from_batch_to_batch_and_after_a_crash() -> None:
    spec = spec_of(CountAndSum(), ["user"], ROWS, OUT)
    runner = TestRunner(application(spec), partitions=1)
    runner.input("m.rows", rows(("ann", 1), ("bob", 2), ("ann", 3))).run().commit()
    first = read_rows([m.value for m in runner.output("m.out")], OUT)
    assert first == [{"user": "ann", "n": 2, "total": 4}, {"user": "bob", "n": 1, "total": 2}]
    runner.input("m.rows", rows(("bob", 10))).run().crash().restore().run()
    last = read_rows([m.value for m in runner.output("m.out")], OUT)[-1]
    assert last == {"user": "bob", "n": 2, "total": 12}
    runner.close()


class Reminds(StatefulProcessor):
    """Sets a timer for each amount."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            self.handle.registerTimer(row.amount)
        yield from ()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("mode", ["EventTime", "ProcessingTime"])
def test_the_oldest_timer_is_known_when_an_epoch_is_opened(mode: str) -> None:
    far = 4_000_000_000_000
    spec = spec_of(Reminds(), ["user"], ROWS, OUT, mode)
    runner = TestRunner(application(spec), partitions=2)
    runner.input("m.rows", rows(("ann", far + 1)), partition=0).input("m.rows", rows(("bob", far)), partition=1)
    runner.run().commit().crash().restore()
    due = (far, None) if mode == "EventTime" else (None, far)
    assert runner._running().loop.boundary.next_due == {spec.operator: due}
    runner.close()


class Without(CountAndSum):
    """A later version, which has no use for what the first one kept."""

    def init(self, handle: Any) -> None:
        handle.deleteIfExists("seen")
        self.seen = handle.getValueState("other", SEEN)


def test_a_later_version_may_delete_a_variable() -> None:
    """The values are gone for good, even if a later version declares the variable again. All else stays."""
    first, later = (application(spec_of(each, ["user"], ROWS, OUT)) for each in (CountAndSum(), Without()))
    runner = TestRunner(first, partitions=1)
    runner.input("m.rows", rows(("ann", 1))).run().commit().crash()
    for app in (first, later, later):
        runner.restore(app).input("m.rows", rows(("ann", 1))).run().commit().crash()
    with pytest.raises(ps.IncompatibleError, match="`other` is in the checkpoint, and the processor"):
        runner.restore(first)
    both = application(spec_of(Both(), ["user"], ROWS, OUT))
    runner.restore(both).input("m.rows", rows(("ann", 1))).run()
    found = read_rows([m.value for m in runner.output("m.out")], OUT)
    assert [row["n"] for row in found] == [1, 2, 1, 2, 1]
    runner.close()


class Both(CountAndSum):
    """Takes the first variable up again, beside the second one."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        handle.getValueState("other", SEEN)


def test_a_failure_names_the_operator_the_method_and_the_key() -> None:
    runner = TestRunner(application(spec_of(CountAndSum(), ["user"], ROWS, OUT)), partitions=1)
    runner.input("m.rows", rows(("ann", 1), ("bob", 13)))
    with pytest.raises(ps.UserCodeError) as raised:
        runner.run()
    said = str(raised.value)
    assert "ValueError: thirteen\n  in operator `processor`, at handleInputRows of task 0, key ('bob',)" in said
    assert frames_of_penstock(said) == [], "the traceback begins with the processor"
    runner.close()


def test_rows_that_do_not_fit_the_output_schema_name_the_key() -> None:
    class Text(CountAndSum):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            yield Row(user=key[0], n="many" if key[0] == "bob" else 1, total=1)

    runner = TestRunner(application(spec_of(Text(), ["user"], ROWS, OUT)), partitions=1)
    runner.input("m.rows", rows(("ann", 1), ("bob", 13), ("cid", 1)))
    with pytest.raises(ps.UserCodeError, match=r"at the rows that handleInputRows returned of task 0, key \('bob',\)"):
        runner.run()
    runner.close()


@pytest.mark.parametrize("name", ["init", "handleInitialState", "close"])
def test_a_method_that_is_not_read_to_its_end_is_no_generator(name: str) -> None:
    def yields(*_: Any, **__: Any) -> Any:
        yield 1

    def spec(function: Any) -> Any:
        return spec_of(type("Odd", (CountAndSum,), {name: function})(), ["user"], ROWS, OUT)

    with pytest.raises(ps.ConfigError, match=f"transform_with_state: `{name}` of Odd has `yield`"):
        spec(yields)
    if name != "handleInitialState":  # the others are called on the driver
        with pytest.raises(TypeError, match=f"`{name}` returned a generator, which nothing runs"):
            spec(lambda *_: yields())


@pytest.mark.parametrize("name", ["handleInputRows", "handleExpiredTimer"])
def test_a_method_whose_rows_are_read_is_no_coroutine(name: str) -> None:
    async def rows(*_: Any, **__: Any) -> Any:
        return [Row(user="a", n=1, total=1)]

    with pytest.raises(ps.ConfigError, match=f"transform_with_state: `{name}` of Odd is `async def`"):
        spec_of(type("Odd", (CountAndSum,), {name: rows})(), ["user"], ROWS, OUT)
