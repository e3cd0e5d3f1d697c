"""Text with half of a surrogate pair, which has no UTF-8: one clear error with its place, wherever text is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import TestRunner

BAD = "a\ud800b"
Make: TypeAlias = Callable[[ps.StreamApplication], ps.MessageStream[Any]]
COLUMNS = ps.Columns(pa.schema({"t": pa.string(), "l": pa.list_(pa.string())}))


@dataclass
class Place:
    city: str


class Put(ps.StreamTask):
    def __init__(self, key: Any, value: Any) -> None:
        self.entry = (key, value)

    def init(self, context: ps.TaskContext) -> None:
        self.store = context.store("s")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.store.put(*self.entry)


def mapped(value: Any, serde: ps.Serde[Any] | None = None) -> Make:
    return lambda app: app.input("local.in").map(lambda _: value).partition_by(lambda _: "k", value=serde)


def put(key: Any, value: Any, serde: ps.Serde[Any] | None = None) -> Make:
    def make(app: ps.StreamApplication) -> ps.MessageStream[Any]:
        app.store("s", key=ps.String() if isinstance(key, str) else ps.Tuple(ps.String(), ps.Long()), value=serde)
        return app.input("local.in").process(lambda: Put(key, value), stores=["s"])

    return make


CASES: dict[str, Make] = {
    "json": mapped(BAD),
    "json, nested": mapped({"a": [1, {"b": (BAD,)}]}),
    "json, a name": mapped({BAD: 1}),
    "string": mapped(BAD, ps.String()),
    "columns": mapped({"t": BAD}, COLUMNS),
    "columns, nested": mapped({"l": ["x", BAD]}, COLUMNS),
    "object": mapped(Place(BAD), ps.Struct(Place)),
    "key": lambda app: app.input("local.in").partition_by(lambda _: BAD),
    "key of fields": lambda app: app.input("local.in").partition_by(lambda _: (BAD,), key=ps.Tuple(ps.String())),
    "key of json": lambda app: app.input("local.in").partition_by(lambda _: {"a": BAD}, key=ps.Json()),
    "store, key": put(BAD, 1),
    "store, tuple": put((BAD, 1), 1),
    "store, json": put("k", [BAD]),
    "store, string": put("k", BAD, ps.String()),
    "store, columns": put("k", {"t": BAD}, COLUMNS),
    "duplicates": lambda app: app.input("local.in").deduplicate(within="1h", by=lambda _: BAD),
    "aggregate": lambda app: app.input("local.in").aggregate({"last": ps.Last(lambda _: BAD)}),
    "distinct": lambda app: app.input("local.in").aggregate({"n": ps.Distinct(lambda _: BAD)}),
    "window": lambda app: app.input("local.in").window(
        ps.Windows.tumbling("1h", aggregates={"first": ps.First(lambda _: BAD)})
    ),
    "reduce": lambda app: app.input("local.in").map(lambda _: BAD).reduce(lambda one, _: one),
}  # fmt: skip


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_one_clear_error_with_its_place(make: Make) -> None:
    app = ps.StreamApplication("a")
    make(app).map(lambda _: 1).send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1).input("local.in", [("k", 1)], timestamp=1)
    said = r"(?:SerdeError|ValueError): .*'a\\ud800b' has no UTF-8: its character 2 is half of .*, U\+D800"
    with pytest.raises(ps.UserCodeError, match=rf"{said}[^§]*in operator `\w+-1`, at"):
        runner.run().commit()


def test_output() -> None:
    app = ps.StreamApplication("a")
    app.input("local.in").map(lambda _: BAD).send_to(app.output("local.out"))
    with pytest.raises(ps.UserCodeError, match=r"output `local.out`: the value .* has no UTF-8"):
        TestRunner(app, partitions=1).input("local.in", [("k", 1)]).run()


def test_infinities_are_no_duplicates_of_nothing() -> None:
    app = ps.StreamApplication("a")
    values = [None, float("nan"), float("inf"), float("-inf"), float("nan"), float("inf"), None]
    stream = app.input("local.in").deduplicate(within="1h", by=lambda number: values[number])
    stream.send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1)
    for number in range(len(values)):
        runner.input("local.in", [("k", number)]).run().commit()
    assert [message.value for message in runner.output("local.out")] == [0, 1, 2, 3]
