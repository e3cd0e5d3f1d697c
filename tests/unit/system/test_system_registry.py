"""Systems by their configuration: short names, `module:Class`, and what is passed to them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.config.load import load_config
from penstock.config.model import SystemSettings
from penstock.errors import ConfigError, NotFoundError
from penstock.system.base import System, check_options
from penstock.system.kafka.system import KafkaSystem
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from penstock.system.registry import open_system, open_systems
from tests.support.tools.configs import ENV, load, refused

MODULE = """
from penstock.errors import NotFoundError
from penstock.system.base import System
from penstock.system.memory import MemorySystem

class Own(MemorySystem):
    @classmethod
    def configured(cls, name, options):
        made = cls(name)
        made.options = dict(options)
        return made

class Refuses(MemorySystem):
    @classmethod
    def configured(cls, name, options):
        raise NotFoundError("there is no server")

class Breaks(MemorySystem):
    @classmethod
    def configured(cls, name, options):
        return cls(options["servers"])

class Renamed(MemorySystem):
    @classmethod
    def configured(cls, name, options):
        return cls("another")

class Unconfigured(MemorySystem):
    configured = System.configured

class NoSystem: ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_system_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_system_of_a_test", raising=False)
    return "own_system_of_a_test"


def test_the_systems_of_penstock(tmp_path: Path) -> None:
    systems = open_systems(
        load(
            f"systems.local.path={tmp_path}",
            "systems.a.samza.factory=memory",
            "systems.b.samza.factory=local",
            f"systems.b.path={tmp_path}/b",
            "systems.c.samza.factory=org.apache.samza.system.inmemory.InMemorySystemFactory",
        )
    )
    assert {name: type(system) for name, system in systems.items()} == {
        "local": LocalSystem, "a": MemorySystem, "b": LocalSystem, "c": MemorySystem
    }  # fmt: skip
    assert systems["b"] == LocalSystem("b", f"{tmp_path}/b")


def test_a_system_of_ones_own_gets_its_options(module: str) -> None:
    config = load(
        f"systems.far.samza.factory={module}:Own",
        "systems.far.bootstrap.servers=a:1, b:2",
        "systems.far.path=relative",
        "systems.far.password=cmd:echo hush",
        "systems.far.default.stream.samza.offset.default=oldest",
        "systems.farther.samza.factory=memory",
    )
    system = open_system(config.system("far"))
    assert isinstance(system, MemorySystem)
    assert system.name == "far"
    assert vars(system)["options"] == {
        "bootstrap.servers": "a:1, b:2", "path": str(Path("relative").absolute()), "password": "hush"
    }  # fmt: skip
    assert config.system_names == ("far", "farther", "local")
    assert "hush" not in repr(config)
    assert not any("password" in key for key in config.for_tasks())
    assert load_config(overrides=config.flat(), environ=ENV) == config


@pytest.mark.parametrize(
    "option", ["samza.fctory", "samza.offset.default", "samza.reset", "default.stream.samza.x", "samza", "default"]
)
def test_a_key_for_all_systems_is_no_option(option: str) -> None:
    assert f"`systems.far.{option}`" in refused("systems.far.samza.factory=a:B", f"systems.far.{option}=x")


@pytest.mark.parametrize("own", [(), ("systems.far.samza.factory=local",), ("systems.far.samza.factory=memory",)])
def test_systems_of_penstock_take_no_other_options(own: tuple[str, ...]) -> None:
    text = refused(*own, "systems.far.pth=secret")
    assert "unknown key `systems.far.pth` (-c): did you mean `systems.far.path`?" in text
    assert "secret" not in text


@pytest.mark.parametrize("factory", ["a.b", ":B", "a:", "a:b:c"])
def test_what_is_no_factory(factory: str) -> None:
    kinds = "`database` or `delta` or `files` or `iceberg` or `kafka` or `local` or `memory`"
    assert f"expected {kinds}, or your own" in refused(f"systems.far.samza.factory={factory}")


@pytest.mark.parametrize("factory", ["kafka", "org.apache.samza.system.kafka.KafkaSystemFactory"])
def test_kafka_takes_its_options(factory: str) -> None:
    config = load(
        f"systems.far.samza.factory={factory}",
        "systems.far.consumer.bootstrap.servers=a:1, b:2",
        "systems.far.producer.sasl.password=cmd:echo hush",
        "systems.far.default.stream.replication.factor=3",
    )
    system = open_system(config.system("far"))
    assert isinstance(system, KafkaSystem)
    assert (system.name, system.options.servers) == ("far", "a:1, b:2")
    assert system.options.topics == {"replication.factor": "3"}
    assert "hush" not in repr(config) + repr(system) + repr(system.options)
    assert not any("password" in key for key in config.for_tasks())


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("nowhere:Own", ConfigError, "No module named 'nowhere'.*importable by the driver and on every host"),
        ("{module}:Missing", ConfigError, "Missing"),
        ("{module}:NoSystem", ConfigError, "`systems.far.samza.factory` = `{module}:NoSystem` is not a subclass"),
        ("{module}:Unconfigured", ConfigError, "it has no method `configured`"),
        ("{module}:Breaks", ConfigError, "`far` could not be made by `{module}:Breaks`: KeyError: 'servers'"),
        ("{module}:Renamed", ConfigError, "did not make a System of the name `far`"),
        ("{module}:Refuses", NotFoundError, "there is no server"),
    ],
)
def test_a_system_that_cannot_be_made(module: str, name: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said.format(module=module)):
        open_system(SystemSettings("far", name.format(module=module)))


def test_unknown_options_are_named_together() -> None:
    check_options("far", {"a": "1"}, ["a", "b"])
    with pytest.raises(ConfigError, match=r"unknown options: `systems.far.c`, `systems.far.d`; .* are: `a`, `b`"):
        check_options("far", {"d": "", "a": "", "c": ""}, ["b", "a"])
    with pytest.raises(ConfigError, match="are: none"):
        check_options("far", {"d": ""}, [])


def test_a_system_without_configured_says_so() -> None:
    with pytest.raises(ConfigError, match="System cannot be configured"):
        System.configured("far", {})
