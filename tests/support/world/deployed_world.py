"""Jobs that take over from each other in this process, while any of them dies: with real logs, leases and streams."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

import penstock as ps
from penstock import admin
from penstock.admin.job.deploy import Deployment
from penstock.admin.jobs import FoundJob
from penstock.checkpoint.log import CheckpointLog
from penstock.config import load_config
from penstock.config.model import JobConfig
from penstock.deploy.wing import handed_to
from penstock.driver.watches import Tenure
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, RetryableError
from penstock.job.commands import StopRequests
from penstock.job.lease import LeaseHeldError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.replay import follow
from penstock.replay.wing import FollowProgress
from penstock.system.base import OffsetRange
from penstock.system.partitioner import partition_of
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.cli import own_home

T = TypeVar("T")
TRIPS, TOTALS, PANES = "trips", "totals", "panes"
KEYS = ("N1", "N2", "N3", "N14", "N5")
WINDOW_MS = 10_000
_FULL_WRITES = 3


class AddUp(ps.StreamTask):
    """Sends the sum of the values of a key after each message."""

    def init(self, context: ps.TaskContext) -> None:
        self.miles = context.store("miles")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.miles[envelope.key] = total = self.miles.get(envelope.key, 0) + envelope.value["miles"]
        collector.emit(key=envelope.key, value=total)


def application(delay_ms: int = 0, system: str = "local") -> ps.StreamApplication:
    """The sum after each message, and the messages of each town and window.

    Args:
        delay_ms: the watermark stays so far behind.
        system: has the output of the sums. They are rows in another system than `local`.
    """
    app = ps.StreamApplication("trips")
    app.store("miles")
    trips = app.input(f"local.{TRIPS}", timestamp=lambda trip: trip["at"], watermark=ps.BoundedOutOfOrderness(delay_ms))
    sums = trips.process(AddUp, stores=["miles"], id="add-up")
    if system != "local":
        sums = sums.map(lambda sent: {"word": sent.key, "total": sent.value}, envelope=True, id="row")
    sums.send_to(app.output(f"{system}.{TOTALS}"))
    windows = ps.Windows.tumbling(WINDOW_MS, aggregates={"trips": ps.Count()})
    panes = trips.partition_by(lambda trip: trip["town"], id="by-town").window(windows, id="windows")
    shown = panes.map(lambda pane: {"from": pane.window.start_ms, "trips": pane.message["trips"]}, id="shown")
    shown.send_to(app.output(f"local.{PANES}"))
    return app


class DiedError(BaseException):
    """The process dies here, whatever it says."""


class FullError(RetryableError):
    """The disk is full here."""


def own_place(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Give a world a folder, in which followers look for new checkpoints more often."""
    own_home(folder, patch)
    patch.setattr(follow, "LEAST_SECONDS", 0.01)
    patch.setattr(follow, "MOST_SECONDS", 0.05)


@contextmanager
def failing(objects: Any, step: int, error: type[BaseException]) -> Iterator[None]:
    """Let writes of this thread fail, not counting the audit log.

    Args:
        objects: a store of the class whose writes are meant.
        step: the number of writes before.
        error: what this write and all behind it raise; a full disk has room again after some writes.
    """
    writes, thread = count(), threading.get_ident()
    failed = range(step, step + _FULL_WRITES) if error is FullError else range(step, sys.maxsize)

    def before(real: Any) -> Any:
        def call(self: Any, key: str, *rest: Any) -> Any:
            if thread == threading.get_ident() and "/audit/" not in key and next(writes) in failed:
                raise error("the disk is full")
            return real(self, key, *rest)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("put_if_absent", "put_if_match"):
            patch.setattr(type(objects), name, before(getattr(type(objects), name)))
        yield


class RunningJob:
    """A job that runs in this process, under its lease."""

    def __init__(self, config: JobConfig, app: ps.StreamApplication | None = None) -> None:
        self.paths = JobPaths(config.job.name, config.job.id)
        self._objects = open_job_root(config.job)
        log = CheckpointLog(self._objects, self.paths)
        self._tenure = Tenure.begin(self._objects, self.paths, log, config.job.lease_ms)
        self._stops = StopRequests(self._objects, self.paths)
        self._driver: InProcessDriver | None = None
        try:
            graph = (app or application()).graph()
            self._driver = driver = InProcessDriver(graph, config, self._objects, {}, containers=1)
            driver.loop.start()
        except BaseException:
            self.kill()
            raise
        self.loop = driver.loop
        self.begins_again = False

    @property
    def following(self) -> FollowProgress | None:
        """See `Follower`."""
        assert self._driver is not None
        found: FollowProgress | None = self._driver.board.told("replay")
        return found

    def begin_again(self) -> None:
        """See `Follower`."""
        assert self._driver is not None
        self._driver.stop.begin_again()
        self.begins_again = True

    def step(self) -> bool:
        """Do one thing. False if the job has ended, because it was asked to."""
        assert self._driver is not None
        if self._stops.asked_by(self._tenure.keeper.lease.state.token) is not None:
            self._driver.stop.ask()
        if self._driver.stop.graceful.is_set():
            self.end()
            return False
        self.loop.step()
        return True

    def end(self) -> None:
        """End with a last commit."""
        assert self._driver is not None
        self._driver.stop.graceful.set()
        self.loop.run_to_the_end()
        self.kill()

    def kill(self) -> None:
        """End at once. The lease counts as run out."""
        if self._driver is not None:
            self._driver.close()
        self._tenure.leave()
        self._objects.close()


class DeployedWorld:
    """Two jobs, of which at most one is in charge: `charged`, as far as this world has seen."""

    def __init__(
        self, seed: int, delays: Mapping[str, int] = MappingProxyType({}), system: str = "local", /, **keys: object
    ) -> None:
        """
        Args:
            seed: of all that chance decides.
            delays: job → the delay of its watermark, in milliseconds.
            system: has the output of the sums.
            keys: more configuration of both jobs.
        """
        self._delays = delays
        self._system = system
        self.random = random.Random(seed)
        self._keys = {
            "task.commit.ms": 1,
            "task.checkpoint.retained": 3,
            "job.batch.max.messages": 3,
            "job.lease.ms": 2000,
            "job.intermediate.stream.partitions": 2,
            f"streams.local.{TRIPS}.idle.ms": 0,
            **keys,
        }
        admin.create_stream(admin.open_stream(TRIPS), 2)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.seen = Counter[str]()
        self._dies = False
        self.charged, self.other = "one", "two"
        self.job: RunningJob | None = self._running("one", self.config("one"))
        self.follower: RunningJob | None = None
        self.deployment: Deployment | None = None

    def app(self, name: str) -> ps.StreamApplication:
        """The application of a job."""
        return application(self._delays.get(name, 0), self._system)

    def _running(self, name: str, config: JobConfig) -> RunningJob:
        return RunningJob(config, self.app(name))

    def config(self, name: str, **keys: object) -> JobConfig:
        """The configuration of a job."""
        return load_config(overrides={**self._keys, "job.name": name, **keys})

    def found(self, name: str, **keys: object) -> FoundJob:
        """A job, for commands."""
        config = self.config(name, **keys)
        return FoundJob(config, JobPaths(name, "1"), open_job_root(config.job))

    def live(self, steps: int) -> None:
        """Do so many things that chance chooses."""
        actions = (
            *(self.publish, self.step_job, self.step_job, self.step_follower, self.step_follower),
            *(self.step_deployment, self.step_deployment, self.begin_deployment),
        )
        self._dies = True
        commands = (self.compete, self.collect, self.delete_other)
        for _ in range(steps):
            if self.random.random() < 0.05:
                self.random.choice((self.kill_job, self.kill_follower))()
            elif self.random.random() < 0.05:
                self.random.choice(commands)()
            else:
                self.random.choice(actions)()
            if self.job is None and self.random.random() < 0.3:
                self.start_job()

    def publish(self) -> None:
        """Publish some messages. A second passes between two of them."""
        for _ in range(self.random.randint(0, 3)):
            key = self.random.choice(KEYS)
            value = {"miles": self.random.randint(1, 9), "at": 1000 * (len(self.sent) + 1), "town": key[:2]}
            self.sent.append((key, value))
            with closing(admin.open_stream(TRIPS).system.writer(None)) as writer:
                ssp = ps.SystemStreamPartition("local", TRIPS, partition_of(key.encode(), 2))
                writer.append(ssp, [(1000 * len(self.sent), key.encode(), json.dumps(value).encode())])

    def start_job(self) -> None:
        """Start the job that was in charge when this was last known. It is refused if it has handed over."""
        try:
            self.job = self._running(self.charged, self.config(self.charged))
        except IncompatibleError as error:
            if f"has handed over to job `{self.other}-1`" not in str(error):
                raise
            self.seen["refused"] += 1

    def step_job(self) -> None:
        """The job in charge does one thing."""
        if self.job is not None and not self.job.step():
            self.job = None

    def kill_job(self) -> None:
        """Kill the process of the job in charge."""
        if self.job is not None:
            self.job.kill()
            self.job = None
            self.seen["killed"] += 1

    def step_follower(self) -> None:
        """The job that follows does one thing."""
        if self.follower is not None and not self.follower.begins_again:
            self.follower.step()

    def kill_follower(self) -> None:
        """Kill the process of the deployment, which runs the follower."""
        if self.follower is not None:
            self.follower.kill()
            self.seen["deployment killed"] += 1
        self.follower = self.deployment = None

    def begin_deployment(self) -> None:
        """Give the command: it begins, or goes on where an earlier one has died."""
        if self.deployment is None:
            comes_back = self.found(self.other).log.read().latest is not None
            self.deployment = Deployment(
                self.found(self.charged), self.config(self.other), self.app(self.other), rollback=comes_back
            )
            self._begin()

    def compete(self) -> None:
        """Somebody else gives the same command while it runs."""
        if self.deployment is None or self.follower is None:
            return
        rollback = self.found(self.other).log.read().latest is not None
        second = Deployment(self.found(self.charged), self.config(self.other), self.app(self.other), rollback=rollback)
        with pytest.raises(LeaseHeldError):
            self._running(self.other, second.begin())
        self.seen["refused beside another"] += 1

    def collect(self) -> None:
        """Somebody deletes what no checkpoint of a job needs."""
        name = self.random.choice((self.charged, self.other))
        for keys in ({}, {"job.shadow.enabled": True}):
            with suppress(LeaseHeldError, NotFoundError, ConfigError, IncompatibleError):
                admin.collect_garbage(self.found(name, **keys))
                self.seen["collected"] += 1

    def delete_other(self) -> None:
        """Somebody deletes the job that is not in charge, or tries to."""
        if self.deployment is None and not handed_to(self.found(self.charged).log.read()):
            with suppress(LeaseHeldError, NotFoundError, IncompatibleError):
                admin.delete_job(self.found(self.other, **{"job.shadow.enabled": True}))
                self.seen["deleted"] += 1

    def _begin(self) -> None:
        assert self.deployment is not None
        config = self._dying(self.deployment.begin)
        if config is None or self.deployment is None:
            return
        self.follower = self._running(self.other, config)
        if self.deployment.is_over:
            self.kill_job()
            self.job, self.charged, self.other = self.follower, self.other, self.charged
            self.follower = self.deployment = None
            self.seen["over"] += 1

    def step_deployment(self) -> None:
        """The command looks what is to be done."""
        if self.deployment is None or self.follower is None:
            return
        if self.follower.begins_again:
            self.follower.end()
            self._begin()
            return
        try:
            self._dying(partial(self.deployment.step, self.follower))
        except IncompatibleError as error:
            if "has not published" not in str(error):
                raise
            self.seen["unpublished"] += 1
            self.kill_follower()
            self.start_job()

    def _dying(self, act: Callable[[], T]) -> T | None:
        """Sometimes the process dies on the way, or finds the disk full."""
        if not self._dies or self.random.random() < 0.6:
            return act()
        end = self.random.choice((DiedError, FullError))
        objects = open_job_root(self.config("one").job)
        with suppress(end), failing(objects, self.random.randint(0, 14), end):
            return act()
        self.seen["died" if end is DiedError else "disk full"] += 1
        self.kill_follower()
        return None

    def finish(self) -> None:
        """Let what has begun come to its end, and the job in charge to the end of its input."""
        self._dies = False
        for _ in range(400):
            handed = handed_to(self.found(self.charged).log.read())
            if self.deployment is None and not handed:
                break
            self.begin_deployment()
            for act in (self.step_job, self.step_follower, self.step_deployment):
                act()
        else:
            raise AssertionError("the deployment does not come to its end")
        if self.job is not None:
            self.job.end()
        self.to_the_end(self.app(self.charged), self.config(self.charged))

    def to_the_end(self, app: ps.StreamApplication, config: JobConfig) -> None:
        """Run a job to the end of its input."""
        objects, graph = open_job_root(config.job), app.graph()
        with closing(InProcessDriver(graph, config, objects, {}, containers=1, until_latest=True)) as driver:
            driver.loop.run()

    def read(self, stream: str) -> list[tuple[str, Any]]:
        """The messages of an output, each partition in its order."""
        found = admin.open_stream(stream)
        ends = found.system.admin().offsets(stream)
        messages = []
        with closing(found.system.reader()) as reader:
            for partition, end in sorted(ends.items()):
                ssp = ps.SystemStreamPartition("local", stream, partition)
                for chunk in reader.read(OffsetRange(ssp, end.oldest, end.upcoming), 10_000):
                    messages += [((key or b"").decode(), json.loads(value or b"")) for _, _, key, value, *_ in chunk]
        return messages

    def expected_totals(self) -> list[tuple[str, Any]]:
        """The sum after each message."""
        sums = Counter[str]()
        found = []
        for key, value in self.sent:
            sums[key] += value["miles"]
            found.append((key, sums[key]))
        return found

    def expected_panes(self) -> list[tuple[str, Any]]:
        """The messages of each town and window."""
        panes = Counter((value["town"], value["at"] // WINDOW_MS * WINDOW_MS) for _, value in self.sent)
        return [(town, {"from": start, "trips": trips}) for (town, start), trips in panes.items()]


def sorted_messages(messages: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """In an order that depends on the messages alone."""
    return sorted(messages, key=repr)
