"""The network between clients and brokers: requests are lost, late or doubled, and their senders die or stand still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.testing.simulation.faults import Fate, Trouble
from penstock.testing.simulation.scheduler import Scheduler, active
from tests.simulation.kafka.partition import BrokerError

T = TypeVar("T")
_NO_HOST = "here"
"""The host of those who are no part of the job."""

_FATES = (Fate.FAILS, Fate.LOST_REPLY, Fate.TWICE, Fate.LATE, Fate.LATE)
_OF_TRANSACTIONS = ("AddPartitionsToTxn", "EndTxn")


class LostError(Exception):
    """No answer to a request came."""


class Network:
    """Carries requests. Without a trouble, or outside of a life, each is answered at once."""

    def __init__(self, trouble: Trouble | None) -> None:
        self.trouble = trouble
        self._away_until = 0
        self._held: list[_Held] = []

    @property
    def living(self) -> tuple[Trouble, Scheduler] | None:
        """The trouble and the scheduler, if the caller is an actor of a life."""
        scheduler = active()
        if self.trouble is None or scheduler is None or scheduler.mine() is None:
            return None
        return self.trouble, scheduler

    def ask(self, what: str, request: Callable[[], T], *, changes: bool) -> T:
        """A request of the current actor, and its answer. One that changes something is on its way by itself, whatever
        becomes of its sender.

        Raises:
            BrokerError: the answer is a refusal.
            LostError: the connection broke, or no answer came.
        """
        living = self.living
        if living is None:
            return request()
        trouble, scheduler = living
        sent = _Request(self, what, request)
        if changes:
            actor = scheduler.spawn(trouble.network, "request", lambda: sent.travel(trouble, changes=True))
            _strike(trouble, what)
            scheduler.join(scheduler.me(), actor, None)
        else:
            sent.travel(trouble, changes=False)
        return sent.answer()

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        """Do something after so many seconds."""
        living = self.living
        if living is None:
            work()
            return
        trouble, scheduler = living

        def wait() -> None:
            scheduler.sleep(seconds)
            work()

        scheduler.spawn(trouble.network, "later", wait)

    def hold(self, trouble: Trouble, take: Callable[[], None]) -> None:
        """Let a late request come right before one of the next changes, or after a while."""
        choices = trouble.scheduler.choices
        held = _Held(choices.draw(8), take)
        self._held.append(held)
        self.later((0.05, 0.5, 3.0, 20.0, 70.0)[choices.draw(5)], held.release)

    def let_come(self) -> None:
        """A change comes: late ones may overtake it."""
        for held in list(self._held):
            held.left -= 1
            if held.left < 0:
                self._held.remove(held)
                held.release()

    def is_away(self, trouble: Trouble) -> bool:
        """Now and then all brokers are away for a while."""
        scheduler = trouble.scheduler
        if scheduler.calm or scheduler.now_ns >= self._away_until:
            if not trouble.happens(trouble.rates.stream // 40):
                return False
            seconds = (1.0, 4.0, 10.0, 35.0)[scheduler.choices.draw(4)]
            self._away_until = scheduler.now_ns + round(seconds * 1e9)
            trouble.counts["brokers away"] += 1
            scheduler.note(f"the brokers are away for {seconds:g} s")
        return True


@dataclass(slots=True, eq=False)
class _Held:
    """A request that is held up."""

    left: int
    """So many changes come before it."""
    take: Callable[[], None] | None

    def release(self) -> None:
        take, self.take = self.take, None
        if take is not None:
            take()


class _Request(Generic[T]):
    """A request on its way."""

    def __init__(self, network: Network, what: str, request: Callable[[], T]) -> None:
        self._network = network
        self._what = what
        self._request = request
        self._answers: list[T] = []
        self._errors: list[Exception] = []

    def answer(self) -> T:
        if self._errors:
            raise self._errors[0]
        return self._answers[0]

    def travel(self, trouble: Trouble, *, changes: bool) -> None:
        trouble.pass_time()
        if changes:
            self._network.let_come()
        if self._network.is_away(trouble):
            self._errors.append(LostError(self._what))
            trouble.scheduler.sleep(0.05)
        elif trouble.happens(trouble.rates.stream * (3 if self._what.startswith("EndTxn") else 1)):
            self._fail(trouble, changes=changes)
        else:
            try:
                self._answers.append(self._request())
            except BrokerError as error:
                self._errors.append(error)
            trouble.pass_time()

    def _fail(self, trouble: Trouble, *, changes: bool) -> None:
        scheduler, what = trouble.scheduler, self._what
        fate = _FATES[scheduler.choices.draw(len(_FATES) if changes else 1)]
        trouble.counts[f"{fate.name.lower()} {what.partition(' ')[0]}"] += 1
        scheduler.note(f"{what} {fate.value}")
        self._errors.append(LostError(what))
        if fate is Fate.LATE:
            self._network.hold(trouble, self._take_late)
        elif fate is not Fate.FAILS:
            self._take_late()
            if fate is Fate.TWICE:
                self._network.later(0.01, self._take_late)
        scheduler.sleep((0.001, 0.01, 0.1, 2.0)[scheduler.choices.draw(4)])

    def _take_late(self) -> None:
        scheduler = active()
        try:
            self._request()
            text = f"{self._what} takes effect"
        except BrokerError as error:
            text = f"{self._what} came too late: {error}"
        if scheduler is not None:
            scheduler.note(text)


def _strike(trouble: Trouble, what: str) -> None:
    """The sender of a request dies or stands still, with its request under way: above all within a transaction."""
    scheduler = trouble.scheduler
    sender = scheduler.me().process
    rate = trouble.rates.stream if what.partition(" ")[0] in _OF_TRANSACTIONS else trouble.rates.stream // 4
    if sender.host == _NO_HOST or not trouble.happens(rate):
        return
    how = scheduler.choices.draw(6)
    if how == 5:
        trouble.counts["killed process"] += 1
        scheduler.kill(sender, "kill -9 at a request")
    else:
        trouble.counts["stopped process"] += 1
        scheduler.stop(sender, (0.5, 8.0, 20.0, 45.0, 100.0)[how])
