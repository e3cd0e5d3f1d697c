"""A StatefulProcessor in a whole job in this process: sent to executors, with its context, with other variables."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.accumulators import INT_ACCUMULATOR_PARAM, Accumulator
from pyspark.core.broadcast import Broadcast
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, ValueState
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

import penstock as ps
from penstock.errors import ConfigError, PenstockError
from penstock.graph.stores import StoreLayout
from penstock.spark.processor.fields import chunk
from penstock.spark.processor.task import task_context
from penstock.spark.transform import pickled
from penstock.start.layout import store_layout
from penstock.testing import TestRunner
from tests.support.oracles.processors import OneTask, application, read_rows, spec_of
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


DEADLINE_S = 30


def test_tasks_that_run_at_once_have_their_own_partitions() -> None:
    both, one_left = threading.Barrier(2, timeout=DEADLINE_S), threading.Event()

    def process(partition: int) -> list[int]:
        found = []
        with task_context(partition):
            both.wait()
            found.append(_partition())
            both.wait()
            if partition == 1:
                assert one_left.wait(DEADLINE_S)
                found.append(_partition())
        one_left.set()
        return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(process, (0, 1))) == [[0], [1, 1]]
    assert TaskContext.get() is None, "which PySpark takes for a driver"


def test_another_thread_has_no_partition() -> None:
    with task_context(3), ThreadPoolExecutor(1) as pool:
        assert _partition() == 3
        with pytest.raises(PenstockError, match="only in the thread that calls the processor"):
            pool.submit(_partition).result()


def _partition() -> int:
    found = TaskContext.get()
    assert found is not None
    return found.partitionId()


LOCK = threading.Lock()


class Holds(StatefulProcessor):
    def __init__(self, held: Any) -> None:
        self.name, self.held = "n", held

    def init(self, handle: Any) -> None:
        """Declares nothing."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


class Uses(Holds):
    def close(self) -> None:
        LOCK.release()


COUNTED = Accumulator(7, 0, INT_ACCUMULATOR_PARAM)


class Counts(Holds):
    def close(self) -> None:
        COUNTED.add(1)


def test_what_works_in_tasks_of_spark_only_is_refused() -> None:
    sent = object.__new__(Broadcast)
    sent._jbroadcast, sent._pickle_registry = SimpleNamespace(id=lambda: 7), set()  # type: ignore[assignment]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        for processor in (Holds(COUNTED), Counts(1)):
            with pytest.raises(ConfigError, match=r"uses an accumulator, which works in tasks of Spark only.*Yield"):
                pickled(processor)
        with pytest.raises(ConfigError, match=r"Holds uses a broadcast variable.*the value itself"):
            pickled(Holds(sent))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_the_attribute_is_named() -> None:
    assert cloudpickle.loads(pickled(Holds(7))).held == 7
    with pytest.raises(
        ConfigError, match=r"Holds cannot.*attribute `held`, of type lock, cannot be pickled.*in `init`"
    ):
        pickled(Holds(threading.Lock()))


def test_the_method_that_uses_it_is_named() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(ConfigError, match="something that its method `close` uses cannot be pickled"):
            pickled(Uses(7))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


INPUT = StructType().add("user", StringType())
OUTPUT = StructType().add("user", StringType()).add("found", StringType())
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
    app = application(spec_of(Declares(kind, schema, ttl_ms), ["user"], INPUT, OUTPUT, mode))
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
    before = OneTask(spec_of(Declares("value", ONE), ["user"], INPUT, OUTPUT))
    before.batch([{"user": "ann"}])
    after = OneTask(spec_of(Declares("value", TWO), ["user"], INPUT, OUTPUT))
    after.take_over(before)
    assert after.batch([{"user": "ann"}]) == [{"user": "ann", "found": "(5, None)"}]
    assert after.batch([{"user": "ann"}]) == [{"user": "ann", "found": "(5, 's')"}]
