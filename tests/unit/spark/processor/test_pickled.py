"""A processor that cannot be sent to executors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.accumulators import INT_ACCUMULATOR_PARAM, Accumulator
from pyspark.core.broadcast import Broadcast
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.errors import ConfigError
from penstock.spark.transform import pickled

LOCK = threading.Lock()


class Holds(StatefulProcessor):
    def __init__(self, held: Any) -> None:
        self.name, self.held = "n", held

    def init(self, handle: Any) -> None:
        """Declares nothing."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


class Uses(Holds):
    def close(self) -> None:
        LOCK.release()


COUNTED = Accumulator(7, 0, INT_ACCUMULATOR_PARAM)


class Counts(Holds):
    def close(self) -> None:
        COUNTED.add(1)


def test_what_works_in_tasks_of_spark_only_is_refused() -> None:
    sent = object.__new__(Broadcast)
    sent._jbroadcast, sent._pickle_registry = SimpleNamespace(id=lambda: 7), set()  # type: ignore[assignment]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        for processor in (Holds(COUNTED), Counts(1)):
            with pytest.raises(ConfigError, match=r"uses an accumulator, which works in tasks of Spark only.*Yield"):
                pickled(processor)
        with pytest.raises(ConfigError, match=r"Holds uses a broadcast variable.*the value itself"):
            pickled(Holds(sent))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_the_attribute_is_named() -> None:
    assert cloudpickle.loads(pickled(Holds(7))).held == 7
    with pytest.raises(
        ConfigError, match=r"Holds cannot.*attribute `held`, of type lock, cannot be pickled.*in `init`"
    ):
        pickled(Holds(threading.Lock()))


def test_the_method_that_uses_it_is_named() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(ConfigError, match="something that its method `close` uses cannot be pickled"):
            pickled(Uses(7))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
