"""Declarations of stores that something else fills."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStream
from penstock.graph.stores import SideInputs
from penstock.graph.topology import plan_topology


def entries(message: ps.IncomingMessageEnvelope, store: ps.KeyValueStore[Any, Any]) -> list[ps.Entry]:
    return [ps.Entry(message.key, message.value)]


class Factory(ps.SideInputsProcessorFactory):
    def get_side_inputs_processor(self, config: Any, metrics_registry: Any) -> Any:
        return entries


class Processor:
    def process(self, message: ps.IncomingMessageEnvelope, store: ps.KeyValueStore[Any, Any]) -> list[ps.Entry]:
        return entries(message, store)


def spec(app: ps.StreamApplication, name: str) -> Any:
    app.input("local.in").process(ps.StreamTask, stores=[name])
    return next(spec for spec in app.graph().stores if spec.name == name)


DECLARE: list[Callable[..., Any]] = [
    lambda app, **given: app.store("planes", **given),
    lambda app, **given: app.table("planes", **given),
]


@pytest.mark.parametrize("declare", DECLARE)
def test_the_streams_have_the_serdes_of_the_store_or_their_own(declare: Callable[..., Any]) -> None:
    app = ps.StreamApplication("a")
    other = ps.SideInput("local.more", ps.String(), ps.String())
    declare(app, key=ps.Long(), value=ps.Double(), side_inputs=["local.planes", other], broadcast=True)
    found = spec(app, "planes")
    assert isinstance(found.side, SideInputs)
    assert found.side.broadcast
    assert found.side.processor is None
    names = [(str(s.stream), s.key_serde.name, s.value_serde.name) for s in found.side.streams]
    assert names == [("local.planes", "long", "double"), ("local.more", "string", "string")]
    assert found.key_serde.name == "ordered-long", "as in any store"


@pytest.mark.parametrize("processor", [entries, Factory(), Processor(), None])
def test_processors(processor: Any) -> None:
    app = ps.StreamApplication("a")
    app.store("planes", side_inputs=["local.planes"], processor=processor)
    assert spec(app, "planes").side.processor is processor


TABLE = ps.PushedTable("/tables/planes", key="tail")


@pytest.mark.parametrize("declare", DECLARE)
def test_a_pushed_table(declare: Callable[..., Any]) -> None:
    app = ps.StreamApplication("a")
    declare(app, pushed=TABLE)
    assert replace(spec(app, "planes").side, stream_key=None) == TABLE


STREAMS: dict[str, Any] = {"side_inputs": ["local.planes"]}


@pytest.mark.parametrize("declare", DECLARE)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (STREAMS | {"pushed": TABLE}, "side_inputs and pushed exclude each other"),
        ({"side_inputs": []}, 'side_inputs is empty: name a stream, as in side_inputs=["local.planes"]'),
        ({"side_inputs": "local.planes"}, "side_inputs is a list: side_inputs=['local.planes']"),
        ({"side_inputs": ["local.p", "local.q", "local.p"]}, "the side input `local.p` is listed twice"),
        ({"side_inputs": ["local.p", ps.SideInput("local.p")]}, "the side input `local.p` is listed twice"),
        ({"side_inputs": [5]}, "a side input is the name of a stream or a ps.SideInput(...), not 5"),
        ({"side_inputs": ["planes"]}, "stream `planes` is not of the form `system.stream`"),
        ({"side_inputs": [ps.SideInput("local.p", key=ps.String)]}, 'ps.SideInput("local.p", key=ps.String())'),  # type: ignore[arg-type]
        ({"processor": entries}, "a processor is for a store that streams fill"),
        ({"broadcast": True}, "broadcast=True is for a store that streams fill"),
        (STREAMS | {"broadcast": 1}, "broadcast is True or False, not 1"),
        (STREAMS | {"processor": Factory}, "processor is an object or a function, not the class Factory"),
        (STREAMS | {"processor": 5}, "a function of a message and the store"),
        (STREAMS | {"ttl_ms": 5}, "the entries of this one come and go with side inputs. Leave ttl_ms out"),
        ({"pushed": TABLE, "ttl_ms": 5}, "the entries of this one come and go with a pushed table. Leave ttl_ms out"),
        ({"pushed": TABLE, "processor": entries}, "pushed has none"),
        ({"pushed": TABLE, "broadcast": True}, "write pushed=ps.PushedTable(..., broadcast=True)"),
        ({"pushed": "/tables/planes"}, "pushed is a ps.PushedTable(...), not '/tables/planes'"),
        ({"pushed": ps.PushedTable("", key="tail")}, "the path of a pushed table is a folder or its URL, not ''"),
        ({"pushed": ps.PushedTable("/p", key=())}, "the name of a column, or a tuple of different names"),
        ({"pushed": ps.PushedTable("/p", key="a", value=("b", "b"))}, "a tuple of different names"),
        ({"pushed": ps.PushedTable("/p", key="a", format="orc")}, "is parquet, csv and delta, not 'orc'"),  # type: ignore[arg-type]
        ({"pushed": ps.PushedTable("/p", key="a", check=5)}, "check of a pushed table is a function, not 5"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(declare: Callable[..., Any], given: dict[str, Any], said: str) -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match=re.escape(said)):
        declare(app, **given)
    declare(app)  # nothing was declared


def test_a_table_with_history_is_written_by_the_job() -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match="table `planes`: history_ms is for a table that the job writes"):
        app.table("planes", history_ms=5, side_inputs=["local.planes"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (STREAMS, r"^table `planes` is filled by its side inputs `local.planes` and is read-only"),
        ({"pushed": TABLE}, r"^table `planes` is filled by the pushed table `/tables/planes` and is read-only"),
    ],
)
def test_a_side_table_is_not_written(given: dict[str, Any], said: str) -> None:
    app = ps.StreamApplication("a")
    planes = app.table("planes", **given)
    with pytest.raises(ps.ConfigError, match=said):
        app.input("local.in").send_to(planes)


def test_a_side_table_has_no_versions() -> None:
    app = ps.StreamApplication("a")
    planes = app.table("planes", side_inputs=["local.planes"])
    with pytest.raises(ps.ConfigError, match=r"such a table has no versions, because table `planes` is filled by"):
        app.input("local.in").join_table(planes, lambda value, plane: plane, as_of=True)


def test_several_stages_use_one_side_store() -> None:
    app = ps.StreamApplication("a")
    planes = app.table("planes", side_inputs=["local.planes"])
    app.store("own")
    first = app.input("local.in").join_table(planes, lambda value, _: value, id="first")
    first.partition_by(str).process(ps.StreamTask, stores=["planes", "own"], id="second")
    stages = plan_topology(app.graph()).stages
    assert [[spec.name for spec in stage.stores] for stage in stages] == [[], ["planes"], ["planes", "own"]]
    assert [spec.name for spec in app.graph().written_stores] == ["own"]
    assert [spec.name for spec in app.graph().side_stores] == ["planes"]


def test_a_side_store_that_nobody_reads() -> None:
    app = ps.StreamApplication("a")
    app.table("planes", side_inputs=["local.planes"])
    app.input("local.in").send_to(app.output("local.out"))
    with pytest.raises(ps.ConfigError, match=r"no operator uses it: read it with \.join_table"):
        plan_topology(app.graph())


def test_side_streams_are_no_inputs() -> None:
    app = ps.StreamApplication("a")
    spec(app_with_planes(app), "planes")
    assert [op.stream for op in app.graph().inputs] == [SystemStream("local", "in")]


def app_with_planes(app: ps.StreamApplication) -> ps.StreamApplication:
    app.store("planes", side_inputs=["local.planes"])
    return app
