"""Side inputs in the driver: catching up before the first batch of an epoch, and problems while the run continues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from penstock.driver.part import DriverPart, RunContext
from penstock.errors import ContainerLostError, FailedMessage
from penstock.graph.stores import SideInputs
from penstock.side.wing import BOOTSTRAP, SIDE_WING, Bootstrap, BootstrapProgress, BootstrapState, SideState
from penstock.wire.protocol import Beat, load

logger = logging.getLogger(__name__)
_LOG_SECONDS = 5.0
REPEAT_SECONDS = 60.0


class SideDriver(DriverPart):
    """Waits until side inputs have caught up, and tells what keeps them from filling their stores."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._fills = any(isinstance(spec.side, SideInputs) for spec in run.job.topology.graph.side_stores)
        self._troubles = SideTroubles(run.job.streams.named)

    def enter(self, epoch: int) -> None:
        """Wait until the containers have caught up the side inputs. A run that is asked to end meanwhile ends at once:
        nothing has been processed since its checkpoint.

        Raises:
            UserCodeError: a message does not decode, or the application's processor raised.
            PenstockTimeoutError: it took longer than `side.inputs.bootstrap.timeout.ms`; says what is missing.
            ContainerLostError: a container was lost, or the run is to end.
            PenstockError: a stream does not exist or cannot be read.
        """
        if not self._fills:
            return
        run = self.run
        watch = _Watch(run)
        with run.board.during("bootstrapping", SIDE_WING.name):
            try:
                answers = run.fleet.ask(BOOTSTRAP, epoch, Bootstrap(), on_answer=watch.answered)
            finally:
                run.board.tell(SIDE_WING.name, None)
        for answer in answers:
            if answer.failure is not None:
                raise answer.failure.error(run.job.streams.named)

    def before_step(self, epoch: int) -> None:
        """Log the present problems. Raises the failure that has stopped the side inputs of this epoch."""
        if self._fills:
            self._troubles.look(states_of(self.run.fleet.beats(), epoch), self.run.clock.monotonic())


def states_of(beats: Sequence[Beat], epoch: int) -> list[SideState]:
    """The states in the beats that came from an epoch."""
    own = [beat.wings[SIDE_WING.name] for beat in beats if beat.epoch == epoch and SIDE_WING.name in beat.wings]
    return [load(SideState, each) for each in own]


class _Watch:
    """Adds up the containers' answers, and ends the call when the run is to end."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._answers: dict[str, BootstrapState] = {}
        self._began = self._logged = run.clock.monotonic()

    def answered(self, container: str, answer: BootstrapState) -> None:
        """Take a container's answer. Called by several threads. Raises ContainerLostError if the run is to end."""
        run = self._run
        if run.stop.graceful.is_set():
            run.stop.immediate.set()
            raise ContainerLostError("the run was asked to end before its side inputs were caught up")
        with self._lock:
            self._answers[container] = answer
            now = run.clock.monotonic()
            progress = bootstrap_progress(self._answers, now - self._began)
            run.board.tell(SIDE_WING.name, progress)
            if now - self._logged >= _LOG_SECONDS:
                self._logged = now
                logger.info("catching up side inputs: %s", progress)


def bootstrap_progress(answers: Mapping[str, BootstrapState], seconds: float) -> BootstrapProgress:
    stores = sorted({store for answer in answers.values() for store in answer.total})
    found = {
        store: (
            sum(answer.done.get(store, 0) for answer in answers.values()),
            sum(answer.total.get(store, 0) for answer in answers.values()),
        )
        for store in stores
    }
    done, total = (sum(pair[n] for pair in found.values()) for n in (0, 1))
    left_s = seconds * (total - done) / done if done and seconds > 1 else None
    return BootstrapProgress(found, done, total, left_s)


class SideTroubles:
    """Logs each problem when it begins, again each minute while it lasts, and its end. Used by one thread."""

    def __init__(self, named: Callable[[FailedMessage], FailedMessage]) -> None:
        """`named` adds the name of a failure's message."""
        self._named = named
        self._logged: dict[str, float] = {}
        """Text of each current problem → when it was last logged."""

    def look(self, states: Sequence[SideState], now: float) -> None:
        """Log the current problems. Raises a failure that has stopped the side inputs. `now`: monotonic seconds."""
        for state in states:
            if state.failure is not None:
                raise state.failure.error(self._named)
        texts = {text for state in states for text in state.troubles}
        if not texts and not self._logged:
            return
        for text in sorted(texts):
            if now - self._logged.get(text, -REPEAT_SECONDS) >= REPEAT_SECONDS:
                self._logged[text] = now
                logger.error("side inputs fail; their stores keep what they have, and the job keeps trying: %s", text)
        ended = self._logged.keys() - texts
        self._logged = {text: at for text, at in self._logged.items() if text in texts}
        if ended and not self._logged:
            logger.warning("side inputs fill their stores again")
