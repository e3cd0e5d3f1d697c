"""The application's code in other processes: what is said where it is missing."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle

import penstock as ps
from penstock.base.application_code import read_shipped
from penstock.testing import TestRunner

MODULE = "penstock_test_shipped"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that only this process has."""
    (tmp_path / f"{MODULE}.py").write_text("class Point:\n    pass\n\n\ndef double(value):\n    return 2 * value\n")
    monkeypatch.syspath_prepend(tmp_path)
    return __import__(MODULE)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / f"{MODULE}.py").exists()])


def test_a_module_that_was_not_shipped(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    data = cloudpickle.dumps({"function": module.double})
    assert read_shipped(data)["function"](2) == 4
    forget(monkeypatch)
    with pytest.raises(ps.ConfigError, match=rf"No module named '{MODULE}'.*name its file.*`spark\.submit\.pyFiles`"):
        read_shipped(data)


def test_another_version_of_a_module(module: ModuleType) -> None:
    data = cloudpickle.dumps({"function": module.double})
    del module.double
    with pytest.raises(ps.ConfigError, match=r"cannot be loaded on host .*double.*`spark\.submit\.pyFiles`"):
        read_shipped(data)


class Pickled(ps.Serde[Any]):
    """Python's own form."""

    def to_bytes(self, obj: Any) -> bytes:
        return pickle.dumps(obj)

    def from_bytes(self, data: bytes) -> Any:
        return pickle.loads(data)


class Keeps(ps.StreamTask):
    """Keeps what it makes."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def init(self, context: ps.TaskContext) -> None:
        self.store = context.store("s")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        if "k" not in self.store:
            self.store["k"] = self.make()


def test_a_class_of_the_script_in_a_store() -> None:
    """A container has another `__main__` than the script: the class is found neither to write nor to read a value."""
    point = type("Point", (), {"__module__": "__main__"})
    app = ps.StreamApplication("a")
    app.store("s", value=Pickled())
    app.input("m.in").process(lambda: Keeps(point), stores=["s"])
    advice = "Define it in a module, import it from there, and name the module's file in `spark.submit.pyFiles`"
    with pytest.raises(ps.UserCodeError, match="cannot be written by Pickled: PicklingError") as caught:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    assert advice in caught.value.failed.reason
    runner = TestRunner(app, partitions=1).input("m.in", [("k", 1)])
    runner._engine(0, "s").apply({b"k": b"c__main__\nPoint\n."})
    with pytest.raises(ps.UserCodeError, match="cannot be read by Pickled: AttributeError") as caught:
        runner.run()
    assert advice in caught.value.failed.reason


def test_a_module_that_a_function_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").map(lambda _: __import__("penstock_test_nowhere")).send_to(app.output("m.out"))
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(app).input("m.in", [1]).run()
    assert "If module `penstock_test_nowhere` is yours, name its file" in caught.value.failed.reason
