"""One actor runs at a time, and a schedule decides which. Time passes only while none can run.

An **actor** is a thread of the simulation: a greenlet, so that no scheduler of an operating system takes part. Each
belongs to a **process**, which can be killed: its actors then end at their next step, whatever they wait for, and have
no more effect. What a process waits for, it waits for here: a lock, an event, a reply, an amount of time. So an actor
runs alone from one wait to the next, and two runs with the same decisions are the same, event for event.
"""

from __future__ import annotations

import heapq
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from greenlet import getcurrent, greenlet

from penstock.testing.simulation.choices import Choices

START_NS = 1_767_225_600_000_000_000
"""The first moment: 2026-01-01, in epoch nanoseconds."""
_LOOK_NS = 1_000
"""Looking at a clock takes so long: a loop that only looks comes to its end."""
_FIRST_IDENT = 1 << 48
"""The numbers of actors, as threads: no real thread has them."""


class KilledError(BaseException):
    """The process of this actor was killed."""


class StuckError(Exception):
    """Nothing can run any more, or nothing comes to an end."""


_pids = count(1_000)


@dataclass(eq=False)
class Process:
    """A process of the simulation."""

    name: str
    host: str = "here"
    dead: str = ""
    """The reason; empty while it lives."""
    stopped_until: int = 0
    """The time in nanoseconds until which none of its actors runs."""
    actors: list[Actor] = field(default_factory=list)
    on_death: list[Callable[[], None]] = field(default_factory=list)
    pid: int = field(default_factory=lambda: next(_pids))


class Actor:
    """A thread of a process. To code that asks for its thread, one without a `threading.Thread` is this object."""

    daemon = True

    def __init__(self, process: Process, name: str, ident: int) -> None:
        self.process = process
        self.name = name
        self.ident = ident
        self.greenlet: greenlet
        self.ended = False
        self.ready = False
        self.timed_out = False
        self.waits = False
        self.wait_id = 0
        """Counts the waits: a deadline of an earlier one is void."""
        self.joiners: deque[Actor] = deque()


class Scheduler:
    """Runs the actors of one schedule, one after the other."""

    def __init__(self, choices: Choices, *, most_switches: int = 2_000_000) -> None:
        """`most_switches`: the schedule fails with StuckError if it has not ended by then."""
        self.choices = choices
        self.now_ns = START_NS
        self.events: list[str] = []
        """The story, in words: two runs of a schedule have the same one."""
        self.failures: list[BaseException] = []
        """Errors that nothing caught."""
        self.profile: Any = None
        """The function that `sys.setprofile` gets in each actor's thread."""
        self.calm = False
        """True once nothing is to go wrong any more."""
        self.skews: dict[str, int] = {}
        """Host → the nanoseconds by which its wall clock is ahead of the others."""
        self.disk_fails: Callable[[str], bool] = lambda _path: False
        """Asked before a file is written or a folder is made: True if there is no space for it now."""
        self._most = most_switches
        self._switches = 0
        self._ready: list[Actor] = []
        self._sleeping: list[tuple[int, int, int, Actor]] = []
        self._sequence = 0
        self._all: list[Actor] = []
        self._idents = count(_FIRST_IDENT)
        self._until_preempted = 0
        self._alone: Process | None = None
        self.current: Actor | None = None

    # From outside.

    def run(self, process: Process, main: Callable[[], None]) -> None:
        """Run `main` as the first actor, until it has ended, and then end everything else.

        Raises:
            StuckError: nothing could run any more, or the schedule took too many steps.
        """
        self._next_preemption()
        first = self._make(process, "main", main)
        self._ready.remove(first)
        first.ready = False
        chosen: Actor | None = first
        while chosen is not None:
            self.current = chosen
            chosen.greenlet.switch()  # comes back when an actor has ended, not always this one
            chosen = self._choose()
        self.current = None
        for failure in self.failures:
            if isinstance(failure, StuckError):
                raise failure

    @property
    def seconds(self) -> float:
        """The time that has passed."""
        return (self.now_ns - START_NS) / 1e9

    @property
    def is_looking(self) -> bool:
        """True while work is done at once: somebody looks at the world, and is no part of it."""
        return self._alone is not None

    # From actors.

    def mine(self) -> Actor | None:
        """The current actor, if the caller is it."""
        current = self.current
        return current if current is not None and getcurrent() is current.greenlet else None

    def me(self) -> Actor:
        found = self.mine()
        if found is None:
            raise RuntimeError("this thread is not in the simulation")
        return found

    def note(self, text: str) -> None:
        """Add an event to the story."""
        self.events.append(f"{(self.now_ns - START_NS) / 1e9:.6f} {text}")

    def spawn(self, process: Process, name: str, work: Callable[[], None]) -> Actor:
        """Begin an actor. It runs once its turn comes."""
        return self._make(process, name, work)

    def look(self) -> int:
        """The time in epoch nanoseconds."""
        self.now_ns += _LOOK_NS
        return self.now_ns

    def check_alive(self, me: Actor) -> None:
        if me.process.dead:
            raise KilledError(me.process.dead)

    def step(self, me: Actor) -> None:
        """A moment at which another actor may run. Called often: the schedule is asked only now and then."""
        self.check_alive(me)
        self._until_preempted -= 1
        if self._until_preempted == 0:
            self._next_preemption()
            self.give_way(me)

    def at_once(self, process: Process, work: Callable[[], None]) -> None:
        """Do work in a process, while nobody else runs but those that it waits for."""
        me, before = self.me(), self._alone
        actor = self.spawn(process, "at once", work)
        self._alone = process
        try:
            while not actor.ended:
                actor.joiners.append(me)
                self.wait(me, None)
        finally:
            self._alone = before

    def give_way(self, me: Actor) -> None:
        """Let others run that can."""
        self._make_ready(me)
        self._switch(me)

    def wait(self, me: Actor, seconds: float | None) -> bool:
        """Wait until `wake` is called for this actor. False if the time passed before.

        Raises:
            KilledError: the process of this actor was killed meanwhile.
        """
        self.check_alive(me)
        me.wait_id += 1
        me.timed_out = False
        me.waits = True
        if seconds is not None:
            self._sleep(me, self.now_ns + max(0, round(seconds * 1e9)))
        self._switch(me)
        return not me.timed_out

    def sleep(self, seconds: float) -> None:
        self.wait(self.me(), seconds)

    def wake(self, actor: Actor) -> None:
        """End an actor's wait."""
        if actor.waits and not actor.ready:
            actor.wait_id += 1
            self._make_ready(actor)

    def join(self, me: Actor, other: Actor, seconds: float | None) -> bool:
        """Wait for an actor's end. False if it has not come in time."""
        deadline = None if seconds is None else self.now_ns + round(seconds * 1e9)
        while not other.ended:
            left = None if deadline is None else (deadline - self.now_ns) / 1e9
            if left is not None and left <= 0:
                return False
            other.joiners.append(me)
            try:
                self.wait(me, left)
            finally:
                if me in other.joiners:
                    other.joiners.remove(me)
        self.check_alive(me)
        return True

    def kill(self, process: Process, why: str) -> None:
        """End a process where it is. Its actors unwind, without any effect, when their turn comes."""
        if process.dead:
            return
        process.dead = why
        self.note(f"{process.name} dies: {why}")
        for call in process.on_death:
            call()
        for actor in process.actors:
            self.wake(actor)

    def stop(self, process: Process, seconds: float) -> None:
        """Let none of its actors run for so long, as SIGSTOP does."""
        process.stopped_until = self.now_ns + round(seconds * 1e9)
        self.note(f"{process.name} stands still for {seconds:g} s")

    # Inside.

    def _make(self, process: Process, name: str, work: Callable[[], None]) -> Actor:
        actor = Actor(process, f"{process.name}/{name}", next(self._idents))
        process.actors.append(actor)
        self._all.append(actor)
        known: dict[int, object] = threading._active  # type: ignore[attr-defined]
        known[actor.ident] = actor

        def body() -> None:
            if self.profile is not None:
                sys.setprofile(self.profile)
            try:
                if not process.dead:
                    work()
            except KilledError:
                pass
            except BaseException as error:
                if not process.dead:  # a dead one unwinds without the locks that it would have taken again
                    self.failures.append(error)
                    self.note(f"{actor.name} ends with {type(error).__name__}: {error}")
            finally:
                known.pop(actor.ident, None)
                self._end(actor)

        actor.greenlet = greenlet(body, getcurrent() if self.current is None else self.current.greenlet.parent)
        self._make_ready(actor)
        return actor

    def _end(self, actor: Actor) -> None:
        actor.ended = True
        actor.process.actors.remove(actor)
        self._all.remove(actor)
        while actor.joiners:
            self.wake(actor.joiners.popleft())
        if actor.name.endswith("/main") and actor.process.name == "world":
            self._end_all()

    def give_up(self, text: str) -> None:
        """End the schedule as one that fails. The caller may be anywhere in an actor, whose next step ends it."""
        self._fail(text)

    def _end_all(self) -> None:
        """Nothing counts any more: every process dies."""
        self.calm = True
        for actor in list(self._all):
            actor.process.dead = actor.process.dead or "the simulation is over"
            self.wake(actor)

    def _switch(self, me: Actor) -> None:
        chosen = self._choose()
        if chosen is None:
            raise StuckError("every actor has ended")
        if chosen is not me:
            self.current = chosen
            chosen.greenlet.switch()
        me.waits = False
        self.check_alive(me)

    def _choose(self) -> Actor | None:
        """The actor that runs next; None if all have ended."""
        self._switches += 1
        if self._switches == self._most:
            self._fail(f"the schedule has not ended after {self._most:,} switches")
        while True:
            if self._ready:
                actor = self._next_ready()
                actor.ready = False
                until = actor.process.stopped_until
                if until > self.now_ns and not actor.process.dead:
                    actor.wait_id += 1
                    self._sleep(actor, until, resumes=True)
                    continue
                return actor
            if not self._all:
                return None
            if not self._advance():
                waiting = "\n".join(sorted(f"{actor.name}: {_place(actor)}" for actor in self._all))
                self._fail(f"nothing can run any more; what waits:\n{waiting}")

    def _next_ready(self) -> Actor:
        if self._alone is not None:
            own = (each for each in self._ready if each.process is self._alone)
            actor = next(own, self._ready[0])
            self._ready.remove(actor)
            return actor
        return self._ready.pop(self.choices.draw(len(self._ready)))

    def _advance(self) -> bool:
        """Let time pass until something can run. False if nothing waits for time."""
        while self._sleeping:
            at, _, wait_id, actor = heapq.heappop(self._sleeping)
            resumes = wait_id < 0
            if actor.ended or abs(wait_id) != actor.wait_id:
                continue
            self.now_ns = max(self.now_ns, at)
            if not resumes:
                actor.timed_out = True
            self._make_ready(actor)
            return True
        return False

    def _sleep(self, actor: Actor, until_ns: int, *, resumes: bool = False) -> None:
        """`resumes`: it does not wait for this time, and is only not to run before."""
        self._sequence += 1
        heapq.heappush(self._sleeping, (until_ns, self._sequence, -actor.wait_id if resumes else actor.wait_id, actor))

    def _make_ready(self, actor: Actor) -> None:
        actor.ready = True
        self._ready.append(actor)

    def _next_preemption(self) -> None:
        """The number of steps until an actor is interrupted where it does not wait; a long one, or none."""
        near = self.choices.draw(8)
        self._until_preempted = 0 if near == 0 or self.calm else 1 + self.choices.draw(4 << near)

    def _fail(self, text: str) -> None:
        self.failures.append(StuckError(text))
        self.note(text)
        self._end_all()


def _place(actor: Actor) -> str:
    """Where an actor waits, innermost first."""
    frame, lines = actor.greenlet.gr_frame, list[str]()
    while frame is not None:
        code = frame.f_code
        if "/testing/simulation/s" not in code.co_filename:
            lines.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(lines[:12])


_current: Scheduler | None = None


def active() -> Scheduler | None:
    """The scheduler of the schedule that runs, if there is one."""
    return _current


def activate(scheduler: Scheduler | None) -> None:
    """Make a scheduler the one that locks, threads and clocks of this process belong to."""
    global _current
    _current = scheduler
