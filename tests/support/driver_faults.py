"""Faults of a driver: what the engine calls in a commit is wrapped from outside, in the driver's own process.

The points are `append.before`, `append.after` (the record of a checkpoint), and `snapshot`, `upload`, `clean_up` of all
containers, as `driver.upload.before`, `driver.upload.after` and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from penstock.checkpoint.log import CheckpointLog
from penstock.spark.containers.directory import ContainerDirectory
from tests.support.faults import Faults

CALLS: tuple[str, ...] = ("snapshot", "upload", "clean-up")
POINTS = tuple(
    f"{point}.{when}"
    for point in ("append", *(f"driver.{name.replace('-', '_')}" for name in CALLS))
    for when in ("before", "after")
)


def arm(faults: Faults, *more: tuple[type, str, str]) -> None:
    """From now on the engine of this process meets the faults. `more`: (class, method, point) to wrap as well."""
    for owner, name, point in ((CheckpointLog, "append", "append"), *more):
        setattr(owner, name, _wrapped(getattr(owner, name), partial(_point, point), faults))
    setattr(ContainerDirectory, "ask", _wrapped(ContainerDirectory.ask, _point_of_call, faults))  # noqa: B010


def _point(name: str, *_: object) -> str:
    return name


def _point_of_call(_directory: object, call: Any, *_: object) -> str | None:
    return f"driver.{call.name.replace('-', '_')}" if call.name in CALLS else None


def _wrapped(method: Any, point_of: Callable[..., str | None], faults: Faults) -> Any:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (point := point_of(*args)) is None:
            return method(*args, **kwargs)
        faults.at(f"{point}.before")
        result = method(*args, **kwargs)
        faults.at(f"{point}.after")
        return result

    return call
