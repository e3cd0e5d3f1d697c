"""Whether a driver runs, told from its lease."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.errors import NotFoundError
from penstock.metadata.lease import LeaseHolder, LeaseState, Sighting, Verdict, judge
from penstock.metadata.object_store import ObjectStore

Running: TypeAlias = Literal["running", "not running", "held, not verified"]

_MOST_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """`holder` is who has the lease, or had it last; None if nobody ever did."""

    running: Running
    reason: str
    holder: LeaseHolder | None = None


def watch_lease(
    objects: ObjectStore,
    key: str,
    *,
    wait: bool,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> LeaseFacts:
    """Look at the lease until it is certain whether its holder lives: when it is renewed, or after its own time.

    Without `wait` one look has to do. Written times are not compared with a clock (DESIGN section 4).
    """
    first: Sighting | None = None
    while True:
        state, tag = _read(objects, key)
        first = first or Sighting(tag, clock())
        if state is None:
            return LeaseFacts("not running", "no driver has the lease")
        match judge(first, state, tag, clock(), lease_ms=0):
            case Verdict.FREE:
                return LeaseFacts("not running", _why_free(state), state.holder)
            case Verdict.HELD:
                return LeaseFacts("running", "its lease is being renewed", state.holder)
        if not wait:
            return LeaseFacts("held, not verified", "its lease was looked at only once", state.holder)
        pause(min(state.lease_ms / 20_000, _MOST_PAUSE_S))


def _read(objects: ObjectStore, key: str) -> tuple[LeaseState, str] | tuple[None, None]:
    try:
        data, tag = objects.get_with_tag(key)
    except NotFoundError:
        return None, None
    return LeaseState.decode(data, key), tag


def _why_free(state: LeaseState) -> str:
    if state.released:
        return "its last run released the lease"
    if state.holder.known_dead():
        return "the process that holds the lease is gone"
    return f"the lease was not renewed for {state.lease_ms / 1000:g} s"
