"""Killing parts of a running job at seeded moments, and starting its driver again until the job is done."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.support.jobs.home import DriverProcess, Ended, Home, kill, wait_until

Victims = Callable[[DriverProcess], Sequence[psutil.Process]]


@dataclass
class Chaos:
    """One job under attack. Print `told` when a test fails: seed, moments and victims are in it."""

    home: Home
    seed: int
    config: dict[str, Any] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    driver: DriverProcess | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.told.append(f"seed {self.seed}")

    def start(self, until: str | None = None) -> DriverProcess:
        """Start the driver, or start it again. By default it has no end: a fast one would be over before a strike."""
        self.driver = self.home.driver(until=until, **self.config)
        return self.driver

    def moments(self, kills: int, messages: int) -> Iterator[int]:
        """After how many messages of output to strike: one moment in each of as many parts."""
        part = messages // (kills + 1)
        for number in range(kills):
            yield self.chance.randrange(number * part, (number + 1) * part)

    def await_moment(self, output: int) -> bool:
        """Wait for so much output, then for a random part of a batch; False if the driver ended before."""
        assert self.driver is not None
        going_on = self.driver.await_output(output)
        threading.Event().wait(self.chance.uniform(0.0, 0.4))
        return going_on and self.driver.running

    def strike(self, victims: Victims, name: str) -> bool:
        """SIGKILL one of the victims as soon as there is one; False if the driver ended before."""
        assert self.driver is not None
        driver = self.driver
        while driver.running:
            wait_until(lambda: victims(driver) or not driver.running, f"a {name} to kill")
            found = victims(driver)
            if found and kill(victim := self.chance.choice(sorted(found, key=lambda p: p.pid))):
                self.told.append(f"killed {name} {victim.pid} after {self.home.length('totals')} messages of output")
                return True
        return False

    def finish(self) -> Ended:
        """Stop the job once everything is in a checkpoint; its end must be a good one, and every total right."""
        assert self.driver is not None
        ended = self.driver.stopped()
        self.home.verify()
        return ended


@contextmanager
def chaos(home: Home, seed: int, **config: object) -> Iterator[Chaos]:
    """An attack that cleans up behind itself and, on a failure, says what it did."""
    attack = Chaos(home, seed, dict(config))
    try:
        yield attack
    except BaseException:
        print("\n".join(attack.told))
        if attack.driver is not None:
            print(attack.driver.log[-6000:])
        raise
    finally:
        if attack.driver is not None:
            attack.driver.clean_up()
