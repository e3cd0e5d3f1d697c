"""Kills and stops processes now and then, and lets the clocks of their hosts jump."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.testing.simulation.faults import Trouble
from penstock.testing.simulation.scheduler import Process

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
