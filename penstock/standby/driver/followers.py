"""The driver's view of standbys, and its requests to them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from penstock.driver.context import RunContext
from penstock.standby.shown import StandbyFacts
from penstock.wire.assignment import Assignment
from penstock.wire.calls import FOLLOW
from penstock.wire.protocol import Follow, Markers, StandbyState

logger = logging.getLogger(__name__)


def ready_standbys(states: Mapping[str, Sequence[StandbyState]]) -> dict[int, set[str]]:
    """Task → the containers that have a copy of all of its stores."""
    ready: dict[int, set[str]] = defaultdict(set)
    for container, own in states.items():
        for state in own:
            if state.is_ready:
                ready[state.task].add(container)
    return ready


def standby_facts(states: Mapping[str, Sequence[StandbyState]]) -> tuple[StandbyFacts, ...]:
    found = [
        StandbyFacts(state.task, container, state.checkpoint_id, state.behind_ms, state.doing)
        for container, own in states.items()
        for state in own
    ]
    return tuple(sorted(found, key=lambda each: (each.task, each.container)))


def moved_to(before: Assignment, after: Assignment, in_the_end: Assignment) -> list[str]:
    """The containers that tasks would move to, in words; empty until all tasks that are to move can.

    Args:
        after: the assignment with the standbys that are ready.
        in_the_end: the assignment once all of them are.
    """
    if after.homes != in_the_end.homes:
        return []
    moved = {home for task, home in after.homes.items() if before.homes.get(task, home) != home}
    return [f"the standbys of container {name}" for name in sorted(moved)]


def follow(run: RunContext, epoch: int, checkpoint_id: str, markers: Markers) -> None:
    """Ask the standbys, if the job has any, to follow a checkpoint that is in the log. They answer at once, and go on
    in the background. If the call fails, the next checkpoint tells them."""
    if not run.job.config.job.standbys:
        return
    try:
        run.fleet.ask(FOLLOW, epoch, Follow(checkpoint_id, markers))
    except Exception as error:
        logger.warning(
            "standbys were not asked to follow checkpoint %s; they follow the next one: %s", checkpoint_id, error
        )
