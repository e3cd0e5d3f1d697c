"""Faults at named points of a job, from a plan in a file: each strikes exactly as often as it says, over all restarts.

    faults/plan.json       what is to happen where; read at every point, so that a test may change it at any time
    faults/visits/<name>   as many bytes as there were visits to the fault's point
    faults/reached/<name>  somebody is blocked there
    faults/open/<gate>     whoever is blocked at the gate goes on
    faults/trace.jsonl     every point that anybody passed, in order
    faults/driver.pid      the driver that `kill driver` ends

The folder lies beside the job root: drivers, containers and tests find it from the configuration alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import psutil

from penstock.errors import PenstockError, RetryableError

_POLL_SECONDS = 0.01
_BLOCK_SECONDS = 300.0
"""Nobody stays blocked for longer: a test that failed leaves no process behind."""


@dataclass(frozen=True)
class Fault:
    """An action at a point: from the visit after the first `skip` on, `times` times."""

    name: str
    point: str
    do: Literal["kill", "kill driver", "kill executor", "block", "sleep", "retryable", "fail"]
    """`kill` ends the process that is at the point, `kill driver` the driver and its JVM, from whichever process;
    `kill executor` the JVM that this process descends from."""
    times: int = 1
    skip: int = 0
    task: int | None = None
    """Only visits of this task count."""
    backend: str | None = None
    """Only visits of the backend that wraps this one count."""
    gate: str = "gate"
    seconds: float = 0.0

    def is_meant(self, point: str, backend: str | None, task: int | None) -> bool:
        return self.point == point and self.task in {None, task} and self.backend in {None, backend}


class Faults:
    """The plan of one job, and what came of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("visits", "reached", "open"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    @classmethod
    def of_root(cls, job_root: str) -> Faults:
        """The faults of the job with this job root."""
        path = unquote(urlsplit(job_root).path) if "://" in job_root else job_root
        return cls(Path(path).parent / "faults")

    # What the test says and asks.

    def plan(self, *faults: Fault) -> None:
        """From now on these count, and no others."""
        assert len({fault.name for fault in faults}) == len(faults), "a fault's name is its place in the records"
        temporary = self.folder / f"plan-{os.getpid()}.tmp"
        temporary.write_text(json.dumps([asdict(fault) for fault in faults]), encoding="utf-8")
        temporary.replace(self.folder / "plan.json")

    def open(self, gate: str = "gate") -> None:
        """Let everybody go on who is blocked there, or will be."""
        (self.folder / "open" / gate).touch()

    def is_reached(self, name: str) -> bool:
        """True if somebody is, or was, blocked by the fault."""
        return (self.folder / "reached" / name).exists()

    def fired(self, name: str) -> int:
        """The number of times that the fault has struck."""
        (fault,) = (fault for fault in self._faults() if fault.name == name)
        return max(0, min(self._visits(fault) - fault.skip, fault.times))

    def left(self) -> list[str]:
        """The faults that have not struck as often as they should."""
        return [fault.name for fault in self._faults() if self.fired(fault.name) < fault.times]

    def trace(self, *points: str) -> list[dict[str, Any]]:
        """Everything that was passed, in order; with `points`, only those."""
        file = self.folder / "trace.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [each for each in found if not points or each["point"] in points]

    # What the job does.

    def is_driver(self) -> None:
        """This process is the driver."""
        (self.folder / "driver.pid").write_text(str(os.getpid()), encoding="utf-8")

    def at(
        self, point: str, *, backend: str | None = None, task: int | None = None, checkpoint: str | None = None
    ) -> None:
        """The caller is at a point: it goes on, or meets what is planned for it."""
        struck = [fault for fault in self._faults() if fault.is_meant(point, backend, task) and self._strikes(fault)]
        self._note({"point": point, "backend": backend, "task": task, "checkpoint": checkpoint, "pid": os.getpid()})
        for fault in struck:
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        match fault.do:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)  # the signal is on its way
            case "kill driver":
                driver = psutil.Process(int((self.folder / "driver.pid").read_text(encoding="utf-8")))
                _kill([*filter(_is_jvm, driver.children()), driver])
            case "kill executor":
                _kill(list(filter(_is_jvm, psutil.Process().parents()))[:1])
            case "block":
                (self.folder / "reached" / fault.name).touch()
                deadline = time.monotonic() + _BLOCK_SECONDS
                while not (self.folder / "open" / fault.gate).exists() and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
            case "sleep":
                time.sleep(fault.seconds)
            case "retryable":
                raise RetryableError(f"injected: `{fault.name}` may pass")
            case "fail":
                raise PenstockError(f"injected: `{fault.name}` is final")

    def _strikes(self, fault: Fault) -> bool:
        """Count a visit, atomically among all processes; whether the fault strikes at it."""
        with (self.folder / "visits" / fault.name).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = os.fstat(file.fileno()).st_size
            file.write(b"x")
            file.flush()
        return fault.skip <= before < fault.skip + fault.times

    def _note(self, fields: dict[str, Any]) -> None:
        descriptor = os.open(self.folder / "trace.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, json.dumps(fields).encode() + b"\n")
        finally:
            os.close(descriptor)

    def _visits(self, fault: Fault) -> int:
        file = self.folder / "visits" / fault.name
        return file.stat().st_size if file.exists() else 0

    def _faults(self) -> Iterator[Fault]:
        file = self.folder / "plan.json"
        if file.exists():
            yield from (Fault(**fields) for fields in json.loads(file.read_text(encoding="utf-8")))


def _is_jvm(process: psutil.Process) -> bool:
    return process.name().startswith("java")


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.send_signal(signal.SIGKILL)
    time.sleep(60)  # this process is one of them, or ends with them
