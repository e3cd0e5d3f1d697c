"""The driver's part of standbys: asks them to follow the checkpoints, and shows how far they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.part import DriverPart
from penstock.job.board import Shown
from penstock.standby.wing import FOLLOW, STANDBY_WING, Follow, RunStandbys, StandbyFacts, StandbyState, standby_board
from penstock.wire.protocol import Markers

logger = logging.getLogger(__name__)


class StandbyDriver(DriverPart):
    """Asks the standbys of a run to follow each checkpoint. Does nothing in a job without standbys."""

    def restored(self, epoch: int, checkpoint_id: str, markers: Markers) -> None:
        self._follow(epoch, checkpoint_id, markers)

    def recorded(self, record: CheckpointRecord, markers: Markers, *, abandoned: bool) -> None:
        if not abandoned:
            self._follow(record.epoch, str(record.id), markers)

    def shown(self) -> Sequence[Shown]:
        job = self.run.job
        if not job.config.job.standbys:
            return ()
        return (Shown("about the standbys", standby_board(job.objects, job.paths), self._document),)

    def _follow(self, epoch: int, checkpoint_id: str, markers: Markers) -> None:
        """They answer at once, and go on in the background. If the call fails, the next checkpoint tells them."""
        if not self.run.job.config.job.standbys:
            return
        try:
            self.run.fleet.ask(FOLLOW, epoch, Follow(checkpoint_id, markers))
        except Exception as error:
            logger.warning(
                "standbys were not asked to follow checkpoint %s; they follow the next one: %s", checkpoint_id, error
            )

    def _document(self) -> RunStandbys:
        states = self.run.fleet.states(STANDBY_WING.name, list[StandbyState])
        return RunStandbys(self.run.job.claim.run_id, standby_facts(states))


def standby_facts(states: Mapping[str, Sequence[StandbyState]]) -> tuple[StandbyFacts, ...]:
    """The standbys in the states of all containers."""
    found = [
        StandbyFacts(state.task, container, state.checkpoint_id, state.behind_ms, state.doing)
        for container, own in states.items()
        for state in own
    ]
    return tuple(sorted(found, key=lambda each: (each.task, each.container)))
