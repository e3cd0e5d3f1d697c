"""Faults of a driver: what the engine calls in a commit is wrapped from outside, in the driver's own process.

The points are `append.before`, `append.after` (the record of a checkpoint), and `snapshot`, `upload`, `clean_up` of all
containers, as `driver.upload.before`, `driver.upload.after` and so on.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from penstock.checkpoint.log import CheckpointLog
from penstock.engine.directory import ContainerDirectory
from tests.support.faults import Faults

WRAPPED: tuple[tuple[type, str, str], ...] = (
    (CheckpointLog, "append", "append"),
    (ContainerDirectory, "snapshot", "driver.snapshot"),
    (ContainerDirectory, "upload", "driver.upload"),
    (ContainerDirectory, "clean_up", "driver.clean_up"),
)
POINTS = tuple(f"{point}.{when}" for _, _, point in WRAPPED for when in ("before", "after"))


def arm(faults: Faults) -> None:
    """From now on the engine of this process meets the faults."""
    for owner, name, point in WRAPPED:
        setattr(owner, name, _wrapped(getattr(owner, name), point, faults))


def _wrapped(method: Any, point: str, faults: Faults) -> Any:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        faults.at(f"{point}.before")
        result = method(*args, **kwargs)
        faults.at(f"{point}.after")
        return result

    return call
