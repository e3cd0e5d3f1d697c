"""The search for a life that is broken, in worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from penstock.testing.simulation.calls import FoundCall
from penstock.testing.simulation.choices import shrink
from penstock.testing.simulation.preparation import REFERENCE, UsersJob
from penstock.testing.simulation.results import (
    FailedLife,
    Reference,
    Results,
    SimulationReport,
    first_difference,
    lives_in_words,
)

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
