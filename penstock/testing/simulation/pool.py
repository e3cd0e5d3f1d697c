"""The worker processes of a simulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

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
