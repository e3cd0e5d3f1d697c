"""The faults of a schedule with their rates, and what strikes processes and hosts from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from penstock.testing.simulation.scheduler import Process, Scheduler

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rates:
    """Faults of each kind in a thousand calls or moments. Times are simulated seconds."""

    store: int = 15
    """Calls of the object store that fail, before or after their effect, or whose effect comes later."""
    stream: int = 10
    """Reads and writes of streams that fail in the same ways."""
    call: int = 15
    """Calls to containers whose request or reply is lost."""
    attempt: int = 40
    """Attempts of a batch that die, or run twice."""
    slow: int = 30
    """Calls that take long."""
    disk: int = 4
    """Files and folders for which a local disk has no space."""
    slow_disk: int = 30
    """Files and folders that a local disk takes long to make."""
    crash: int = 10
    """Calls with an effect on a store or a stream in the middle of which the caller's process dies or stands still."""
    again: int = 100
    """Calls to containers that come twice, the second time perhaps late."""
    late: int = 500
    """Attempts that a broken run has left, and that begin late."""
    jump: int = 100
    """Moments at which a wall clock jumps, of those at which a process would have been killed or stopped."""
    reads: float = 1.0
    """The share of these rates that is for reads of stores and streams."""
    rest_s: float = 40.0
    """The longest pause between the end of a driver and the next start."""
    kill_s: float = 20.0
    """A process is killed or stopped about so often."""

    def scaled(self, factor: float) -> Rates:
        """As many faults times a factor."""
        rates = {name: round(getattr(self, name) * factor) for name in _SCALED}
        return replace(self, **rates, kill_s=self.kill_s / factor if factor else 1e9)

    def known_to_users(self) -> Rates:
        """Only the faults that test a job. The others test Penstock, in places that no application reaches."""
        return replace(self, disk=0, jump=0, slow_disk=0, crash=0, again=0, late=0)


_SCALED = ("store", "stream", "call", "attempt", "slow", "disk", "slow_disk", "crash", "again")


class Fate(Enum):
    """The outcome of a call that has an effect and meets a fault."""

    FAILS = "fails, and nothing happened"
    LOST_REPLY = "happens, and its reply is lost"
    LATE = "is given up, and happens later"
    TWICE = "happens, its reply is lost, and the client does it again"


class Trouble:
    """Lets calls take time, and lets some of them fail."""

    def __init__(self, scheduler: Scheduler, rates: Rates, disk: Path) -> None:
        """`disk`: the folder of the local disks that may be full."""
        self.scheduler = scheduler
        self.rates = rates
        self._disk = f"{disk}/"
        scheduler.disk_fails = self._disk_fails
        self.network = Process("network")
        self.counts: Counter[str] = Counter()
        """Kind of fault → how often it came."""
        self.broken: list[str] = []
        """The invariants that did not hold, in words."""
        self.compete: Callable[[Process], bool] = lambda _process: False
        """Asked when a process stands still: True if a second driver starts because of that."""

    def happens(self, per_mille: int) -> bool:
        """True if a fault of this rate comes now; never once everything is calm."""
        return not self.scheduler.calm and self.scheduler.choices.happens(per_mille)

    def stand_still(self, process: Process, seconds: float) -> None:
        """Let a process stand still. If it is the driver, another one may start meanwhile."""
        self.counts["stopped process"] += 1
        self.scheduler.stop(process, seconds)
        if self.compete(process):
            self.counts["second driver"] += 1

    def _disk_fails(self, path: str) -> bool:
        if self.scheduler.is_looking or not path.startswith(self._disk):
            return False
        if self.happens(self.rates.slow_disk):
            self.counts["slow disk"] += 1
            self.scheduler.sleep((0.02, 0.3, 2.0, 12.0)[self.scheduler.choices.draw(4)])
        if not self.happens(self.rates.disk):
            return False
        self.counts["full disk"] += 1
        self.scheduler.note(f"no space for {path}")
        return True

    def pass_time(self) -> None:
        """A call's way to another machine."""
        seconds = 0.001
        if self.happens(self.rates.slow):
            self.counts["slow call"] += 1
            seconds = (0.05, 0.3, 1.0, 4.0, 15.0)[self.scheduler.choices.draw(5)]
        self.scheduler.sleep(seconds)

    def look(self, what: str, call: Callable[[], T], rate: int, error: type[Exception]) -> T:
        """A call without an effect: it may fail."""
        self.pass_time()
        if self.happens(round(rate * self.rates.reads)):
            raise self._failure(f"{what} failed", "failed read", error)
        return call()

    def act(
        self,
        what: str,
        call: Callable[[], T],
        rate: int,
        error: type[Exception],
        *fates: Fate,
        later: Callable[[], object] | None = None,
        crash: int = 0,
    ) -> T:
        """A call with an effect, which may have one of these fates.

        Args:
            later: what happens in its place if it happens later.
            crash: how often the caller dies in it, or stands still.
        """
        self.pass_time()
        if self.happens(crash):
            self._crash(what, later or call)
        if not self.happens(rate):
            result = call()
            self.pass_time()
            return result
        fate = fates[self.scheduler.choices.draw(len(fates))]
        if fate is Fate.LATE:
            after = (0.5, 3.0, 20.0, 70.0)[self.scheduler.choices.draw(4)]
            self.scheduler.spawn(self.network, "late", lambda: self._do_later(what, later or call, after))
        if fate in (Fate.LOST_REPLY, Fate.TWICE):
            result = call()
            self.pass_time()
            if fate is Fate.TWICE:
                self.counts[f"{fate.name.lower()} write"] += 1
                self.scheduler.note(f"{what} {fate.value}")
                return call()
        raise self._failure(f"{what} {fate.value}", f"{fate.name.lower()} write", error)

    def _crash(self, what: str, call: Callable[[], object]) -> None:
        """The caller's process dies before the call, or when it has sent it; or it stands still before it, which is all
        that this method returns from."""
        scheduler, choices = self.scheduler, self.scheduler.choices
        me = scheduler.me()
        how = choices.draw(3)
        if how == 0:
            scheduler.note(f"before it does: {what}")
            self.stand_still(me.process, (8.0, 45.0, 100.0)[choices.draw(3)])
            scheduler.sleep(0.001)
            return
        if how == 1:
            after = (0.0, 0.5, 3.0, 20.0)[choices.draw(4)]
            scheduler.spawn(self.network, "late", lambda: self._do_later(what, call, after))
        self.counts["crash in a call"] += 1
        scheduler.kill(me.process, f"kill -9, {'after it has sent' if how == 1 else 'before it does'}: {what}")
        scheduler.check_alive(me)

    def _failure(self, text: str, kind: str, error: type[Exception]) -> Exception:
        self.counts[kind] += 1
        self.scheduler.note(text)
        return error(f"simulated: {text}")

    def _do_later(self, what: str, call: Callable[[], object], after: float) -> None:
        self.scheduler.sleep(after)
        try:
            call()
            self.scheduler.note(f"{what} happens now")
        except Exception as error:
            self.scheduler.note(f"{what} came too late: {type(error).__name__}")


_JUMPS_S = (-5, 5, -600, 600, 3600)


class Chaos:
    """Strikes the processes and hosts of a job from outside."""

    def __init__(self, trouble: Trouble, processes: Callable[[], Sequence[Process]]) -> None:
        """`processes`: the driver, and its containers."""
        self._trouble = trouble
        self._processes = processes

    def run(self) -> None:
        """Go on until everything is calm. Clocks are right from then on."""
        scheduler, choices = self._trouble.scheduler, self._trouble.scheduler.choices
        while not scheduler.calm:
            scheduler.sleep(self._trouble.rates.kill_s * (1 + choices.draw(4)) / 4)
            if not scheduler.calm:
                self._strike()
        scheduler.skews.clear()

    def _strike(self) -> None:
        trouble, choices = self._trouble, self._trouble.scheduler.choices
        processes = self._processes()
        living = [each for each in processes if not each.dead]
        what = choices.draw(4)
        if not living or what == 0:
            return
        victim = living[choices.draw(len(living))]
        if trouble.happens(trouble.rates.jump):
            self._jump(victim.host)
        elif what == 3:
            trouble.stand_still(victim, (1.0, 8.0, 45.0, 100.0)[choices.draw(4)])
        else:
            trouble.counts["killed process"] += 1
            trouble.scheduler.kill(victim, "kill -9")

    def _jump(self, host: str) -> None:
        """The wall clock of a host is set. It jumps back as well."""
        scheduler = self._trouble.scheduler
        seconds = _JUMPS_S[scheduler.choices.draw(len(_JUMPS_S))]
        self._trouble.counts["clock jump"] += 1
        scheduler.note(f"the clock of {host} jumps by {seconds} s")
        scheduler.skews[host] = scheduler.skews.get(host, 0) + seconds * 10**9
