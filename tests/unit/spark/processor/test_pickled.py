"""A processor that cannot be sent to executors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.errors import ConfigError
from penstock.spark.processor.pickled import pickled

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
