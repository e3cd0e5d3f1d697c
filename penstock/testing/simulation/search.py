"""`simulate`: many lives of a user's job, with a report of what is broken."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import penstock
from penstock.api.side_inputs import PushedTable
from penstock.api.ssp import SystemStream
from penstock.application.application import Application
from penstock.base.plugins import PICKLERS, load
from penstock.base.wording import counted
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.config.settings import DEFAULT_SYSTEM, SystemKeys
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.start.part import complete
from penstock.testing.simulation.choices import shrink
from penstock.testing.simulation.inputs import SimulationInputs
from penstock.testing.simulation.pool import WorkerProcess, in_parallel
from penstock.testing.simulation.results import Reference, Results, first_difference
from penstock.testing.simulation.users_job import REFERENCE, UsersJob
from penstock.testing.simulation.watch import FoundCall

Inputs: TypeAlias = Mapping[str, Iterable[Any]] | Callable[[SimulationInputs], object]
"""By input, its messages: for each its value, or a tuple (key, value). Or a function that gives them."""
Invariant: TypeAlias = Callable[..., object]
_SUBJECT = "penstock.testing.simulation.users:UsersSubject"
_CALM_LIVES = 4
_SHRINK_TRIES = 40
_SHRINK_S = 30.0
_STORY = 30
_LEFT_OUT = re.compile(
    r"systems\..*|job\.(name|id|root.*|logged\..*|log\..*|dashboard\..*|batch\..*|latency\..*|retry\..*|lease\..*"
    r"|container\..*|host-affinity\..*|drain-monitor\..*)|container\..*|metrics\..*|spark\..*|state\..*|schema\..*"
    r"|stores\.backup\..*|stores\.restore\..*|stores\.rocksdb\..*|stores\.memory\..*|stores\.default\..*"
    r"|stores\..*\.(factory|backup\.factories|restore\.factories|changelog.*|rocksdb\..*)"
    r"|task\.(commit\..*|checkpoint\..*|shutdown\..*)|streams\..*\.(idle\.ms|retention\..*)"
)
"""Keys that say where a real job has what a simulated one has in memory, and how often it commits."""
_IDLE_MS = 10**9


@dataclass(frozen=True, slots=True)
class FailedLife:
    """A life in which something was broken.

    Attributes:
        seed: its seed, which lives it again.
        broken: what does not hold, in words.
        story: the last events of the life.
        traceback: that of the user's code, if it raised, or of the simulation.
        shrunk: of a life with fewer faults that is broken as well; None if none was found.
        decisions: how many decisions are other than the mildest, in the shrunk life or else in this one.
    """

    seed: int
    broken: Sequence[str]
    story: Sequence[str] = ()
    traceback: str = ""
    decisions: int = 0
    shrunk: FailedLife | None = None

    def __str__(self) -> str:
        shown = self.shrunk or self
        title = "the job fails without any fault" if self.seed == 0 else f"seed {self.seed} is broken"
        lines = [title, *(f"  {each}" for each in self.broken)]
        if self.shrunk and list(self.shrunk.broken) != list(self.broken):
            lines += ["with fewer faults:", *(f"  {each}" for each in self.shrunk.broken)]
        if shown.traceback:
            lines += ["", shown.traceback.rstrip(), ""]
        if shown.story:
            fewer = ""
            if self.shrunk:
                left = counted(shown.decisions, "decision")
                fewer = f"; {left} left that matter" if shown.decisions else "; the kill at the end is enough"
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
        parts.append(f"{held}: {_lives(self.lives)}{broken}, in {self.seconds:.1f} s. Faults: {faults or 'none'}")
        return "\n".join(parts)


def _lives(count: int) -> str:
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


def simulate(
    app: Application,
    inputs: Inputs,
    *,
    seeds: int | Iterable[int] = 100,
    invariants: Sequence[Invariant] = (),
    config: Mapping[str, object] | None = None,
    partitions: int = 2,
    late: Sequence[str] = (),
    doubled: Sequence[str] = (),
    compare: bool | None = None,
    processes: int | None = None,
    limit_s: float = 60.0,
) -> SimulationReport:
    """Run a job many times under faults, in simulated processes, and check what has to hold in the end.

    Each seed is a life of the job: it is killed, stopped and started again, loses containers, repeats attempts, and
    meets stores and streams that are slow or fail. The same seed is the same life. Nothing outside of this machine's
    worker processes is touched: every stream is a simulated one, whatever its system is.

    Without `invariants`, the outputs and stores of each life are compared with those of a life without faults. An
    output that is exactly once has the same messages as often; another has the same ones, and the same last value for
    each key. Lives without faults that differ among themselves show what the inputs alone do not decide, which is then
    not compared; `notes` of the report says so.

    Args:
        app: the application.
        inputs: by input, its messages: for each its value, or a tuple (key, value), as for `TestRunner.input`. Or a
            function that calls the methods `input` and `side_input` of what it gets, as those of a `TestRunner`.
        seeds: how many lives, or which seeds.
        invariants: functions of inputs, outputs and stores. By stream, they get a list of `OutputMessage`; by store, a
            dict as of the last checkpoint. They raise an AssertionError, or return a text, if something does not hold.
        config: keys of the configuration.
        partitions: how many partitions each stream has.
        late: inputs whose messages may come later than others of their partition, and must make no difference.
        doubled: inputs whose messages may come twice, and must make no difference.
        compare: compare with a life without faults; by default if there are no `invariants`.
        processes: how many worker processes; by default one a core.
        limit_s: the most seconds that a life may take. One that takes longer is broken.

    Returns:
        What was found, if everything holds.

    Raises:
        SimulationFailedError: something is broken. The error names the seed, the faults and the first difference.
        ConfigError: the application, its configuration or an input is wrong.

    Example:
        >>> from penstock.testing import simulate
        >>> class Count(ps.StreamTask):
        ...     def init(self, context):
        ...         self.flights = context.store("flights")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.flights[envelope.key] = self.flights.get(envelope.key, 0) + 1
        >>> app = ps.TaskApplication("count", Count)
        >>> app.store("flights")
        >>> app.input("local.trips")
        >>> simulate(app, {"local.trips": [("N1", None), ("N2", None), ("N1", None)]}, seeds=2, processes=1).lives
        2
    """
    loaded = load_for_simulation(app, config=config)
    report = run_simulation(
        app,
        inputs,
        loaded,
        seeds=range(1, seeds + 1) if isinstance(seeds, int) else seeds,
        invariants=invariants,
        partitions=partitions,
        late=late,
        doubled=doubled,
        compare=compare,
        processes=processes,
        limit_s=limit_s,
    )
    if not report.holds:
        raise SimulationFailedError(report)
    return report


def load_for_simulation(
    app: Application,
    file: Path | None = None,
    assignments: Sequence[str] = (),
    config: Mapping[str, object] | None = None,
) -> JobConfig:
    """The user's configuration, in which systems that it does not have are in memory.

    Raises:
        ConfigError: it is wrong.
    """
    graph = app.graph()
    stores = [store.name for store in graph.stores]
    given = dict(config or {})
    names = _systems(graph) - {DEFAULT_SYSTEM}
    known = load_config(file, given, assignments, default_job_name=app.name, stores=stores).flat()
    added = {
        SystemKeys.factory.full(name): "memory"
        for name in sorted(names)
        if not any(key.startswith(f"systems.{name}.") for key in known)
    }
    return load_config(file, {**added, **given}, assignments, default_job_name=app.name, stores=stores)


def run_simulation(
    app: Application,
    inputs: Inputs,
    config: JobConfig,
    *,
    seeds: Iterable[int],
    invariants: Sequence[Invariant] = (),
    partitions: int = 2,
    late: Sequence[str] = (),
    doubled: Sequence[str] = (),
    compare: bool | None = None,
    processes: int | None = None,
    limit_s: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
) -> SimulationReport:
    """As `simulate`, with a loaded configuration, and without the error. `tell` gets a line now and then."""
    began = time.monotonic()
    if importlib.util.find_spec("greenlet") is None:
        raise ConfigError("a simulation needs the package `greenlet`: pip install 'penstock-streams[testing]'")
    job, notes = _job(app, inputs, config, partitions, late, doubled, invariants, compare, limit_s)
    with tempfile.TemporaryDirectory(prefix="penstock-simulate-") as folder:
        report = _Search(job, Path(folder), tell).run(list(seeds), processes or os.cpu_count() or 1)
    report.notes[:0] = notes
    report.seconds = time.monotonic() - began
    return report


def _job(
    app: Application,
    inputs: Inputs,
    config: JobConfig,
    partitions: int,
    late: Sequence[str],
    doubled: Sequence[str],
    invariants: Sequence[Invariant],
    compare: bool | None,
    limit_s: float,
) -> tuple[UsersJob, list[str]]:
    """The job for the workers, and notes for the user."""
    if partitions < 1:
        raise ConfigError(f"partitions must be at least 1, not {partitions}")
    declared = app.graph()
    _refuse(declared)
    graph = complete(declared, config)
    given = SimulationInputs(graph, partitions)
    if callable(inputs):
        inputs(given)
    else:
        for stream, values in inputs.items():
            given.input(stream, values)
    if not given.feed:
        names = ", ".join(f"`{op.stream}`" for op in graph.inputs)
        raise ConfigError(f"the inputs have no messages: give some of {names}")
    read = {op.stream for op in graph.inputs}
    disturbed = [frozenset(map(SystemStream.parse, names)) for names in (late, doubled)]
    if strangers := sorted(map(str, frozenset().union(*disturbed) - read)):
        raise ConfigError(f"`{strangers[0]}` is not an input of application `{app.name}`")
    keys = _keys(graph, config)
    dead = config.task.dead_letter_stream
    streams = {*_streams(graph), *([dead] if dead else [])}
    with _by_value():
        pickled: Callable[[object], bytes] = load(PICKLERS["spark"])
        graph_bytes, functions = pickled(declared), pickled(list(invariants))
    job = UsersJob(
        graph_bytes,
        keys,
        dict.fromkeys(sorted(streams, key=str), partitions),
        given.feed,
        disturbed[0],
        disturbed[1],
        frozenset(config.exactly_once_streams),
        functions,
        compare if compare is not None else not invariants,
        limit_s,
        4 << 30,
    )
    return job, _replacements(graph, config)


def _refuse(graph: ApplicationGraph) -> None:
    """Raise ConfigError for what no simulated stream or table stands for."""
    if graph.patterns:
        raise ConfigError("inputs that are patterns cannot be simulated yet: name the streams in the application")
    if any(isinstance(spec.side, PushedTable) for spec in graph.side_stores):
        raise ConfigError("pushed tables cannot be simulated yet: test them with `TestRunner.push`")


def _streams(graph: ApplicationGraph) -> set[SystemStream]:
    sources = {op.stream for op in graph.sources}
    return sources | {spec.stream for spec in graph.outputs} | set(graph.side_streams())


def _keys(graph: ApplicationGraph, config: JobConfig) -> dict[str, str]:
    """The keys that count in a simulation. A partition never becomes idle: simulated processes stand still for so long
    that it would."""
    own = {key: text for key, text in config.flat().items() if not _LEFT_OUT.fullmatch(key)}
    return {**own, **{f"streams.{op.stream}.idle.ms": str(_IDLE_MS) for op in graph.inputs}}


def _systems(graph: ApplicationGraph) -> set[str]:
    return {stream.system for stream in _streams(graph)}


def _replacements(graph: ApplicationGraph, config: JobConfig) -> list[str]:
    """Each thing outside that something else takes the place of, in words."""
    found = config.flat()
    kinds = {name: found.get(SystemKeys.factory.full(name), "") for name in sorted(_systems(graph))}
    outside = [f"`{name}` ({kind})" for name, kind in kinds.items() if kind not in {"", "memory", "local"}]
    told = [f"simulated streams take the place of those of {', '.join(outside)}"] if outside else []
    backends = {each for spec in graph.written_stores for each in config.store(spec.name).backup_factories}
    if others := sorted(backends - {"changelog-files", "blob"}):
        told.append(f"stores are backed up in memory, by `changelog-files` or `blob`, in place of {', '.join(others)}")
    return told


class _Search:
    """Calm lives first, which say what has to hold; then lives with faults, until one is broken."""

    def __init__(self, job: UsersJob, folder: Path, tell: Callable[[str], None]) -> None:
        self._job = job
        self._folder = folder
        self._tell = tell
        self._path = job.write(folder)
        self._report = SimulationReport()

    def run(self, seeds: Sequence[int], processes: int) -> SimulationReport:
        workers, other = [self._worker(0)], self._worker(1)
        try:
            if self._calm_lives(workers[0], other):
                while len(workers) < min(processes, len(seeds)):
                    workers.append(self._worker(0))
                self._lives(workers, seeds)
        finally:
            for each in (*workers, other):
                each.close()
        return self._report

    def _worker(self, hash_seed: int) -> WorkerProcess:
        return WorkerProcess(
            _SUBJECT, str(self._path), folder=self._path.parent, hash_seed=hash_seed, limit_s=self._job.limit_s
        )

    # Without faults.

    def _calm_lives(self, worker: WorkerProcess, other: WorkerProcess) -> bool:
        """Find out what has to hold. False if the job fails without any fault. `other` hashes texts otherwise."""
        first = worker.ask({})
        if first["broken"]:
            self._report.failure = _failed(0, first)
            return False
        calm = Results.of(first["results"])
        calls = self._calls(worker)
        lives = [calm]
        for request in (*({"variant": number} for number in range(1, _CALM_LIVES)), {"seed": 1}):
            found = worker.ask(request)
            if found["broken"] and "variant" in request and not found.get("raised"):
                continue  # calls were so slow that the job gave up
            if found["broken"]:
                self._report.failure = _failed(0, found)
                return False
            lives.append(Results.of(found["results"]))
        if not self._depends_on_luck(calm, lives[-1], calls):
            self._order_of_sets(calm, other)
        reference = Reference.of(lives, {str(each) for each in self._job.exactly_once})
        if self._job.compares:
            self._report.notes += reference.notes()
            text = {"results": first["results"], "compared": list(reference.compared)}
            (self._folder / REFERENCE).write_text(json.dumps(text), "utf-8")
        return True

    def _calls(self, worker: WorkerProcess) -> list[FoundCall]:
        """Calls that are not the same in each life, as notes."""
        watched = worker.ask({"watch": True})
        calls = [FoundCall(**each) for each in watched.get("calls", ())]
        self._report.notes += [str(each) for each in calls]
        return calls

    def _depends_on_luck(self, calm: Results, other: Results, calls: Sequence[FoundCall]) -> bool:
        """Compare the same life with other random numbers, at another real time."""
        if (differs := first_difference(calm, other)) is not None:
            found = [f"{each.file}:{each.line}" for each in calls if each.file and each.kind in {"random", "clock"}]
            because = f": see {', '.join(found)}" if found else ""
            self._report.errors.append(
                f"results depend on random numbers or on the clock of the machine{because}. In two lives without "
                f"faults, {differs}"
            )
        return differs is not None

    def _order_of_sets(self, calm: Results, other: WorkerProcess) -> None:
        """Compare the same life in a process in which Python hashes texts otherwise."""
        found = other.ask({})
        if not found["broken"] and (differs := first_difference(calm, Results.of(found["results"]))) is not None:
            self._report.errors.append(
                f"results depend on the order of a set, or on `hash`, which differ from process to process. In two "
                f"lives without faults, {differs}. Sort what comes out of a set"
            )

    # With faults.

    def _lives(self, workers: list[WorkerProcess], seeds: Sequence[int]) -> None:
        report, broken = self._report, dict[int, dict[str, Any]]()
        told = time.monotonic()
        for seed, found in in_parallel(workers, seeds, lambda each: bool(each["broken"])):
            report.lives += 1
            report.faults.update(found.get("faults", {}))
            if found["broken"]:
                broken[seed] = found
            if time.monotonic() - told > 10:
                told = time.monotonic()
                self._tell(f"{_lives(report.lives)} of {len(seeds):,}")
        report.failures = len(broken)
        if broken:
            seed = min(broken)
            report.failure = self._shrunk(workers[0], seed, broken[seed])

    def _shrunk(self, worker: WorkerProcess, seed: int, found: dict[str, Any]) -> FailedLife:
        whole = _failed(seed, found)
        if not found.get("choices") or "has not ended within" in whole.broken[0]:
            return whole
        self._tell(f"seed {seed} is broken; looking for a shorter life that is broken as well")
        deadline, best = time.monotonic() + _SHRINK_S, dict[str, Any]()

        def fails(made: Sequence[int]) -> bool:
            nonlocal best
            if time.monotonic() > deadline:
                return False
            again = worker.ask(list(made))
            if again["broken"] and again.get("choices"):
                best = again
            return bool(again["broken"])

        shrink(found["choices"], fails, _SHRINK_TRIES)
        if not best:
            return whole
        shorter = _failed(seed, best)
        return FailedLife(seed, whole.broken, whole.story, whole.traceback, whole.decisions, shorter)


def _failed(seed: int, found: Mapping[str, Any]) -> FailedLife:
    decisions = sum(map(bool, found.get("choices", ())))
    return FailedLife(seed, found["broken"], found.get("story", ()), found.get("traceback", ""), decisions)


@contextmanager
def _by_value() -> Iterator[None]:
    """Functions and classes of modules that are no libraries are pickled whole in the block: a life then has what they
    keep in their module to itself, as a process has."""
    cloudpickle = importlib.import_module("pyspark.cloudpickle")
    before = set(cloudpickle.list_registry_pickle_by_value())
    own = [each for each in list(sys.modules.values()) if _is_users(each) and each.__name__ not in before]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


_INSTALLED = tuple(
    {*(str(Path(each).resolve()) for each in sysconfig.get_paths().values()), str(Path(penstock.__file__).parent)}
)


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__ in {"__main__", "conftest"}:
        return False
    path = str(Path(file).resolve())
    return not path.startswith(_INSTALLED) and "/site-packages/" not in path
