"""State of the current key, compared with dicts and lists of a plain program."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import TestRunner
from tests.support.tools.profiles import examples


class States(ps.StreamTask):
    """Does what a message says, and emits what there is then."""

    def init(self, context: ps.TaskContext) -> None:
        self.last = context.value_state("last")
        self.all = context.list_state("all")
        self.map = context.map_state("map")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        number, what, map_key = envelope.value
        match what:
            case "update":
                self.last.update(number)
            case "append":
                self.all.append(number)
            case "put":
                self.map.put(map_key, number)
            case "remove":
                self.map.remove(map_key)
            case "clear":
                for state in (self.last, self.all, self.map):
                    state.clear()
            case "fail":
                self.all.append(number)
                self.last.update(number)
                self.map.put(map_key, number)
                raise ValueError(number)
        shown = [self.last.get(), list(self.all.get()), dict(self.map.items())]
        assert [self.last.exists(), self.all.exists(), self.map.exists()] == [bool(each) for each in shown]
        assert (map_key in self.map, self.map.get(map_key, 0)) == (map_key in shown[2], shown[2].get(map_key, 0))
        collector.emit(key=envelope.key, value=[number, *shown])


def expected(messages: list[tuple[str, list[Any]]]) -> dict[int, list[Any]]:
    last: dict[str, int] = {}
    lists: dict[str, list[int]] = defaultdict(list)
    maps: dict[str, dict[str, int]] = defaultdict(dict)
    found = {}
    for key, (number, what, map_key) in messages:
        match what:
            case "update":
                last[key] = number
            case "append":
                lists[key].append(number)
            case "put":
                maps[key][map_key] = number
            case "remove":
                maps[key].pop(map_key, None)
            case "clear":
                for state in (last, lists, maps):
                    state.pop(key, None)
        if what != "fail":
            found[number] = [last.get(key), list(lists[key]), dict(maps[key])]
    return found


def application(task: Callable[[], ps.StreamTask] = States) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.value_state("last")
    app.list_state("all")
    app.map_state("map")
    app.input("m.in").process(task, stores=["last", "all", "map"]).send_to(app.output("m.out"))
    return app


@examples(0.2)
@given(st.integers(0, 2**32))
def test_states_are_what_a_plain_program_has(seed: int) -> None:
    """In any batches, with failures that are undone, with kills, and with any number of tasks."""
    rng = random.Random(seed)
    verbs = ["update", "append", "append", "append", "put", "put", "remove", "clear", "show", "fail"]
    messages = [
        (rng.choice(["a", "ab", "a\0", ""]), [number, rng.choice(verbs), rng.choice("xyz")])
        for number in range(1, rng.randrange(50))
    ]
    runner = TestRunner(application(), partitions=rng.randint(1, 3), dead_letter="m.dead")
    left = list(messages)
    while left:
        runner.input("m.in", left[: (size := rng.randint(1, 10))]).run(batch_messages=rng.choice([None, 1, 3]))
        left = left[size:]
        if rng.random() < 0.3:
            runner.commit()
        if rng.random() < 0.3:
            runner.crash().restore().run(batch_messages=rng.choice([None, 2]))
    found: dict[int, Any] = {}
    for message in runner.output("m.out"):
        number, *shown = message.value
        assert found.setdefault(number, shown) == shown, "what comes again is the same"
    assert found == expected(messages)
    runner.close()


def test_the_entries_are_those_of_ordinary_stores() -> None:
    runner = TestRunner(application(), partitions=1)
    runner.input("m.in", [("k", [1, "update", "x"]), ("k", [2, "append", "x"]), ("k", [3, "put", "x"])]).run()
    runner.input("m.in", [("k", [4, "append", "x"])]).run()
    assert (runner.store("last"), runner.store("map")) == ({"k": 1}, {("k", "x"): 3})
    assert [(key[0], len(key), value) for key, value in runner.store("all").items()] == [("k", 3, 2), ("k", 3, 4)]


def failure(task: Callable[[], ps.StreamTask], message: Any = ("k", [1, "show", "x"])) -> str:
    runner = TestRunner(application(task), partitions=1).input("m.in", [message])
    with pytest.raises(ps.UserCodeError) as caught:
        runner.run().end_inputs()
    return caught.value.failed.reason


def test_a_message_without_a_key() -> None:
    reason = failure(States, [1, "update", "x"])
    assert reason.startswith("ConfigError: operator `process-1` uses state of the current key, but this message has no")


class Late(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.context.value_state("last")


class InInit(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        context.value_state("last").get()

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...


class OfAnother(ps.StreamTask):
    name, kind = "last", "list_state"

    def init(self, context: ps.TaskContext) -> None:
        getattr(context, self.kind)(self.name)

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...


class OfNone(OfAnother):
    name, kind = "other", "value_state"


class OfTheWrongMap(OfAnother):
    name, kind = "all", "map_state"


class AppendsNone(States):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.all.append(None)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Late, "asks for state `last` of the current key after init: ask for it in init"),
        (InInit, "uses state of the current key where there is none: use it in process"),
        (OfAnother, "store `last` has `string` keys, which are not those of a list state: declare it with app.list_st"),
        (OfTheWrongMap, "store `all` has `tuple(string,ordered-long,ordered-long)` keys, which are not those of a map"),
        (OfNone, "operator `process-1` asks for store `other` but was given"),
        (AppendsNone, "None cannot be an element of a list state"),
    ],
)
def test_what_is_refused(task: type[ps.StreamTask], reason: str) -> None:
    assert reason in failure(task)


def test_keys_that_do_not_sort() -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match=r"^list state `s`: the bytes of ps.Json\(\) do not sort"):
        app.list_state("s", key=ps.Json())
    with pytest.raises(ps.ConfigError, match=r"^map state `s`: the bytes of ps.Json\(\) do not sort"):
        app.map_state("s", map_key=ps.Json())


class Pairs(ps.StreamTask):
    """Keeps what came to a key until its timer, and appends to a list that another operator appends to as well."""

    def init(self, context: ps.TaskContext) -> None:
        self.context, self.all = context, context.list_state("all")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.all.append(envelope.value)
        self.context.schedule(envelope.key, envelope.timestamp + 10)
        collector.emit(key=envelope.key, value=envelope.value)

    def on_timer(self, timer: ps.ExpiredTimer, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=list(self.all.get()))
        self.all.clear()


class Doubles(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.all = context.list_state("all")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if isinstance(envelope.value, int):
            self.all.append(2 * envelope.value)
        else:
            collector.emit(key=envelope.key, value=envelope.value)


def test_the_key_of_a_timer_is_current_and_two_operators_share_a_list() -> None:
    app = ps.StreamApplication("a")
    app.list_state("all", key=ps.Long(), value=ps.Integer())
    pairs = app.input("m.in", key=ps.Long()).process(Pairs, stores=["all"], timers=ps.Long())
    pairs.process(Doubles, stores=["all"]).send_to(app.output("m.out", key=ps.Long()))
    runner = TestRunner(app, partitions=1)
    runner.input("m.in", [(7, 1), (-7, 5), (7, 2)], timestamp=100).run().input("m.in", [(7, 3)], timestamp=105).run()
    runner.advance_watermark(1000)
    assert {message.key: message.value for message in runner.output("m.out")} == {7: [1, 2, 2, 4, 3, 6], -7: [5, 10]}
    assert runner.store("all") == {}
