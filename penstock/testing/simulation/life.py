"""One life of a job: it starts, dies and goes on, until nothing goes wrong any more and it has read everything."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock.api.ssp import SystemStreamPartition
from penstock.base.plugins import load
from penstock.checkpoint.log import CheckpointLog, LogView
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.driver.part import StopRequest
from penstock.driver.run import Run
from penstock.errors import ConfigError, CorruptError, IncompatibleError, PenstockError, UserCodeError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import Topology
from penstock.job.lease import LeaseHeldError
from penstock.job.paths import JobPaths
from penstock.objects import open as opening
from penstock.start.check import check_start
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.plan import StartRequest
from penstock.system.base import OffsetRange, RawRecord, System
from penstock.testing.simulation import machine
from penstock.testing.simulation.choices import Choices
from penstock.testing.simulation.direct import runner_for
from penstock.testing.simulation.faults import Chaos, Rates, Trouble
from penstock.testing.simulation.hosts import SimulatedFleet
from penstock.testing.simulation.operator import FORK, CheckpointWatch, LogWatch, Operator
from penstock.testing.simulation.scheduler import Process, Scheduler, StuckError
from penstock.testing.simulation.storage import (
    SCHEME,
    Bucket,
    Fed,
    Feed,
    Feeder,
    OutsideSystem,
    SimulatedStore,
    SimulatedSystem,
    nothing_outside,
    stream_name,
)
from penstock.wing import wings

_NEVER = (CorruptError, IncompatibleError, ConfigError, UserCodeError)
"""Errors that no crash and no failure of a network may lead to."""
_real_open_store = opening.open_store


@dataclass(frozen=True, slots=True)
class JobUnderTest:
    """A job, and what it reads.

    Attributes:
        graph: makes a new application for each life.
        config: its configuration, without `job.name`, `job.root` and systems.
        streams: stream → its number of partitions. A name alone is a stream of the system `m`.
        feed: the records of the inputs as (stream, partition, record), in the order in which they are appended.
        at_once: the most records that are appended at once.
        containers: how many containers each driver has.
        fed: everything is in the streams before the job starts, which then reads it in one go.
        before: further records, which are in the streams before the job starts.
        ship: the bytes of a job's topology, as a driver makes them for its containers, so that each has the
            application's code to itself; without it, all share what `graph` has made for their driver.
        may_drain: False if a drain, which closes windows and fires timers early, changes the results.
        may_repartition: False if the job keeps its number of tasks.
        may_go_back: False if output that is sent again after `--from` is an error.
        may_move: messages may be read again while the state stays, or is cleared: the results do not depend on it.
        outside: makes the systems that are not in memory, by name.
    """

    graph: Callable[[], ApplicationGraph]
    config: Mapping[str, object]
    streams: Mapping[Any, int]
    feed: Sequence[Fed]
    at_once: int = 8
    containers: int = 2
    fed: bool = False
    before: Sequence[Fed] = ()
    ship: Callable[[Topology], bytes] | None = None
    may_drain: bool = True
    may_go_back: bool = True
    may_repartition: bool = True
    may_move: bool = False
    outside: Callable[[Trouble], Mapping[str, OutsideSystem]] = nothing_outside


@dataclass
class Outcome:
    """The outcome of a life."""

    choices: list[int]
    events: list[str]
    failures: list[BaseException]
    faults: Counter[str]
    streams: dict[str, dict[int, list[RawRecord]]] = field(default_factory=dict)
    """Stream → partition → (timestamp, key, value, ...) of all records, as they are in the end. A stream of another
    system than `m` has its whole name."""
    broken: list[str] = field(default_factory=list)
    """The invariants that did not hold on the way, in words."""
    log: LogView | None = None
    stores: dict[str, list[tuple[int, bytes, bytes]]] = field(default_factory=dict)
    """Store → (task, key, value) of the entries that the application has at the last checkpoint."""
    restores: int = 0
    """Checkpoints' stores that were restored to look at them."""
    switches: int = 0
    seconds: float = 0.0
    """Simulated."""


class Life:
    """Runs a job once, from its first start until it has read everything."""

    def __init__(self, job: JobUnderTest, choices: Choices, folder: Path, rates: Rates | None = None) -> None:
        self.job = job
        self.folder = folder
        self.scheduler = Scheduler(choices)
        self.trouble = Trouble(self.scheduler, rates or Rates(), folder)
        self._inputs = sorted({stream_name(stream) for stream, _, _ in job.feed}, key=str)
        self.buckets: dict[str, Bucket] = {}
        names = {"m", "local", *(stream_name(each).system for each in job.streams)}
        self.outside = job.outside(self.trouble)
        self.systems = {name: SimulatedSystem(name, self.trouble) for name in sorted(names) if name not in self.outside}
        self.errors: list[BaseException] = []
        self.broken = self.trouble.broken
        """The invariants that did not hold, in words."""
        self.trouble.compete = self._compete
        self.operator = Operator(self.scheduler, self.errors)
        self._declared = {store.name: store for store in job.graph().stores}
        self._paths = JobPaths("job", "1")
        bucket = self._bucket(f"{SCHEME}/job")
        self._log_watch = LogWatch(self._paths, self.broken)
        bucket.on_put = self._log_watch.on_put
        self._quiet = SimulatedStore(bucket, None)
        self.watch = CheckpointWatch(self._quiet, self._paths, self._calm())
        self._variant: dict[str, object] = {}
        self._has_moved = False
        self._stores: dict[str, list[tuple[int, bytes, bytes]]] = {}
        self.driver = Process("no driver")
        self.drivers: list[Process] = []
        self._number = 0
        self._all_fed = False
        self._fleet: SimulatedFleet | None = None

    def run(self, seed: int) -> Outcome:
        """Live the life. Errors of the job are in the outcome, as are those that ended the simulation."""
        opening.open_store = self._open_store  # type: ignore[assignment]
        SimulatedSystem.world = dict(self.systems)
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
            try:
                outcome.log = self.log()
            except CorruptError as error:
                outcome.failures.append(error)
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
        found: dict[str, dict[int, list[RawRecord]]] = {}
        for name, other in self.outside.items():
            found |= {f"{name}.{stream}": dict(own) for stream, own in other.content().items()}
        for system in (own.undisturbed() for own in self.systems.values()):
            for stream in sorted(set(system.streams()) - system.owners.keys()):  # changelogs have gaps, and no reader
                shown = stream if system.name == "m" else f"{system.name}.{stream}"
                for partition, ends in system.admin().offsets(stream).items():
                    ssp = SystemStreamPartition(system.name, stream, partition)
                    chunks = system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 10_000)
                    found.setdefault(shown, {})[partition] = [message[1:] for chunk in chunks for message in chunk]
        return found

    def _calm(self) -> dict[str, System]:
        """The same streams, whose clients meet no faults."""
        in_memory = {name: system.undisturbed() for name, system in self.systems.items()}
        return {**in_memory, **{name: system.calm() for name, system in self.outside.items()}}

    def _feeders(self) -> dict[str, Feeder]:
        in_memory = {name: system.undisturbed().writer(None) for name, system in self.systems.items()}
        return {**in_memory, **{name: system.feeder() for name, system in self.outside.items()}}

    def _main(self) -> None:
        scheduler, choices = self.scheduler, self.scheduler.choices
        calm = self._calm()
        for stream, partitions in self.job.streams.items():
            name = stream_name(stream)
            calm[name.system].admin().create_stream(name.stream, partitions)
        Feed(self.job.before, self._feeders()).append(len(self.job.before))
        feed = Feed(self.job.feed, self._feeders())
        if self.job.fed:
            feed.append(len(self.job.feed))
            self._all_fed = True
        else:
            scheduler.spawn(Process("producer"), "feed", partial(self._feed, feed))
        chaos = Chaos(self.trouble, self._processes)
        scheduler.spawn(self.trouble.network, "chaos", chaos.run)
        scheduler.spawn(self.trouble.network, "operator", self._operate)
        scheduler.spawn(self.trouble.network, "watch", self._watch)
        ended = 0
        while True:
            until_latest = self._all_fed
            end = self._one_driver(until_latest=until_latest)
            ended = ended + 1 if until_latest and end == "stopped" else 0
            if (ended and (ended == 2 or not self.trouble.counts["command"])) or (until_latest and self.errors):
                break  # the first one may have stopped or drained because a command had asked for it
            if self._number > 60:
                raise StuckError(f"the job has not come to its end in {self._number} starts")
            rest_s = self.trouble.rates.rest_s
            scheduler.sleep(30.0 if end == "held" else (0.01, rest_s / 40, rest_s / 4, rest_s)[choices.draw(4)])
            if self.job.may_repartition and self.trouble.happens(100) and self.log().latest is not None:
                self.trouble.counts["repartition"] += 1
                tasks = max(self.job.streams.values()) + choices.draw(4)
                self._has_moved = True
                self.operator.repartition(self.config(), self.job.graph(), tasks)
        self._look(self._last_look)

    def _read_refusal(self, error: IncompatibleError) -> None:
        """Take back the startpoints that lead each start back to a checkpoint, if the refusal speaks of them. Otherwise
        the state may be in other tasks, perhaps since the driver began: the next one knows it."""
        taken = self.operator.take_back(self.config()) if "startpoint" in str(error) else ()
        if taken is None:
            return  # the next start says it again
        self._log_watch.forget(taken)
        if not taken and not self._has_moved:
            self.errors.append(error)

    def _watch(self) -> None:
        """Look at the checkpoints now and then, in no time."""
        scheduler = self.scheduler
        while not self.broken:
            scheduler.sleep(15.0)
            self._look(lambda config: [*self.watch.look(config), *self._left(config)])

    def _left(self, config: JobConfig) -> list[str]:
        """The problems of the labels and of the fork that the operator has made, in words."""
        fork = CheckpointWatch(self._quiet, JobPaths(FORK, config.job.id), self._calm())
        return [*self.operator.lost_labels(self.log()), *self.operator.broken_fork(self.watch, fork, config)]

    def _last_look(self, config: JobConfig) -> list[str]:
        """At every retained checkpoint; and remember the stores as of the last one."""
        broken = self.watch.look_at_all(config) + self._left(config)
        broken += self._log_watch.lost_requests(self._bucket(f"{SCHEME}/job").objects)
        if not broken and not self.errors:
            self._stores = self.watch.seen(self.log().restorable[-1], config)
        return broken

    def _look(self, look: Callable[[JobConfig], list[str]]) -> None:
        watch = Process("watch")
        self.scheduler.at_once(watch, lambda: self.broken.extend(look(self.config())))

    def _feed(self, feed: Feed) -> None:
        """Append the records little by little; then nothing goes wrong any more."""
        while feed.left:
            feed.append(1 + self.scheduler.choices.draw(self.job.at_once))
            self.scheduler.sleep((0.01, 0.2, 2.0, 15.0)[self.scheduler.choices.draw(4)])
        self.scheduler.sleep(30.0 * self.scheduler.choices.draw(3))
        self._all_fed = self.scheduler.calm = True
        self.scheduler.note("everything is fed, and calm")
        for driver in list(self.drivers):
            self.scheduler.kill(driver, "it is to read until the end")

    def _processes(self) -> list[Process]:
        fleet = self._fleet
        return [self.driver, *([] if fleet is None else [*fleet.processes.values(), *fleet.workers])]

    def _operate(self) -> None:
        """Type commands now and then, whatever the job does."""
        commands = [self.operator.collect, self.operator.stop, self.operator.label, self.operator.fork]
        if self.job.may_drain:
            commands.append(self.operator.drain)
        if self.job.may_move:
            commands += [partial(self.operator.startpoint, self._inputs), partial(self.operator.move, self._inputs)]
        while not self.scheduler.calm:
            self.scheduler.sleep(self.trouble.rates.kill_s * (1 + self.scheduler.choices.draw(4)))
            which = self.scheduler.choices.draw(1 + len(commands))
            if which and not self.scheduler.calm:
                self.trouble.counts["command"] += 1
                commands[which - 1](self.config())

    def _compete(self, process: Process) -> bool:
        """A process stands still: if it is the driver, a second copy of the job may start beside it."""
        if process is not self.driver or not self.scheduler.choices.draw(2):
            return False
        self.scheduler.spawn(self.trouble.network, "second", lambda: self._start_beside(process))
        return True

    def _start_beside(self, other: Process) -> None:
        self.scheduler.sleep(1.0)
        if not self.scheduler.calm:
            self._one_driver(until_latest=False, beside=other)

    def log(self) -> LogView:
        """The log as it is, read in no time."""
        return CheckpointLog(self._quiet, self._paths).read()

    def config(self) -> JobConfig:
        """The configuration of the next process."""
        stores = self._declared
        latest = self.log().latest if self._has_moved else None
        factory = f"{SimulatedSystem.__module__}:{SimulatedSystem.__qualname__}"
        return load_config(
            overrides={
                "job.name": "job",
                "job.root": f"{SCHEME}/job",
                "job.logged.store.base.dir": str(self.folder),
                "job.retry.max": 1000,
                **{f"systems.{name}.samza.factory": factory for name in self.systems},
                **{
                    f"systems.{n}.{key}": value
                    for n, own in self.outside.items()
                    for key, value in own.options().items()
                },
                **{
                    f"stores.{name}.factory": "columns" if store.by_column else "memory"
                    for name, store in stores.items()
                },
                **self._variant,
                **self.job.config,
                **({} if latest is None else {"job.intermediate.stream.partitions": latest.task_count}),
            },
            stores=list(stores),
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
        in_columns = [name for name, store in self._declared.items() if store.by_column]
        if in_columns and choices.draw(2):  # their bytes are the same in each engine
            self._variant |= {f"stores.{name}.factory": "memory" for name in in_columns}

    # Drivers.

    def _older(self) -> str | None:
        """A retained checkpoint that a start goes back to (`--from`)."""
        if not self.job.may_go_back or not self.trouble.happens(100):
            return None
        view = self.log()
        tasks = None if view.latest is None else view.latest.task_count
        restorable = [each for each in view.restorable if each.task_count == tasks]
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
        refusals: list[IncompatibleError] = []
        actor = self.scheduler.spawn(driver, "main", lambda: self._drive(driver, until_latest, end, refusals))
        self.scheduler.join(self.scheduler.me(), actor, None)
        self.scheduler.kill(driver, "its program has ended")
        self.drivers.remove(driver)
        for error in refusals:
            self._read_refusal(error)
        return end[0] if end else "killed"

    def _drive(self, driver: Process, until_latest: bool, end: list[str], refusals: list[IncompatibleError]) -> None:
        try:
            with ExitStack() as undo:
                self._run(driver, until_latest, undo)
            end.append("stopped")
        except LeaseHeldError as error:
            end.append("held")
            self.scheduler.note(f"{driver.name}: {error}")
        except PenstockError as error:
            end.append("failed")
            self.scheduler.note(f"{driver.name}: {type(error).__name__}: {_first_words(error)}")
            if isinstance(error, IncompatibleError):
                refusals.append(error)
            elif isinstance(error, _NEVER) or until_latest:
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
        fleet = SimulatedFleet(self.trouble, driver, job, self.job.containers, self.job.ship)
        runner = runner_for(job, fleet, self.trouble, driver)
        if driver is self.driver:
            self._fleet = fleet
        tools = {wing.name: load(wing.on_host["process"]) for wing in wings() if "process" in wing.on_host}
        check_next = partial(check_start, self.job.graph(), config.without_resets(), run.objects)
        loop = run.open(fleet, runner, tools, None, check_next)
        run.obey(stop.ask)
        loop.run()


def _first_words(error: PenstockError) -> str:
    if isinstance(error, UserCodeError):
        return f"{error.failed.reason}, in {error.failed.place}"
    return str(error)


logging.getLogger("penstock").addHandler(logging.NullHandler())
logging.getLogger("concurrent.futures").disabled = True  # it reports the death of each worker
