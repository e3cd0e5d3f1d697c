"""The findings of a simulation, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.base.wording import counted

_STORY = 30


@dataclass(frozen=True, slots=True)
class FailedLife:
    """A life in which something was broken.

    Attributes:
        seed: its seed, which lives it again; 0 for a life without faults.
        broken: what does not hold, in words.
        story: the last events of the life.
        traceback: that of the user's code, if it raised, or of the simulation.
        decisions: how many decisions are other than the mildest, in the shrunk life or else in this one.
        shrunk: a life with fewer faults that is broken as well; None if none was found.
        told: the messages that came late or twice, in words.
    """

    seed: int
    broken: Sequence[str]
    story: Sequence[str] = ()
    traceback: str = ""
    decisions: int = 0
    shrunk: FailedLife | None = None
    told: Sequence[str] = ()

    def __str__(self) -> str:
        shown = self.shrunk or self
        title = f"seed {self.seed} is broken" if self.seed else "the job fails without any fault"
        if not self.seed and all(each.startswith("invariant ") for each in self.broken):
            title = "an invariant does not hold, without any fault"
        lines = [title, *(f"  {each}" for each in self.broken)]
        if self.shrunk and list(self.shrunk.broken) != list(self.broken):
            lines += ["with fewer faults:", *(f"  {each}" for each in self.shrunk.broken)]
        if shown.traceback:
            lines += ["", shown.traceback.rstrip(), ""]
        if shown.told:
            lines += ["what came late or twice:", *(f"  {each}" for each in shown.told)]
        if shown.story:
            fewer = ""
            if self.shrunk:
                left = counted(shown.decisions, "decision")
                fewer = f"; {left} left" if shown.decisions else "; the kill at the end is enough"
            lines += [f"what happened (simulated seconds{fewer}):", *(f"  {each}" for each in shown.story[-_STORY:])]
        return "\n".join(lines)


@dataclass(slots=True)
class SimulationReport:
    """The findings of a simulation.

    Attributes:
        lives: how many lives with faults there were.
        faults: kind of fault → how often it came.
        seconds: how long it took.
        failure: the first life that is broken.
        failures: how many lives were broken until the simulation stopped.
        errors: what is wrong without any fault, such as results that differ from one life to the next.
        notes: what else is worth knowing: what was not compared, and calls that are not the same in each life.
    """

    lives: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failure: FailedLife | None = None
    failures: int = 0
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if nothing is broken."""
        return self.failure is None and not self.errors

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count:,}" for kind, count in self.faults.most_common() if count)
        parts = [*(f"note: {each}" for each in self.notes), *(f"error: {each}" for each in self.errors)]
        if self.failure is not None:
            parts.append(str(self.failure))
        held = "everything holds" if self.holds else "something is broken"
        broken = f", {self.failures} of them broken" if self.failures else ""
        lives = f"{lives_in_words(self.lives)}{broken}, in {self.seconds:.1f} s"
        parts.append(f"{held}: {lives}. Faults: {faults or 'none'}")
        return "\n".join(parts)


def lives_in_words(count: int) -> str:
    """So many lives."""
    return f"{count:,} {'life' if count == 1 else 'lives'}"


class SimulationFailedError(AssertionError):
    """Something is broken in a life of the job. `report` says what, and which seed shows it.

    Example:
        >>> from penstock.testing import simulate
        >>> app = ps.StreamApplication("miles")
        >>> _ = app.input("local.trips").map(lambda trip: trip["miles"]).send_to(app.output("local.miles"))
        >>> try:
        ...     simulate(app, {"local.trips": [{"miles": 5}, {}]}, seeds=1, processes=1)
        ... except SimulationFailedError as error:
        ...     print(error.report.failure.broken[0])
        KeyError: 'miles', in operator `map-1`, at stream `local.trips` partition 1 offset 0 key None
    """

    def __init__(self, report: SimulationReport) -> None:
        """Make the error of a report.

        Args:
            report: what was found.
        """
        self.report = report
        super().__init__(str(report))
