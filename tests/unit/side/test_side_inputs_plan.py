"""Side inputs that the configuration names, and what fits an application that has some."""

from __future__ import annotations

import re
from typing import Any

import pytest

import penstock as ps
from penstock.config import load_config
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import SideInputs
from penstock.side.start import is_backed_up, with_side_inputs
from penstock.start.layout import store_layout

INPUTS, FACTORY = "stores.planes.side.inputs", "stores.planes.side.inputs.processor.factory"
BROADCAST = f"{INPUTS}.broadcast"


class Factory(ps.SideInputsProcessorFactory):
    def get_side_inputs_processor(self, config: Any, metrics_registry: Any) -> Any:
        return lambda message, store: [ps.Entry(message.key, message.value)]


class Demanding(Factory):
    def __init__(self, more: int) -> None:
        self.more = more


def application(**given: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.store("planes", key=ps.Long(), **given)
    app.store("own")
    app.output("local.out")
    app.input("local.in").process(ps.StreamTask, stores=["planes", "own"], id="reader")
    return app


def filled(app: ps.StreamApplication, keys: dict[str, object]) -> ApplicationGraph:
    return with_side_inputs(app.graph(), load_config(overrides=keys, default_job_name="a"))


def test_the_configuration_names_streams_and_a_factory() -> None:
    graph = filled(application(), {INPUTS: "local.planes, local.more", FACTORY: f"{__name__}:Factory"})
    (spec,) = graph.side_stores
    side = spec.side
    assert isinstance(side, SideInputs)
    assert [str(each.stream) for each in side.streams] == ["local.planes", "local.more"]
    assert {each.key_serde.name for each in side.streams} == {"long"}, "keys of messages, not of a store"
    assert isinstance(side.processor, Factory)
    assert not side.broadcast
    assert {str(stream): [s.name for s in specs] for stream, specs in graph.side_streams().items()} == {
        "local.planes": ["planes"],
        "local.more": ["planes"],
    }
    assert list(store_layout(graph)) == ["own"], "no part of checkpoints"


def test_the_configuration_may_ask_for_everything_in_every_task() -> None:
    graph = filled(application(), {INPUTS: "local.planes", BROADCAST: "true"})
    side = graph.side_stores[0].side
    assert isinstance(side, SideInputs)
    assert side.broadcast


def test_the_configuration_adds_the_processor_alone() -> None:
    graph = filled(application(side_inputs=["local.planes"]), {FACTORY: f"{__name__}:Factory"})
    side = graph.side_stores[0].side
    assert isinstance(side, SideInputs)
    assert isinstance(side.processor, Factory)


def test_without_side_inputs_nothing_changes() -> None:
    graph = application().graph()
    assert with_side_inputs(graph, load_config(overrides={}, default_job_name="a")) is graph


ONE: dict[str, Any] = {"side_inputs": ["local.planes"]}
PUSHED: dict[str, Any] = {"pushed": ps.PushedTable("/tables/planes", key="tail")}


@pytest.mark.parametrize(
    ("given", "keys", "said"),
    [
        (ONE, {INPUTS: "local.planes"}, f"`{INPUTS}` (dict): the application says what fills store `planes`"),
        (PUSHED, {INPUTS: "local.planes"}, "the application says what fills store `planes`"),
        ({}, {FACTORY: "a:B"}, f"store `planes` has no side inputs whose messages a processor could process: name them in `{INPUTS}`"),  # noqa: E501
        (PUSHED, {FACTORY: "a:B"}, "store `planes` has no side inputs whose messages a processor could process"),
        (ONE | {"processor": Factory()}, {FACTORY: f"{__name__}:Factory"}, "the application gives the processor of store `planes`"),  # noqa: E501
        (ONE, {BROADCAST: "true"}, f"`{BROADCAST}` (dict): `{INPUTS}` names no side inputs"),
        (ONE, {FACTORY: "no_such_module:Factory"}, "cannot be loaded: ModuleNotFoundError"),
        (ONE, {FACTORY: "collections:Counter"}, "is not a subclass of penstock.SideInputsProcessorFactory"),
        (ONE, {FACTORY: f"{__name__}:Demanding"}, "calling it without arguments failed: TypeError"),
        ({"ttl_ms": 5}, {INPUTS: "local.planes"}, "store `planes`: ttl_ms is for a store that the job writes"),
        (ONE, {"stores.planes.changelog": "local.c"}, "store `planes` has no changelog, because side inputs"),
        (ONE, {"stores.planes.backup.factories": "changelog-stream"}, "`stores.planes.backup.factories` = `changelog-stream` (dict): side inputs fill store `planes`"),  # noqa: E501
        (ONE, {"stores.planes.backup.factories": "changelog-files"}, "it has no changes of the job that a changelog could hold"),  # noqa: E501
        (ONE, {"stores.planes.backup.factories": "blob,changelog-files"}, "`blob` keeps copies of its content"),
        (PUSHED, {"stores.planes.backup.factories": "blob"}, "store `planes` is not backed up, because a pushed table"),
        ({"side_inputs": ["local.out"]}, {}, "the side input `local.out` of store `planes` is an output of the application"),  # noqa: E501
        (ONE, {"task.dead.letter.stream": "local.planes"}, "is the dead-letter stream of the job"),
        ({"side_inputs": ["local.a-1-own-changelog"]}, {"stores.backup.factories": "changelog-stream"}, "is the changelog of store `own`"),  # noqa: E501
    ],
)  # fmt: skip
def test_what_is_refused(given: dict[str, Any], keys: dict[str, object], said: str) -> None:
    with pytest.raises(ps.ConfigError, match=re.escape(said)):
        filled(application(**given), keys)


def test_a_table_that_the_application_writes() -> None:
    app = ps.StreamApplication("a")
    app.input("local.in").send_to(app.table("planes"), id="writer")
    with pytest.raises(ps.ConfigError, match=r"^`writer` writes table `planes`, but table `planes` is filled by"):
        filled(app, {INPUTS: "local.planes"})


def test_a_store_of_an_operator() -> None:
    app = ps.StreamApplication("a")
    app.input("local.in").window(ps.Windows.tumbling(1000), id="w").send_to(app.output("local.out"))
    with pytest.raises(ps.ConfigError, match=r"store `w\.window` belongs to an operator, which alone writes it"):
        filled(app, {"stores.w.window.side.inputs": "local.planes"})


def test_an_intermediate_stream_is_no_side_input() -> None:
    app = application(side_inputs=["local.between"])
    app.input("local.more").partition_by(str, through="local.between", id="p").send_to(app.output("local.o"))
    with pytest.raises(ps.ConfigError, match=r"`local\.between` of store `planes` is the intermediate stream of `p`"):
        filled(app, {})


def test_backups_of_all_stores_do_not_hold_for_side_stores() -> None:
    keys: dict[str, object] = {"job.name": "a", "stores.backup.factories": "changelog-stream,blob"}
    filled(application(**ONE), keys)
    assert not is_backed_up(load_config(overrides=keys), "planes")
    assert is_backed_up(load_config(overrides=keys | {"stores.planes.backup.factories": "blob"}), "planes")


def test_a_stream_may_be_an_input_too_and_fill_several_stores() -> None:
    app = ps.StreamApplication("a")
    for name in ("one", "two"):
        app.store(name, side_inputs=["local.in"])
    app.input("local.in").process(ps.StreamTask, stores=["one", "two"])
    assert [[s.name for s in specs] for specs in filled(app, {}).side_streams().values()] == [["one", "two"]]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("stores.planes.side.inputs.factory", "`stores.planes.side.inputs.factory` = `x` (dict): expected"),
        ("stores.planes.side.inputs.processor.serialized.instance", "is a key of Samza: use"),
        ("stores.planes.side.input", f"did you mean `{INPUTS}`"),
    ],
)
def test_mistaken_keys(key: str, said: str) -> None:
    with pytest.raises(ps.ConfigError, match=re.escape(said)):
        load_config(overrides={"job.name": "a", key: "x"})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("planes", "a list, separated by commas, of streams"),
        ("", "a list, separated by commas, of streams"),
        ("local.a,local.a", "a stream is listed twice"),
        ("other.planes", "there is no system `other`"),
    ],
)
def test_mistaken_streams(value: str, said: str) -> None:
    with pytest.raises(ps.ConfigError, match=re.escape(said)):
        load_config(overrides={"job.name": "a", INPUTS: value})


def test_settings() -> None:
    side = load_config(overrides={"job.name": "a"}).side_inputs
    assert (side.bootstrap_timeout_ms, side.max_age_ms, side.on_error) == (600_000, 86_400_000, "fail")
    keys: dict[str, object] = {"side.inputs.on.error": "continue", "side.inputs.max.age.ms": "2h", INPUTS: ["local.a"]}
    config = load_config(overrides={"job.name": "a"} | keys)
    assert (config.side_inputs.on_error, config.side_inputs.max_age_ms) == ("continue", 7_200_000)
    assert config.flat()[INPUTS] == "local.a"
    assert load_config(overrides=config.flat()) == config
