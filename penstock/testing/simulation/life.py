"""One life of a job: it starts, dies, moves and goes on, until nothing goes wrong any more and it has read everything."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.api.ssp import SystemStreamPartition
from penstock.base.plugins import load
from penstock.checkpoint.log import CheckpointLog, LogView
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.driver.context import StopRequest
from penstock.driver.loop.run import Run
from penstock.errors import ConfigError, CorruptError, IncompatibleError, PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.job.lease import LeaseHeldError
from penstock.job.paths import JobPaths
from penstock.objects import open as opening
from penstock.start.check import check_start
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.plan import StartRequest
from penstock.system.base import OffsetRange, RawRecord
from penstock.testing.simulation import machine
from penstock.testing.simulation.checkpoints import CheckpointWatch
from penstock.testing.simulation.choices import Choices
from penstock.testing.simulation.faults import Rates, Trouble
from penstock.testing.simulation.hosts import SimulatedFleet, SimulatedRunner
from penstock.testing.simulation.operator import Operator
from penstock.testing.simulation.scheduler import Process, Scheduler, StuckError
from penstock.testing.simulation.storage import SCHEME, Bucket, SimulatedStore
from penstock.testing.simulation.streams import SimulatedSystem
from penstock.wing import wings

_NEVER = (CorruptError, IncompatibleError, ConfigError)
"""Errors that no crash and no failure of a network may lead to."""
_real_open_store = opening.open_store


@dataclass(frozen=True, slots=True)
class JobUnderTest:
    """A job, and what it reads.

    Attributes:
        graph: makes the application anew for each life.
        config: its configuration, without `job.name`, `job.root` and systems.
        streams: stream of the system `m` → its number of partitions.
        feed: the records of the inputs as (stream, partition, record), in the order in which they are appended.
        may_drain: False if a drain, which closes windows and fires timers early, changes the results.
        may_go_back: False if output that is sent again after `--from` is an error.
    """

    graph: Callable[[], ApplicationGraph]
    config: Mapping[str, object]
    streams: Mapping[str, int]
    feed: Sequence[tuple[str, int, RawRecord]]
    may_drain: bool = True
    may_go_back: bool = True
    may_repartition: bool = True


@dataclass
class Outcome:
    """What a life has come to."""

    choices: list[int]
    events: list[str]
    failures: list[BaseException]
    faults: Counter[str]
    streams: dict[str, dict[int, list[RawRecord]]] = field(default_factory=dict)
    """Stream → partition → (timestamp, key, value, ...) of all records, as they are in the end."""
    broken: list[str] = field(default_factory=list)
    """What did not hold on the way, in words."""
    state: dict[tuple[str, int], dict[bytes, bytes]] = field(default_factory=dict)
    """(store, task) → the raw entries as of the last checkpoint."""
    log: LogView | None = None
    stores: dict[str, list[tuple[int, bytes, bytes]]] = field(default_factory=dict)
    """Store → (task, key, value) of the entries that the application has at the last checkpoint."""
    restores: int = 0
    """Checkpoints' stores that were restored to look at them."""
    switches: int = 0
    seconds: float = 0.0
    """Simulated."""


class Life:
    """Runs a job once. `switch off` a rule, and see whether a schedule finds that it is missing."""

    def __init__(self, job: JobUnderTest, choices: Choices, folder: Path, rates: Rates | None = None) -> None:
        self.job = job
        self.folder = folder
        self.scheduler = Scheduler(choices)
        self.trouble = Trouble(self.scheduler, rates or Rates())
        self.buckets: dict[str, Bucket] = {}
        self.system = SimulatedSystem("m", self.trouble)
        self.system_of_locals = SimulatedSystem("local", self.trouble)
        self.errors: list[BaseException] = []
        self.broken: list[str] = []
        """What did not hold, in words."""
        self.operator = Operator(self.scheduler, self.errors)
        self._paths = JobPaths("job", "1")
        self._quiet = SimulatedStore(self._bucket(f"{SCHEME}/job"), None)
        systems = {"m": self.system.undisturbed(), "local": self.system_of_locals.undisturbed()}
        self.watch = CheckpointWatch(self._quiet, self._paths, systems)
        self._variant: dict[str, object] = {}
        self._tasks: int | None = None
        self._stores: dict[str, list[tuple[int, bytes, bytes]]] = {}
        self.driver = Process("no driver")
        self.drivers: list[Process] = []
        self._number = 0
        self._all_fed = False
        self._fleet: SimulatedFleet | None = None

    def run(self, seed: int) -> Outcome:
        """Live the life. Errors of the job are in the outcome, as are those that ended the simulation."""
        opening.open_store = self._open_store  # type: ignore[assignment]
        SimulatedSystem.world = {"m": self.system, "local": self.system_of_locals}
        stuck: list[BaseException] = []
        try:
            with machine.simulated(self.scheduler, seed):
                self.scheduler.run(Process("world"), self._main)
        except StuckError as error:
            stuck.append(error)
        finally:
            opening.open_store = _real_open_store
        scheduler = self.scheduler
        failures = [*self.errors, *(each for each in scheduler.failures if each not in stuck), *stuck]
        outcome = Outcome(scheduler.choices.made, scheduler.events, failures, self.trouble.counts)
        outcome.broken, outcome.restores = self.broken, self.watch.checked
        outcome.switches, outcome.seconds = scheduler._switches, scheduler.seconds
        outcome.streams = self._content()
        if not stuck:
            objects = SimulatedStore(self._bucket(f"{SCHEME}/job"), None)
            outcome.log = CheckpointLog(objects, JobPaths("job", "1")).read()
            outcome.stores = self._stores
        return outcome

    # The world.

    def _open_store(self, url: str, **options: object) -> object:
        if not url.startswith(SCHEME):
            return _real_open_store(url, **options)  # type: ignore[arg-type]
        return SimulatedStore(self._bucket(url), self.trouble)

    def _bucket(self, url: str) -> Bucket:
        return self.buckets.setdefault(url, Bucket())

    def _content(self) -> dict[str, dict[int, list[RawRecord]]]:
        quiet = self.system.undisturbed()
        found: dict[str, dict[int, list[RawRecord]]] = {}
        for stream in quiet.streams():
            for partition, ends in quiet.admin().offsets(stream).items():
                ssp = SystemStreamPartition("m", stream, partition)
                chunks = quiet.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 10_000)
                found.setdefault(stream, {})[partition] = [message[1:] for chunk in chunks for message in chunk]  # type: ignore[misc]
        return found

    def _main(self) -> None:
        scheduler, choices = self.scheduler, self.scheduler.choices
        calm = self.system.undisturbed()
        for stream, partitions in self.job.streams.items():
            calm.admin().create_stream(stream, partitions)
        scheduler.spawn(Process("producer"), "feed", partial(self._feed, calm))
        scheduler.spawn(self.trouble.network, "chaos", self._chaos)
        scheduler.spawn(self.trouble.network, "operator", self._operate)
        scheduler.spawn(self.trouble.network, "watch", self._watch)
        ended = 0
        while True:
            end = self._one_driver(until_latest=self._all_fed)
            ended = ended + 1 if scheduler.calm and end == "stopped" else 0
            if (ended and (ended == 2 or not self.trouble.counts["command"])) or (scheduler.calm and self.errors):
                break  # the first one may have stopped or drained because a command had asked for it
            if self._number > 60:
                raise StuckError(f"the job has not come to its end in {self._number} starts")
            scheduler.sleep(30.0 if end == "held" else (0.01, 1.0, 10.0, 40.0)[choices.draw(4)])
            if self.job.may_repartition and self.trouble.happens(100) and self.log().latest is not None:
                self.trouble.counts["repartition"] += 1
                tasks = max(self.job.streams.values()) + choices.draw(4)
                if self.operator.repartition(self.config(), self.job.graph(), tasks):
                    self._tasks = tasks
        self._look(self._last_look)

    def _watch(self) -> None:
        """Look at the checkpoints now and then, in no time."""
        scheduler = self.scheduler
        while not self.broken:
            scheduler.sleep(15.0)
            self._look(self.watch.look)

    def _last_look(self, config: JobConfig) -> list[str]:
        """At every retained checkpoint; and remember the stores as of the last one."""
        broken = self.watch.look_at_all(config)
        if not broken and not self.errors:
            self._stores = self.watch.seen(self.log().restorable[-1], config)
        return broken

    def _look(self, look: Callable[[JobConfig], list[str]]) -> None:
        watch = Process("watch")
        self.scheduler.at_once(watch, lambda: self.broken.extend(look(self.config())))

    def _feed(self, system: SimulatedSystem) -> None:
        """Append the records little by little; then nothing goes wrong any more."""
        left = list(self.job.feed)
        writer = system.writer(None)
        while left:
            for _ in range(1 + self.scheduler.choices.draw(8)):
                if left:
                    stream, partition, record = left.pop(0)
                    writer.append(SystemStreamPartition("m", stream, partition), [record])
            self.scheduler.sleep((0.01, 0.2, 2.0, 15.0)[self.scheduler.choices.draw(4)])
        self.scheduler.sleep(30.0 * self.scheduler.choices.draw(3))
        self._all_fed = self.scheduler.calm = True
        self.scheduler.note("everything is fed, and calm")
        for driver in list(self.drivers):
            self.scheduler.kill(driver, "it is to read until the end")

    def _chaos(self) -> None:
        """Kill and stop processes now and then."""
        scheduler, choices = self.scheduler, self.scheduler.choices
        while True:
            scheduler.sleep(self.trouble.rates.kill_s * (1 + choices.draw(4)) / 4)
            if scheduler.calm:
                return
            victims = [self.driver, *(self._fleet.processes.values() if self._fleet else ())]
            living = [each for each in victims if not each.dead]
            what = choices.draw(4)
            if not living or what == 0:
                continue
            victim = living[choices.draw(len(living))]
            if what == 3:
                self.trouble.counts["stopped process"] += 1
                scheduler.stop(victim, (1.0, 8.0, 45.0, 100.0)[choices.draw(4)])
                if victim is self.driver and choices.draw(2):
                    self.trouble.counts["second driver"] += 1
                    scheduler.spawn(self.trouble.network, "second", lambda: self._compete(victim))
            else:
                self.trouble.counts["killed process"] += 1
                scheduler.kill(victim, "kill -9")

    def _operate(self) -> None:
        """Type commands now and then, whatever the job does."""
        commands = [self.operator.collect, self.operator.stop]
        if self.job.may_drain:
            commands.append(self.operator.drain)
        while not self.scheduler.calm:
            self.scheduler.sleep(self.trouble.rates.kill_s * (1 + self.scheduler.choices.draw(4)))
            which = self.scheduler.choices.draw(1 + len(commands))
            if which and not self.scheduler.calm:
                self.trouble.counts["command"] += 1
                commands[which - 1](self.config())

    def _compete(self, other: Process) -> None:
        """A second copy of the job starts beside the one that stands still."""
        self.scheduler.sleep(1.0)
        if not self.scheduler.calm:
            self._one_driver(until_latest=False, beside=other)

    def log(self) -> LogView:
        """The log as it is, read in no time."""
        return CheckpointLog(self._quiet, self._paths).read()

    def config(self) -> JobConfig:
        """The configuration of the next process."""
        stores = [store.name for store in self.job.graph().stores]
        return load_config(
            overrides={
                "job.name": "job",
                "job.root": f"{SCHEME}/job",
                "job.logged.store.base.dir": str(self.folder),
                "job.retry.max": 1000,
                "systems.m.samza.factory": f"{SimulatedSystem.__module__}:{SimulatedSystem.__qualname__}",
                "systems.local.samza.factory": f"{SimulatedSystem.__module__}:{SimulatedSystem.__qualname__}",
                **{f"stores.{store}.factory": "memory" for store in stores},
                **({} if self._tasks is None else {"job.intermediate.stream.partitions": self._tasks}),
                **self._variant,
                **self.job.config,
            },
            stores=stores,
            environ={},
        )

    def _vary(self) -> None:
        """Another start may have another configuration."""
        choices = self.scheduler.choices
        if self.scheduler.calm or not choices.happens(300):
            return
        known = ("changelog-files", "blob")
        backups = (known[:1], known[1:], known)[choices.draw(3)]
        self._variant = {
            "stores.backup.factories": ",".join(backups),
            "stores.restore.factories": ",".join(known if choices.draw(2) == 0 else known[::-1]),
            "state.snapshot.interval.commits": choices.draw(4),
            "state.snapshot.interval.seconds": 0,
            "task.checkpoint.retained": 1 + choices.draw(4),
        }

    # Drivers.

    def _older(self) -> str | None:
        """A retained checkpoint that a start goes back to (`--from`)."""
        if not self.job.may_go_back or not self.trouble.happens(100):
            return None
        restorable = [each for each in self.log().restorable if each.task_count == (self._tasks or each.task_count)]
        if not restorable:
            return None
        self.trouble.counts["start from an older checkpoint"] += 1
        return str(restorable[self.scheduler.choices.draw(len(restorable))].id)

    def _one_driver(self, *, until_latest: bool, beside: Process | None = None) -> str:
        """Start a driver, and wait until it has ended. Returns how."""
        self._number += 1
        driver = Process(f"driver-{self._number}", host=f"host-{self._number}")
        self.drivers.append(driver)
        if beside is None:
            self.driver = driver
            self._vary()
        end: list[str] = []
        actor = self.scheduler.spawn(driver, "main", lambda: self._drive(driver, until_latest, end))
        self.scheduler.join(self.scheduler.me(), actor, None)
        self.scheduler.kill(driver, "its program has ended")
        self.drivers.remove(driver)
        return end[0] if end else "killed"

    def _drive(self, driver: Process, until_latest: bool, end: list[str]) -> None:
        try:
            with ExitStack() as undo:
                self._run(driver, until_latest, undo)
            end.append("stopped")
        except LeaseHeldError as error:
            end.append("held")
            self.scheduler.note(f"{driver.name}: {error}")
        except PenstockError as error:
            end.append("failed")
            self.scheduler.note(f"{driver.name}: {type(error).__name__}: {error}")
            if isinstance(error, _NEVER) or self.scheduler.calm:
                self.errors.append(error)

    def _run(self, driver: Process, until_latest: bool, undo: ExitStack) -> None:
        graph, config = self.job.graph(), self.config()
        stop = StopRequest()
        graph = with_matches(complete(graph, config), config)
        streams = JobStreams.open(graph, config)
        undo.callback(streams.close)
        older = self._older() if driver is self.driver else None
        run = Run(config, stop, undo)
        job = run.prepare(graph, streams, StartRequest(run.run_id, older, until_latest, True, ()))
        fleet = SimulatedFleet(self.trouble, driver, job, 2)
        runner = SimulatedRunner(job, fleet, self.trouble)
        if driver is self.driver:
            self._fleet = fleet
        tools = {wing.name: load(wing.on_host["process"]) for wing in wings() if "process" in wing.on_host}
        check_next = partial(check_start, self.job.graph(), config.without_resets(), run.objects)
        loop = run.open(fleet, runner, tools, None, check_next)
        run.obey(stop.ask)
        loop.run()


logging.getLogger("penstock").addHandler(logging.NullHandler())
logging.getLogger("concurrent.futures").disabled = True  # it reports the death of each worker
