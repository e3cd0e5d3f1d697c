"""Operators that work by key are refused where no message has a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.ssp import SystemStream
from penstock.graph.keys import check_keys

KEYLESS = {SystemStream("shop", "views")}
Stream = ps.MessageStream[Any]


class Emits(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key="k", value=envelope.value)


def window(stream: Stream, *, keyed: bool = True) -> Stream:
    return stream.window(ps.Windows.tumbling("1h", aggregates={"n": ps.Count()}, keyed=keyed), id="hours")


def app_of(build: Callable[[Stream], Stream], stream: str = "shop.views") -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.store("s")
    views = app.input(stream, timestamp=lambda value: 0)
    build(views.map(lambda value: value, id="plain")).send_to(app.output("m.out"))
    return app


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        (window, "hours"),
        (lambda stream: stream.aggregate({"n": ps.Count()}, id="totals"), "totals"),
        (lambda stream: stream.join(stream, lambda a, b: a, within_ms=5, id="pairs"), "pairs"),
    ],
)
def test_what_works_by_key_needs_one(build: Callable[[Stream], Stream], operator: str) -> None:
    with pytest.raises(ps.ConfigError, match=rf"operator `{operator}` works by key.*`shop\.views` have none"):
        check_keys(app_of(build).graph(), KEYLESS)
    check_keys(app_of(build, "m.in").graph(), KEYLESS)
    by_user = app_of(lambda stream: build(stream.partition_by(lambda value: value["user"], id="by-user")))
    check_keys(by_user.graph(), KEYLESS)


def test_columns_of_a_table_are_found_by_key() -> None:
    rows = ps.Columns(pa.schema([("n", pa.int64())]))
    app = ps.StreamApplication("a")
    users = app.table("users", value=ps.Columns(pa.schema([("name", pa.string())])), side_inputs=["m.users"])
    app.input("shop.views", value=rows).join_table(users, columns=["name"], id="named")
    with pytest.raises(ps.ConfigError, match=r"operator `named` works by key"):
        check_keys(app.graph(), KEYLESS)


def test_what_needs_no_key() -> None:
    check_keys(app_of(lambda stream: window(stream, keyed=False)).graph(), KEYLESS)
    check_keys(app_of(lambda stream: stream.process(Emits, stores=["s"])).graph(), KEYLESS)
    check_keys(app_of(lambda stream: window(stream.process(Emits, stores=["s"]))).graph(), KEYLESS)
