"""A job with exactly-once outputs whose processes die at any step, and what a reader of its outputs must find."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.container import shared
from penstock.errors import ContainerLostError, PenstockError
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.outbox import container
from penstock.outbox import task as outbox
from penstock.outbox import task as outbox_objects
from penstock.system.base import RawRecord, System
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.stores.hooked_store import HookedStore
from tests.support.streams.hooked_system import HookedSystem
from tests.support.streams.outboxes import read_all
from tests.support.world.world import World

TASKS = 3
KEYS = ("a", "b", "c", "d", "e", "f", "g")
OUTPUTS = {"sums": TASKS, "copies": 4, "dead": 2}
"""The exactly-once outputs, with how many partitions they have."""
CRASHES = (
    *("put outbox", "has put outbox", "put checkpoints", "has put checkpoints", "get outbox", "delete outbox"),
    *("progress", "begin", "append", "mark", "commit", "committed"),
    *("source", "stage 1", "stage 2", "reports", "end", "snapshot", "upload", "publish", "clean-up", "open"),
)
"""Every step at which a process may die."""
Story = list[str]


class DeadError(PenstockError):
    """The process that does this has died."""


class Process:
    """The life of one driver with its containers: nothing that they do after it has died happens."""

    def __init__(self, dies_at: str = "", count: int = 1) -> None:
        """It dies the `count`th time that this step comes; never without one."""
        self._dies_at = dies_at
        self._left = count
        self._lock = threading.Lock()
        self.dead = False
        self.on_step: Callable[[str], None] = lambda _: None

    def at(self, step: str) -> None:
        """A step comes. Raises DeadError if the process has died, or dies here."""
        with self._lock:
            if step == self._dies_at and not self.dead:
                self._left -= 1
                self.dead = self._left == 0
            if self.dead:
                raise DeadError(f"the process is dead, at {step}")
        self.on_step(step)

    def put(self, call: str, key: str) -> None:
        """Before a call of the object store."""
        self.at(f"{call} {_folder(key)}")

    def has_put(self, call: str, key: str) -> None:
        """Behind a call of the object store."""
        self.at(f"has {call} {_folder(key)}")


def _folder(key: str) -> str:
    return next(iter(key.split("/")[1:]), "")


class Sum(ps.StreamTask):
    """Adds up the values of each key."""

    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if envelope.value < 0:
            raise ValueError("negative")
        total = (self.store.get(envelope.key) or 0) + envelope.value
        self.store.put(envelope.key, total)
        collector.emit(key=envelope.key, value=total)


def application() -> ps.StreamApplication:
    """Outputs of every stage, a dead-letter stream, and one output at least once."""
    app = ps.StreamApplication("once")
    app.store("sums", key=ps.String(), value=ps.Integer())
    source = app.input("m.events", key=ps.String(), value=ps.Integer())
    source.send_to(app.output("m.copies", key=ps.String(), value=ps.Integer()))
    source.send_to(app.output("m.many", key=ps.String(), value=ps.Integer()))
    source.partition_by(lambda envelope: envelope.key, envelope=True).process(Sum, stores=["sums"], id="sum").send_to(
        app.output("m.sums", key=ps.String(), value=ps.Integer())
    )
    return app


class OutboxLife(World):
    """Processes one after the other, and what was put into the input."""

    def __init__(self, system: System, folder: Path, patch: pytest.MonkeyPatch, seed: int = 0) -> None:
        """Chunks, objects and transactions are small, and payloads wait on disk."""
        super().__init__(folder, "once", system=system, clock=SettableClock())
        self.random = random.Random(seed)
        self.story: Story = []
        for stream, count in {"events": TASKS, "many": 2, **OUTPUTS}.items():
            system.admin().create_stream(stream, count)
        self.given: list[tuple[str, int, int]] = []
        """Key, value and the partition of the input."""
        self.process = Process()
        self.driver: InProcessDriver | None = None
        patch.setattr(outbox_objects, "CHUNK_MESSAGES", 3)
        patch.setattr(outbox_objects, "OBJECT_BYTES", 3000)
        patch.setattr(container, "TRANSACTION_BYTES", 2000)
        patch.setattr(outbox, "MEMORY_BYTES", 0)
        patch.setattr(outbox, "_LEAST_MEMORY_BYTES", 2000)
        patch.setattr(shared, "open_job_root", lambda job: self._store(open_store(job.root)))

    def _store(self, inner: ObjectStore) -> HookedStore:
        process, hooked = self.process, HookedStore(inner)
        hooked.before, hooked.after = process.put, process.has_put
        return hooked

    # What happens to it.

    def put(self, *values: int) -> None:
        """Append a message for each value, its key one after the other."""
        for value in values:
            key, partition = KEYS[len(self.given) % len(KEYS)], len(self.given) % TASKS
            time = 1000 + len(self.given)
            self.append("events", partition, (time, ps.String().to_bytes(key), ps.Integer().to_bytes(value)))
            self.given.append((key, value, partition))

    def start(self, dies_at: str = "", count: int = 1, **config: object) -> None:
        """The next process, until it runs or has died."""
        self.process = process = Process(dies_at, count)
        once = {f"streams.m.{stream}.output.guarantee": "exactly-once" for stream in OUTPUTS}
        keys = {
            "systems.m.samza.factory": "memory",
            "job.batch.max.messages": 6,
            "job.retry.max": 1000,
            "task.dead.letter.stream": "m.dead",
            **once,
            **config,
        }
        self.systems["m"] = HookedSystem(self.system, process.at)
        self.store = self._store(open_store(self.root))
        self.driver = driver = self.make(application().graph(), keys)
        driver.fleet.at = driver.runner.at = process.at
        driver.loop.start()

    def end(self) -> None:
        if self.driver is not None:
            self.driver.close()
            self.driver = None
            self.drivers.clear()

    def running(self) -> InProcessDriver:
        """A process that runs."""
        while self.driver is None:
            self.attempt(self.start)
        return self.driver

    def attempt(self, work: Callable[[], object]) -> None:
        """Do something that ends with the process, if that dies."""
        try:
            work()
        except ContainerLostError:
            pass  # a commit's: the next step begins another epoch
        except PenstockError:
            if not self.process.dead:
                raise
        if self.process.dead:
            self.story.append("dead")
            self.end()

    def drain(self) -> None:
        """Until everything is read, and every message is published."""
        done = False

        def work() -> None:
            nonlocal done
            driver = self.running()
            driver.loop.step()  # which begins another epoch if a container was lost in the last commit
            while self._is_behind(driver):
                driver.loop.step()
            driver.loop.commit()
            done = True

        while not done:
            self.attempt(work)

    def _is_behind(self, driver: InProcessDriver) -> bool:
        ends, boundary = driver.job.streams.ends(), driver.loop.boundary
        return bool(boundary.left) or any(ends[at.ssp].upcoming > next_ for at, next_ in boundary.positions.items())

    # The random life.

    def live(self, actions: int) -> None:
        """So many random actions, and then all is read and published."""
        for _ in range(actions):
            action = self.random.choice(
                (self._put, self._put, self._step, self._step, self._commit, self._lose, self._die)
            )
            self.story.append(action.__name__)
            action()
        self.drain()

    def _put(self) -> None:
        self.put(*(self.random.choice((-1, *range(1, 50))) for _ in range(self.random.randrange(1, 12))))

    def _step(self) -> None:
        self.attempt(self.running().loop.step)

    def _commit(self) -> None:
        self.attempt(self.running().loop.commit)

    def _lose(self) -> None:
        """A container is lost at a step of what comes next."""
        driver, task, process = self.running(), self.random.randrange(TASKS), self.process
        step, left = self.random.choice(CRASHES), [self.random.randrange(1, 4)]
        self.story.append(f"{step}, {left[0]}")

        def lose(at: str) -> None:
            if at == step and left:
                left[0] -= 1
                if not left[0]:
                    left.clear()
                    driver.fleet.lose(task)
                    raise ContainerLostError(f"a container was killed at {at}")

        process.on_step = lose
        for _ in range(3):
            if self.driver is driver:
                self._step()
        if self.driver is driver:
            self._commit()
        process.on_step = lambda _: None

    def _die(self) -> None:
        """Another process takes over, which dies at a step of what it does."""
        self.end()
        step, count = self.random.choice(CRASHES), self.random.randrange(1, 4)
        self.story.append(f"{step}, {count}")
        self.attempt(lambda: self.start(step, count))
        for _ in range(3):
            if self.driver is not None:
                self._step()
        if self.driver is not None:
            self._commit()

    # What must be true.

    def check(self) -> None:
        """Readers see what an independent computation comes to: each message once, and in order."""
        found = {stream: read_all(self.system, stream) for stream in OUTPUTS}
        good = [given for given in self.given if given[1] >= 0]
        self._check_copies(found["copies"])
        self._check_sums(found["sums"], good)
        letters = [record for own in found["dead"].values() for record in own]
        assert Counter(time for time, _, _, *_ in letters) == Counter(
            1000 + number for number, (_, value, _) in enumerate(self.given) if value < 0
        )

    def _check_copies(self, found: dict[int, list[RawRecord]]) -> None:
        """Each message once, and those of an input's partition in their order."""
        assert Counter(_texts(found)) == Counter((key, value) for key, value, _ in self.given)
        times = [time for own in found.values() for time, _, _, *_ in own]
        assert Counter(times) == Counter(range(1000, 1000 + len(self.given)))
        for own in found.values():
            for partition in range(TASKS):
                ordered = [time for time, _, _, *_ in own if self.given[time - 1000][2] == partition]
                assert ordered == sorted(ordered)

    def _check_sums(self, found: dict[int, list[RawRecord]], good: list[tuple[str, int, int]]) -> None:
        """Every step of the sum of each key in order: one message has what a step adds."""
        for key in KEYS:
            totals = [total for own in found.values() for name, total in _texts({0: own}) if name == key]
            steps = [after - before for before, after in zip([0, *totals], totals, strict=False)]
            assert Counter(steps) == Counter(value for name, value, _ in good if name == key)

    def close(self) -> None:
        self.end()
        super().close()


def _texts(found: dict[int, list[RawRecord]]) -> Iterator[tuple[str, int]]:
    for own in found.values():
        for _, key, value, *_ in own:
            yield ps.String().from_bytes(key or b""), ps.Integer().from_bytes(value or b"")
