"""map_async: many calls at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import penstock as ps
from penstock.testing import TestRunner


class Service:
    """Answers requests, and notes them."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.now = self.most = self.opened = self.closed = 0
        self.failures: dict[Any, list[Exception]] = {}

    async def answer(self, value: Any) -> Any:
        self.asked.append(value)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001 * (value % 3) if isinstance(value, int) else 0)
        self.now -= 1
        if left := self.failures.get(value):
            raise left.pop(0)
        return [value]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Service]:
        self.opened += 1
        yield self
        self.closed += 1


def run(values: list[Any], service: Service, dead: str | None = None, **options: Any) -> TestRunner:
    app = ps.StreamApplication("a")
    function = options.pop("function", service.answer)
    app.input("m.in").map_async(function, **options).send_to(app.output("m.out"))
    return TestRunner(app, partitions=1, dead_letter=dead).input("m.in", values)


def results(runner: TestRunner) -> list[Any]:
    return [message.value for message in runner.run().output("m.out")]


def test_calls_run_together_and_messages_keep_their_order() -> None:
    service = Service()
    assert results(run(list(range(200)), service, parallel=20)) == [[n] for n in range(200)]
    assert sorted(service.asked) == list(range(200))
    assert service.most == 20


@pytest.mark.parametrize("retries", [1, 2])
def test_a_call_that_fails_is_tried_again(retries: int) -> None:
    service = Service()
    service.failures = {3: [ConnectionError("away"), TimeoutError()]}
    runner = run([1, 3], service, retries=retries)
    if retries == 1:
        with pytest.raises(ps.UserCodeError, match="TimeoutError"):
            runner.run()
    else:
        assert results(runner) == [[1], [3]]
    assert service.asked.count(3) == retries + 1


def test_other_errors_are_not_tried_again() -> None:
    service = Service()
    service.failures = {3: [ValueError("wrong")] * 5}
    with pytest.raises(ps.UserCodeError, match="ValueError: wrong"):
        run([1, 3], service, retries=5).run()
    assert service.asked.count(3) == 1


def test_a_call_that_takes_too_long_is_a_failed_message() -> None:
    async def slow(value: Any) -> Any:
        await asyncio.sleep(10 if value == 2 else 0)
        return value

    runner = run([1, 2, 3], Service(), dead="m.dead", function=slow, timeout="20ms")
    assert results(runner) == [1, 3]
    (letter,) = runner.output("m.dead")
    assert "the call took longer than 20 ms" in letter.value.decode()


def test_messages_that_fail_are_buried_and_no_call_is_made_twice() -> None:
    service = Service()
    service.failures = {n: [ValueError("wrong")] for n in (5, 17, 18)}
    runner = run(list(range(40)), service, dead="m.dead")
    assert results(runner) == [[n] for n in range(40) if n not in (5, 17, 18)]
    assert len(runner.output("m.dead")) == 3
    assert sorted(service.asked) == list(range(40))


def test_a_client_is_opened_once_and_closed() -> None:
    service = Service()

    async def ask(value: Any, client: Service) -> Any:
        return await client.answer(value)

    runner = run([1, 2], service, function=ask, client=service.client)
    assert results(runner.run().input("m.in", [3])) == [[1], [2], [3]]
    runner.close()
    assert service.opened == service.closed > 0
    assert service.opened < 4


def test_a_client_that_cannot_be_opened_ends_the_run_and_buries_nothing() -> None:
    def client() -> Any:
        raise ValueError("no such host")

    runner = run([1, 2], Service(), dead="m.dead", client=client)
    with pytest.raises(ps.ConfigError, match=r"operator `map_async-1`: `client` of map_async .* no such host"):
        runner.run()
    assert runner.output("m.dead") == []


def test_values_with_the_same_key_share_a_call_and_its_result() -> None:
    service = Service()
    runner = run(["a", "b", "a", "a"], service, key=lambda value: value)
    runner.run().input("m.in", ["b", "c"])
    assert results(runner) == [["a"], ["b"], ["a"], ["a"], ["b"], ["c"]]
    assert sorted(service.asked) in (["a", "b", "c"], ["a", "b", "b", "c"])  # a restore makes another node


def test_a_failure_is_not_remembered() -> None:
    service = Service()
    service.failures = {"a": [ValueError("wrong")]}
    runner = run(["a", "a", "b"], service, dead="m.dead", key=lambda value: value)
    runner.run().input("m.in", ["a"])
    assert results(runner) == [["b"], ["a"]]
    assert len(runner.output("m.dead")) == 2


def test_messages_that_were_made_of_one_have_their_own_calls() -> None:
    service = Service()
    app = ps.StreamApplication("a")
    app.input("m.in").flat_map(range).map_async(service.answer).send_to(app.output("m.out"))
    assert results(TestRunner(app, partitions=1).input("m.in", [3, 2])) == [[0], [1], [2], [0], [1]]


@pytest.mark.parametrize("dead", [None, "m.dead"])
def test_branches_of_one_message_have_their_own_calls(dead: str | None) -> None:
    service = Service()
    app = ps.StreamApplication("a")
    stream = app.input("m.in")
    branches = stream.map(lambda n: n + 1).merge(stream.map(lambda n: n * 10), stream.filter(lambda n: n > 1))
    branches.map_async(service.answer).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter=dead).input("m.in", [1, 2])
    assert sorted(results(runner)) == [[2], [2], [3], [10], [20]]


def test_a_batch_that_runs_again_calls_again() -> None:
    service = Service()
    runner = run([1], service).run().crash().restore()
    assert results(runner) == [[1], [1]]
    assert service.asked == [1, 1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"function": lambda value: value}, "is not `async def`: map_async awaits it"),
        ({"parallel": 0}, "parallel is a whole number of calls"),
        ({"timeout": "soon"}, "timeout is a duration"),
        ({"retries": -1}, "retries is a whole number"),
        ({"key": Service().answer}, "`key` is `async def`"),
        ({"key": "tail"}, "`key` is 'tail', which cannot be called"),
        ({"client": Service()}, "`client` is .*, which cannot be called"),
        ({"remember": "1h"}, "remember='1h' has no effect without key="),
        ({"remember": "long", "key": len}, "remember is a duration"),
        ({"retry_on": ("x",)}, "give classes of exceptions"),
        ({"function": None}, "the function is None, which cannot be called"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ps.ConfigError, match=why):
        run([], Service(), **options)


def test_equal_values_of_other_types_are_other_values() -> None:
    """Python's own equality does not tell them apart."""

    async def kind(value: Any) -> str:
        return repr(value)

    values = [1, 1.0, True, 0, 0.0, -0.0, False, [1], [1.0], [True], {"a": 1}, {"a": True}, None, "1"]
    shown = [repr(value) for value in values]
    for key in (lambda value: value, lambda value: (value,), lambda value: {"k": value}):
        assert results(run(values * 2, Service(), function=kind, key=key)) == shown * 2
    assert results(run(values, Service(), function=kind, dead="m.dead")) == shown


@dataclass(frozen=True)
class Cell:
    value: Any


def test_keys_of_any_type_that_can_be_told_apart_are_other_keys() -> None:
    hour = datetime(2024, 10, 27, 2, tzinfo=ZoneInfo("Europe/Berlin"))
    keys: list[Any] = [hour, hour.replace(fold=1), hour.astimezone(UTC), hour.astimezone(ZoneInfo("Asia/Tokyo"))]
    keys += [frozenset({1}), frozenset({True}), Cell(1), Cell(True), Cell(0.0), Cell(-0.0), (1, 0.0), (1, -0.0)]
    keys += [np.float64(0.0), np.float64(-0.0), float("nan"), float("inf"), Decimal(1), Decimal("1.0"), 1, 1.0, True]

    async def shown(number: int) -> str:
        return repr(keys[number])

    numbers = list(range(len(keys)))
    found = run(numbers * 2, Service(), function=shown, key=lambda number: keys[number])
    assert results(found) == [repr(key) for key in keys] * 2


def test_a_value_that_another_branch_made_of_a_message_is_called_for() -> None:
    async def kind(value: Any) -> str:
        if value == 7:
            raise ValueError("no")
        return repr(value)

    app = ps.StreamApplication("a")
    numbers = app.input("m.in")
    both = numbers.map(lambda n: n if n == 7 else 1).merge(numbers.map(lambda n: n if n == 7 else True))
    both.map_async(kind).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead").input("m.in", [5, 7, 5])
    assert sorted(results(runner)) == ["1", "1", "True", "True"]
