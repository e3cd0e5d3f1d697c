"""The pickled form of a processor."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

from pyspark import cloudpickle

from penstock.errors import ConfigError

_OF_SPARK = (
    (
        b"_deserialize_accumulator",
        "an accumulator",
        "Yield what it is to count, and add that up in the handler, or count in a state variable",
    ),
    (b"pyspark.core.broadcast", "a broadcast variable", "Give the processor the value itself, as an attribute"),
)
"""(part of its pickled form, its name, the remedy) of each object that works in tasks of Spark only."""


def pickled(processor: object) -> bytes:
    """The processor, pickled. Raises ConfigError, naming the part, if it cannot be pickled or uses an object that works
    in tasks of Spark only."""
    try:
        data: bytes = cloudpickle.dumps(processor)
    except Exception as error:  # whatever the objects in it raise
        why = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"the processor {type(processor).__name__} cannot be sent to executors, because {_culprit(processor)} "
            f"cannot be pickled: {why}. Make such an object, a lock, a connection or a client, in `init`"
        ) from error
    for mark, what, instead in _OF_SPARK:
        if mark in data:
            raise ConfigError(
                f"the processor {type(processor).__name__} uses {what}, which works in tasks of Spark only, and a "
                f"processor runs in containers of Penstock. {instead}"
            )
    return data


def _culprit(processor: object) -> str:
    for name, value in vars(processor).items():
        if not _can_be(value):
            return f"its attribute `{name}`, of type {type(value).__name__},"
    for name, value in vars(type(processor)).items():
        if isfunction(value) and not _can_be(value):
            return f"something that its method `{name}` uses"
    return "it"


def _can_be(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
