"""Faults of a driver: the steps of a start, a commit and a drain are wrapped from outside, in the driver's own process.

The points, each with `.before` and `.after`:

    claim, append               of the checkpoint log
    startpoint.delete
    driver.snapshot, driver.upload, driver.clean_up, driver.publish
                                calls to all containers
    drain.end                   the `end` of the drain batch: all stages are through

And of a drain:

    drain.noticed               the run has seen the request
    drain.planned               the drain batch is planned, and has not begun
    drain.record                the drained record is in the log, and the request is still there

The last commit has the points of every commit; `drain.first` and `drain.last` are in `on_drain` of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from penstock.checkpoint.log import CheckpointLog
from penstock.drain.driver import Drain
from penstock.driver.feed.feed import OffsetFeed
from penstock.spark.containers.directory import ContainerDirectory
from penstock.start.startpoint_manager import StartpointManager
from tests.support.faults.plan import Faults

COMMIT_CALLS = ("snapshot", "upload", "clean-up")
COMMIT_POINTS = tuple(
    f"{point}.{when}"
    for point in ("append", *(f"driver.{name.replace('-', '_')}" for name in COMMIT_CALLS))
    for when in ("before", "after")
)


def arm(faults: Faults) -> None:
    """From now on this process meets the faults at the points of a job."""
    wrap(faults, CheckpointLog, "claim", "claim")
    wrap(faults, CheckpointLog, "append", "append")
    wrap(faults, StartpointManager, "delete", "startpoint.delete")
    wrap_calls(faults, *COMMIT_CALLS, "publish")
    look, plan, finish = Drain.look, OffsetFeed.drain, Drain.ended
    noticed: set[Drain] = set()

    def looking(drain: Drain) -> bool:
        drains = look(drain)
        if drains and drain not in noticed:
            noticed.add(drain)
            faults.at("drain.noticed")
        return drains

    def planning(*given: Any) -> Any:
        planned = plan(*given)
        faults.at("drain.planned")
        return planned

    def finishing(drain: Drain) -> None:
        faults.at("drain.record")
        finish(drain)

    for owner, name, method in (
        (Drain, "look", looking),
        (Drain, "ended", finishing),
        (OffsetFeed, "drain", planning),
    ):
        setattr(owner, name, method)


def wrap(faults: Faults, owner: type, name: str, point: str | Callable[..., str]) -> None:
    """From now on a method comes to a point before and after. A function gives the point of a call's arguments."""
    point_of = point if callable(point) else partial(_point, point)
    setattr(owner, name, _wrapped(getattr(owner, name), point_of, faults))


def wrap_calls(faults: Faults, *names: str) -> None:
    """From now on these calls to containers, and the `end` of a drain batch, come to their points."""

    def point_of(_directory: object, call: Any, _epoch: int, request: Any, **_: object) -> str | None:
        if call.name in names:
            return f"driver.{call.name.replace('-', '_')}"
        return "drain.end" if call.name == "end" and request.batch.control in ("drain", "drain-operators") else None

    setattr(ContainerDirectory, "ask", _wrapped(ContainerDirectory.ask, point_of, faults))  # noqa: B010


def _point(name: str, *_: object) -> str:
    return name


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
