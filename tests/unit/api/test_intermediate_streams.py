"""Declaring durable intermediate streams."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import ConfigError


def keyed(app: ps.StreamApplication, through: str) -> ps.MessageStream[object]:
    return app.input("m.in").partition_by(str, through=through, id="by")


def test_it_parts_the_application() -> None:
    app = ps.StreamApplication("a")
    behind = keyed(app, "m.first").map(str, id="behind")
    app.input("m.other").merge(behind.partition_by(str, through="m.second", id="again"), id="both")
    graph = app.graph()
    assert [(each.id, each.writer, str(each.stream)) for each in graph.intermediates] == [
        ("by.through", "by", "m.first"),
        ("again.through", "again", "m.second"),
    ]
    assert [str(each.stream) for each in graph.sources] == ["m.in", "m.other", "m.first", "m.second"]
    parts = [{"input-1", "by", "input-2"}, {"by.through", "behind", "again"}, {"again.through", "both"}]
    assert [set(part) for part in graph.parts()] == parts


@pytest.mark.parametrize(
    ("taken", "what"), [("m.in", "the input `input-1`"), ("m.out", "an output"), ("m.first", "the intermediate stream")]
)
def test_a_stream_that_something_else_uses_is_refused(taken: str, what: str) -> None:
    app = ps.StreamApplication("a")
    stream = keyed(app, "m.first")
    stream.send_to(app.output("m.out"))
    stream.partition_by(str, through=taken, id="again")
    with pytest.raises(ConfigError, match=f"intermediate stream `{taken}` of `again` is {what}"):
        app.graph()


def test_the_reader_has_an_id_that_nothing_else_may_have() -> None:
    app = ps.StreamApplication("a")
    app.input("m.other", id="by.through")
    with pytest.raises(ConfigError, match=r"`by\.through` is used twice"):
        keyed(app, "m.first")
