"""The text of a processor's code: equal in every process, and another one when the code is."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

from penstock.side.start import code_text

SEATS = {"A320": 180}


def seats(message: Any, store: Any) -> list[tuple[Any, Any]]:
    return [(message.key, SEATS.get(message.value))] if message.key not in {"none", "unknown", "other"} else []


def prefixed(prefix: str) -> Callable[[Any, Any], list[tuple[Any, Any]]]:
    return lambda message, store: [(prefix + message.key, message.value)]


def one(prefix: str, message: Any, store: Any) -> list[tuple[Any, Any]]:
    return [(prefix, message.value)]


def two(prefix: str, message: Any, store: Any) -> list[tuple[Any, Any]]:
    return [(prefix, None)]


class Named:
    def __init__(self, name: str) -> None:
        self.name = name
        self.itself = {"me": self, "kinds": {Named, str}}

    def process(self, message: Any, store: Any) -> list[tuple[Any, Any]]:
        return one(self.name, message, store)


class Factory:
    def get_side_inputs_processor(self, config: Any, metrics: Any) -> Named:
        return Named("planes")


ALL = [seats, prefixed("a"), prefixed("b"), functools.partial(one, "a"), functools.partial(one, "b")]
ALL += [functools.partial(two, "a"), Named("a"), Named("b"), Named("a").process, Factory(), None]


def test_each_processor_has_another_text() -> None:
    assert len({code_text(each) for each in ALL}) == len(ALL)


@pytest.mark.parametrize("processor", ALL)
def test_a_processor_has_the_same_text_wherever_it_is_sent(processor: Any) -> None:
    assert code_text(cloudpickle.loads(cloudpickle.dumps(processor))) == code_text(processor)


def test_the_text_does_not_depend_on_the_process() -> None:
    code = "from tests.unit.side.fill.test_side_code_text import *; print([code_text(each) for each in ALL])"
    found = {
        subprocess.check_output([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_what_a_processor_uses_of_its_package_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [code_text(each) for each in (seats, Factory())]
    monkeypatch.setitem(SEATS, "A320", 190)
    monkeypatch.setattr(Named, "process", lambda self, message, store: [])
    after = [code_text(each) for each in (seats, Factory())]
    assert all(old != new for old, new in zip(before, after, strict=True))
