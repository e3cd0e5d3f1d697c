"""One soak: the job's present driver, its line of checkpoints, the checks, and the story of it all."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from penstock.checkpoint.record import CheckpointRecord
from tests.soak import figures
from tests.soak.driver import Driver, command_of, lives, of_starts
from tests.soak.job import NAME, PANES, TOTALS
from tests.soak.oracle import (
    Emitted,
    Line,
    Positions,
    Result,
    broken_at_least_once,
    broken_input,
    broken_once,
    broken_state,
)
from tests.soak.waits import DEADLINE_S, BrokenError, wait_for
from tests.soak.world import World, behind, positions_of

GONE_S = 120.0
"""The longest that a process may outlive its driver. By itself a container waits for 15 seconds."""


@dataclass
class Soak:
    """A job under load, with what must come of it."""

    world: World
    tell: Callable[[str], None] = print
    driver: Driver = field(init=False)
    line: Line = field(init=False)
    lines: list[tuple[Any, Line]] = field(default_factory=list)
    """(id of the checkpoint that a line begins behind, line)."""
    expected: Emitted = field(default_factory=Emitted)
    """Since the last check, as what was found."""
    found: Emitted = field(default_factory=Emitted)
    audited: set[Result] = field(default_factory=set)
    earlier: set[Result] = field(default_factory=set)
    """All results that were ever expected."""
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    batches: int = 0
    results: int = 0
    _last_batch: int = -1
    _dead: dict[int, tuple[float, str]] = field(default_factory=dict)
    """Start -> when its driver ended, and how."""
    _alone: dict[psutil.Process, tuple[float, str]] = field(default_factory=dict)
    """Processes that have to end by themselves -> since when, and why."""
    _began: float = field(default_factory=time.monotonic)
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.world.seed)
        self.line = Line(self.world.input)

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:7.0f} s  {text}"
        self.story.append(line)
        self.tell(line)

    # The driver.

    def begin(self) -> None:
        """Open the world and start the job."""
        self.world.open()
        self.lines.append((None, self.line))
        self.start()
        self.load("run")

    def load(self, order: str) -> None:
        self.world.load.order(order)

    def start(self, **changed: Any) -> CheckpointRecord:
        """Start the job, with other settings: its start checkpoint, or a later one of this start."""
        self.world.settings = replace(self.world.settings, **changed)
        began, before = time.monotonic(), self.epoch()
        self.driver = self.world.start()
        first = self.await_epoch(before)
        self.say(f"  start {self.driver.number} runs after {time.monotonic() - began:.0f} s: {self.world.settings}")
        return first

    def epoch(self) -> int:
        owner = self.world.log().owner
        return owner.epoch if owner else 0

    def await_epoch(self, before: int) -> CheckpointRecord:
        """Wait until the driver has a checkpoint of a later epoch: the first one that is there."""
        found: list[CheckpointRecord] = []

        def begun() -> bool:
            self.alive()
            found[:] = [record for record in self.world.log().checkpoints if record.epoch > before]
            return bool(found)

        wait_for(begun, "the start checkpoint")
        return found[0]

    def alive(self) -> None:
        """Raises BrokenError if the driver ended, which nobody asked it to."""
        if not self.driver.running:
            raise BrokenError(f"the driver ended by itself, with {self.driver.process.returncode}")

    def progress(self, what: str) -> None:
        """Wait until the job has committed more of the input, with the load on."""
        last = self.world.log().latest
        before = sum(positions_of(last).values()) if last else 0

        def more() -> bool:
            self.alive()
            latest = self.world.log().latest
            return latest is not None and sum(positions_of(latest).values()) > before

        wait_for(more, f"progress after {what}")

    def died(self, driver: Driver, how: str) -> None:
        """Its processes have to be gone soon."""
        self._dead[driver.number] = (time.monotonic(), how)

    def leave(self, process: psutil.Process, why: str) -> None:
        """This process has to be gone soon."""
        self._alone[process] = (time.monotonic(), why)

    def kill_driver(self, how: str) -> None:
        self.driver.kill()
        self.died(self.driver, how)

    def stop(self) -> CheckpointRecord:
        """Stop the driver in order: its last checkpoint."""
        if self.chance.random() < 0.5:
            self.driver.process.terminate()
        else:
            self.world.command("stop", NAME, "--wait")
        return self.stopped("a stop")

    def stopped(self, what: str) -> CheckpointRecord:
        """Wait for a good end of the driver: the last checkpoint, which the line has come to."""
        if status := self.driver.ended(what):
            raise BrokenError(f"{what}: the driver ended with {status}")
        self.died(self.driver, what)
        last = self.world.log().latest
        assert last is not None
        self.advance(last)
        return last

    # The line.

    def advance(self, to: CheckpointRecord) -> None:
        """Go on to a checkpoint."""
        self.world.catch_up()
        self.expected.add(self.line.forward(positions_of(to), to.id))
        self.batches += max(0, to.batch - self._last_batch)
        self._last_batch = to.batch

    def drained(self, behind: CheckpointRecord) -> None:
        self.expected.add(self.line.drain(behind.id))

    def skip(self, to: Positions, behind: CheckpointRecord) -> None:
        self.line.skip(to, behind.id)

    def move(self, line: Line, left: CheckpointRecord, batch: int) -> None:
        """Another line begins behind a checkpoint."""
        self.lines.append((left.id, line))
        self.line = line
        self._last_batch = batch

    def line_of(self, checkpoint: Any) -> Line:
        """The line that a checkpoint is of."""
        found: list[Line] = [line for begin, line in reversed(self.lines) if begin is None or begin < checkpoint]
        return found[0]

    # The checks.

    def check(self) -> None:
        """Pause the load until everything is processed, and compare all that is there with the oracle.

        Raises:
            BrokenError: something differs, or is left of what has ended.
        """
        began = time.monotonic()
        self.rest()
        broken = [
            *broken_at_least_once("audit", self.audited, self.expected.totals, self.earlier),
            *broken_input(self.world.ids, self.world.load.fates.fates),
        ]
        last = self.settled()
        totals, seen = (self.world.stored(store, last) for store in ("totals", "seen"))
        broken += broken_state(self.line, totals, seen, last.batch_time_ms / 1000)
        if self.checks % 4 == 1:
            self.commands(last, totals)
        self.load("run")
        if broken:
            raise BrokenError("\n".join(broken))
        self.results += self.expected.totals.total() + self.expected.panes.total()
        self.earlier.update(self.expected.totals)
        self.expected, self.found, self.audited = Emitted(), Emitted(), set()
        self.look_for_left()
        found = figures.sample(self.world, self.driver, self.world.log())
        self.samples.append({"batches": self.batches, "figures": found, "settings": self.world.settings})
        self.checks += 1
        self.say(
            f"check {self.checks}: {self.batches:,} batches, {self.world.input.count:,} messages, "
            f"{self.results:,} results, {len(totals)} and {len(seen)} entries, as the oracle says, "
            f"{time.monotonic() - began:.0f} s"
        )

    def rest(self) -> CheckpointRecord:
        """Pause the load until everything is processed and written, and nothing is due: a checkpoint at the end."""
        self.load("pause")
        last = self.settled()
        self.advance(last)
        self._await_outputs()
        return last

    def settled(self) -> CheckpointRecord:
        """Wait until all that is committed in the input is in a checkpoint: that one."""
        self.world.catch_up()
        ends = self.world.input.ends
        found: list[CheckpointRecord] = []

        def covered() -> bool:
            self.alive()
            latest = self.world.log().latest
            found[:] = [latest] if latest is not None and behind(positions_of(latest), ends) else []
            return bool(found)

        wait_for(covered, f"a checkpoint at {ends}")
        return found[0]

    def _await_outputs(self) -> None:
        world, found, expected = self.world, self.found, self.expected

        def complete() -> bool:
            self.alive()
            found.totals.update(world.topics[TOTALS].results())
            found.panes.update(world.topics[PANES].results())
            self.audited.update(world.audit.results())
            broken = self._broken(complete=False)
            if broken:
                raise BrokenError("\n".join(broken))
            return found.totals == expected.totals and found.panes == expected.panes

        try:
            wait_for(complete, "the exactly-once output", DEADLINE_S)
        except BrokenError as error:
            raise BrokenError("\n".join(self._broken(complete=True)) or str(error)) from error

    def _broken(self, *, complete: bool) -> list[str]:
        found, expected = self.found, self.expected
        return [
            *broken_once("totals", found.totals, expected.totals, complete=complete),
            *broken_once("panes", found.panes, expected.panes, complete=complete),
        ]

    def commands(self, last: CheckpointRecord, totals: Mapping[str, Any]) -> None:
        """Backends, a store and a single value, as commands show them."""
        self.world.command("state", "verify", NAME)
        if self.world.scanned("totals", last) != totals:
            raise BrokenError(f"`state scan` of {last.id} shows other entries than the checkpoint has")
        key = self.chance.choice(sorted(self.line.totals))
        said = self.world.command("state", "get", NAME, "totals", key).split()
        right = self.line.totals[key]
        if not all(str(number) in "".join(said) for number in right):
            raise BrokenError(f"`state get` of {key} says {' '.join(said)}, not {right}")

    def look_for_left(self) -> None:
        """Processes that had to be gone.

        Raises:
            BrokenError: some are still there.
        """
        now, left = time.monotonic(), []
        for number, (since, how) in list(self._dead.items()):
            there = of_starts({number})
            if not there:
                del self._dead[number]
            elif now - since > GONE_S:
                left += [_shown(process, f"start {number}, {how}, {now - since:.0f} s ago") for process in there]
        for process, (since, why) in list(self._alone.items()):
            if not lives(process):
                del self._alone[process]
            elif now - since > GONE_S:
                left.append(_shown(process, f"{why}, {now - since:.0f} s ago"))
        if left:
            raise BrokenError("processes that should be gone:\n" + "\n".join(left))

    def await_gone(self) -> None:
        """Wait until nothing is left of what has ended."""
        while self._dead or self._alone:
            self.look_for_left()
            threading.Event().wait(0.5)


def _shown(process: psutil.Process, why: str) -> str:
    try:
        return f"  {process.pid} ({process.status()}): {' '.join(command_of(process))[:100]} [{why}]"
    except psutil.Error:
        return f"  {process.pid}: ended just now [{why}]"
