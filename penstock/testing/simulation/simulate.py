"""`simulate`: many lives of a user's job, with a report of what is broken; and the search for a life that is, in worker
processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from penstock.application.application import Application
from penstock.config.model import JobConfig
from penstock.errors import ConfigError
from penstock.testing.simulation.calls import FoundCall
from penstock.testing.simulation.choices import shrink
from penstock.testing.simulation.preparation import REFERENCE, Inputs, Invariant, UsersJob, load_for_simulation, prepare
from penstock.testing.simulation.results import (
    FailedLife,
    Reference,
    Results,
    SimulationFailedError,
    SimulationReport,
    first_difference,
    lives_in_words,
)

_INVARIANTS_ALONE = (
    "invariants alone were checked: `--compare`, in a test `compare=True`, also compares each life with one without "
    "faults"
)


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
    network: bool = False,
) -> SimulationReport:
    """Run a job many times under faults, in simulated processes, and check what has to hold in the end.

    Each seed is a life of the job: it is killed, stopped and started again, loses containers, repeats attempts, and
    meets stores and streams that are slow or fail. The same seed is the same life. Every stream is a simulated one,
    whatever its system is, and so is the object store. The application's own code is real: it runs once for each
    attempt of each life. It does not reach the network, unless `network` is true. Files that it writes are written, and
    programs that it starts run.

    Without `invariants`, the outputs and stores of each life are compared with those of a life without faults. An
    output that is exactly once has the same messages as often; another has the same ones, and the same last value for
    each key. Lives without faults that differ among themselves show what the inputs alone do not decide, which is then
    not compared; `notes` of the report says so.

    Args:
        app: the application.
        inputs: by input, its messages: for each its value, or a tuple (key, value), as for `TestRunner.input`. Or a
            function that calls the methods `input` and `side_input` of what it gets, as those of a `TestRunner`.
        seeds: how many lives, or which seeds, each 1 or more.
        invariants: functions of inputs, outputs and stores. By stream, they get a list of `OutputMessage`; by store, a
            dict as of the last checkpoint. They raise an AssertionError, or return a text, if something does not hold.
        config: keys of the configuration.
        partitions: how many partitions each stream has.
        late: inputs whose messages may come later than others of their partition, and must make no difference.
        doubled: inputs whose messages may come twice, and must make no difference.
        compare: compare with a life without faults; by default if there are no `invariants`.
        processes: how many worker processes; by default one a core.
        limit_s: the most seconds that a life may take. One that takes longer is broken.
        network: the application's code may reach the network, again in each attempt.

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
        network=network,
    )
    if not report.holds:
        raise SimulationFailedError(report)
    return report


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
    network: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> SimulationReport:
    """As `simulate`, with a loaded configuration, and without the error. `tell` gets a line now and then."""
    began = time.monotonic()
    chosen = list(seeds)
    if not chosen or min(chosen) < 1:
        raise ConfigError("a simulation needs at least one seed, and each is a whole number of 1 or more")
    if importlib.util.find_spec("greenlet") is None:
        raise ConfigError("a simulation needs the package `greenlet`: pip install 'penstock-streams[testing]'")
    job, notes = prepare(app, inputs, config, partitions, late, doubled, invariants, compare, limit_s, network)
    with tempfile.TemporaryDirectory(prefix="penstock-simulate-") as folder:
        report = Search(job, Path(folder), tell).run(chosen, processes or os.cpu_count() or 1)
    report.notes[:0] = notes
    if report.holds and not job.compares and compare is None:
        report.notes.append(_INVARIANTS_ALONE)
    report.seconds = time.monotonic() - began
    return report


_SUBJECT = "penstock.testing.simulation.users:UsersSubject"
_CALM_LIVES = 4
_SHRINK_TRIES = 40
_SHRINK_S = 30.0


class Search:
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
        for each in self._report.errors:  # the report has them too, but may be long in coming
            self._tell(f"found without any fault: {each}")
        reference = Reference.of(lives, {str(each) for each in self._job.exactly_once})
        if self._job.compares:
            self._report.notes += reference.notes(min(self._job.streams.values()))
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
                self._tell(f"{lives_in_words(report.lives)} of {len(seeds):,}")
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
        return replace(whole, shrunk=_failed(seed, best))


def _failed(seed: int, found: Mapping[str, Any]) -> FailedLife:
    decisions = sum(map(bool, found.get("choices", ())))
    traceback, told = found.get("traceback", ""), found.get("told", ())
    return FailedLife(seed, found["broken"], found.get("story", ()), traceback, decisions, told=told)


R = TypeVar("R", bound=int | list[int] | dict[str, Any])
_WORKER = "penstock.testing.simulation.worker"
_GRACE_S = 60.0


class WorkerProcess:
    """A process that lives lives. Python hashes texts in it as `hash_seed` says."""

    def __init__(
        self,
        subject: str,
        *arguments: str,
        folder: Path,
        hash_seed: int = 0,
        limit_s: float = 60.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            subject: `module:name` of the subject.
            arguments: what it is made with, if it is a class.
            folder: for all files of the process: what its last life printed, and the temporary files of its lives,
                which a life that is ended by force leaves. The caller removes it.
            hash_seed: the value of PYTHONHASHSEED.
            limit_s: the seconds after which an answer is given up, if the process itself has not done so.
            environ: further variables of its environment.
        """
        self._limit_s = limit_s
        env = {
            **os.environ,
            **(environ or {}),
            "PYTHONHASHSEED": str(hash_seed),
            "TMPDIR": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._errors = folder / f"errors-{os.urandom(4).hex()}"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-m", _WORKER, subject, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                start_new_session=True,
            )

    def ask(self, request: int | list[int] | dict[str, Any]) -> dict[str, Any]:
        """The report of a life. One that ends its process, or does not come, is a report of that."""
        taken, given = self._process.stdin, self._process.stdout
        if taken is None or given is None:
            raise RuntimeError("the worker process has no pipes")
        timer = threading.Timer(2 * self._limit_s + _GRACE_S, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            taken.write(json.dumps(request).encode() + b"\n")
            taken.flush()
            line = given.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        if not line:
            text = self._errors.read_text("utf-8", "replace").strip()[-4000:]
            return {"broken": [f"the worker process ended with status {self._process.wait()}"], "traceback": text}
        report: dict[str, Any] = json.loads(line)
        if any(each.startswith("the simulation itself") for each in report["broken"]):
            report["traceback"] = self._errors.read_text("utf-8", "replace").strip()[-4000:]
        return report

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def in_parallel(
    workers: list[WorkerProcess], requests: Iterable[R], stop: Callable[[dict[str, Any]], bool]
) -> Iterator[tuple[R, dict[str, Any]]]:
    """The reports of all requests as they come, until `stop` says of one that it is enough."""
    left, lock, reports = iter(requests), threading.Lock(), list[tuple[R, dict[str, Any]]]()
    ready, enough = threading.Condition(lock), False
    running = len(workers)

    def work(worker: WorkerProcess) -> None:
        nonlocal running, enough
        try:
            while True:
                with lock:
                    request = None if enough else next(left, None)
                if request is None:
                    return
                report = worker.ask(request)
                with ready:
                    enough = enough or stop(report)
                    reports.append((request, report))
                    ready.notify()
        finally:
            with ready:
                running -= 1
                ready.notify()

    for each in workers:
        threading.Thread(target=work, args=(each,), daemon=True).start()
    while True:
        with ready:
            while not reports and running:
                ready.wait()
            if not reports:
                return
            found, reports[:] = list(reports), []
        yield from found
