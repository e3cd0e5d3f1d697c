"""A function of the application that would do none of its work when it is called is refused where it is declared."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import penstock as ps
from penstock.api.side_inputs import SideInputsProcessorFactory
from penstock.api.time.aggregates import METHODS
from penstock.testing import TestRunner


def generator(*_: Any, **__: Any) -> Any:
    yield 1


async def coroutine(*_: Any, **__: Any) -> int:
    return 1


async def both(*_: Any, **__: Any) -> Any:
    yield 1


class Object:
    """Its call makes a generator."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        yield 1

    def method(self, *_: Any, **__: Any) -> Any:
        yield 1

    @staticmethod
    async def still(*_: Any) -> None: ...


UNSTARTED = [
    generator,
    coroutine,
    both,
    Object(),
    Object().method,
    Object.still,
    partial(generator, 1),
    partial(partial(Object().method, 1)),
    functools.cache(generator),
]


def stream(app: ps.StreamApplication) -> ps.MessageStream[Any]:
    return app.input("m.in")


TASK_METHODS = ("init", "process", "window", "on_timer", "on_end", "on_drain", "close")


def task_with(name: str, function: Any) -> type[ps.StreamTask]:
    return type("Odd", (ps.StreamTask,), {"process": lambda *_: None, name: function})


def with_task(name: str, app: ps.StreamApplication, function: Any) -> object:
    return stream(app).process(task_with(name, function))


def with_serde(name: str, app: ps.StreamApplication, function: Any) -> object:
    methods = {"to_bytes": lambda *_: b"", "from_bytes": lambda *_: None, name: function}
    return app.output("m.out", value=type("OddSerde", (ps.Serde,), methods)())


def with_aggregate(name: str, app: ps.StreamApplication, function: Any) -> object:
    one = ps.Sum(function) if name == "of" else type("Odd", (ps.Count,), {name: function})()
    return stream(app).window(ps.Windows.count(2, aggregates={"n": one}))


class Factory(SideInputsProcessorFactory):
    """Makes nothing yet."""

    async def get_side_inputs_processor(self, config: Any, metrics_registry: Any) -> Any: ...  # type: ignore[override]


Declare = Callable[[ps.StreamApplication, Any], object]
DECLARED: dict[str, Declare] = {
    "map": lambda app, f: stream(app).map(f),
    "filter": lambda app, f: stream(app).filter(f, envelope=True),
    "partition_by": lambda app, f: stream(app).partition_by(f),
    "partition_by through": lambda app, f: stream(app).partition_by(f, through="m.between"),
    "sink": lambda app, f: stream(app).sink(f),
    "timestamp": lambda app, f: app.input("m.in", timestamp=f),
    "watermark": lambda app, f: app.input("m.in", watermark=type("Policy", (), {"watermark": f})()),
    "task maker": lambda app, f: stream(app).process(f),
    "join": lambda app, f: stream(app).join(app.input("m.other"), f, within_ms=1),
    "join_table": lambda app, f: stream(app).join_table(app.table("t"), f),
    "temporal join": lambda app, f: stream(app).join_table(app.table("t", history_ms=1), f, as_of=True),
    "fold": lambda app, f: stream(app).window(ps.Windows.count(2, fold=(0, f))),
    "fold's start": lambda app, f: stream(app).window(ps.Windows.count(2, fold=(f, max))),
    "fold's merge": lambda app, f: stream(app).window(ps.Windows.session(2, fold=(0, max, f))),
    "check": lambda app, f: app.table("t", pushed=ps.PushedTable("/t", "k", check=f)),
    **{f"aggregate.{name}": partial(with_aggregate, name) for name in METHODS},
    **{f"task.{name}": partial(with_task, name) for name in TASK_METHODS},
    **{f"serde.{name}": partial(with_serde, name) for name in ("to_bytes", "from_bytes")},
}


@pytest.mark.parametrize("place", DECLARED)
def test_a_function_that_would_not_run_is_refused(place: str) -> None:
    for function in UNSTARTED:
        with pytest.raises(
            ps.ConfigError, match=r"(has `yield`|is `async def`|is an `async def` with `yield`): .*ordinary"
        ):
            DECLARED[place](ps.StreamApplication("a"), function)


@pytest.mark.parametrize("name", TASK_METHODS)
def test_methods_of_the_task_of_a_task_application(name: str) -> None:
    with pytest.raises(ps.ConfigError, match=f"operator `task`: `{name}` of Odd has `yield`"):
        ps.TaskApplication("a", partial(task_with(name, generator)))


@pytest.mark.parametrize("place", DECLARED)
def test_an_ordinary_function_is_taken(place: str) -> None:
    DECLARED[place](ps.StreamApplication("a"), lambda *_: None)


@pytest.mark.parametrize("given", [coroutine, both, type("P", (), {"process": staticmethod(coroutine)})(), Factory()])
def test_a_processor_of_side_inputs(given: Any) -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match=r"store `s`: .* is (an )?`async def`"):
        app.store("s", side_inputs=["m.side"], processor=given)


def test_generators_where_results_are_read_to_the_end() -> None:
    def entries(message: Any, _: Any) -> Any:
        yield ps.Entry(message.key, message.value)

    def twice(value: int) -> Any:
        yield value
        yield value

    app = ps.StreamApplication("a")
    table = app.table("t", side_inputs=["m.side"], processor=entries)
    (
        app.input("m.in")
        .flat_map(twice)
        .join_table(table, lambda value, found: [value, found])
        .send_to(app.output("m.out"))
    )
    runner = TestRunner(app).side_input("m.side", [("k", "v")]).input("m.in", [("k", 1)]).run()
    assert [message.value for message in runner.output("m.out")] == [[1, "v"], [1, "v"]]
    runner.close()
    function: Any
    for function in (coroutine, both):
        with pytest.raises(ps.ConfigError, match=r"operator `flat_map-[23]`: the function is"):
            app.input(f"m.{function.__name__}").flat_map(function)


def test_a_decorator_that_runs_the_coroutine_makes_an_ordinary_function() -> None:
    @functools.wraps(coroutine)
    def run(value: Any) -> int:
        return asyncio.run(coroutine(value))

    app = ps.StreamApplication("a")
    app.input("m.in").map(run).send_to(app.output("m.out"))
    assert [message.value for message in TestRunner(app).input("m.in", [5]).run().output("m.out")] == [1]
