"""The drivers of the soak: processes that run the job, and everything that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.soak.waits import DEADLINE_S, wait_for

START = "PENSTOCK_SOAK_START"
"""A variable that every process of a start has, with its number."""
SOAK = "PENSTOCKSOAK"
TOKEN = f"{os.getpid()}-{time.time_ns()}"
"""Tells the processes of this soak from those of another one."""


class Driver:
    """A process that runs the job, with everything it started."""

    def __init__(self, folder: Path, number: int, config: Path, environ: dict[str, str]) -> None:
        self.number = number
        self.path = folder / f"driver-{number}.log"
        with self.path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", "run", "tests.soak.job:app", "--config", str(config)],
                cwd=folder,
                env={**environ, START: str(number)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""

    def processes(self) -> list[psutil.Process]:
        """Everything that lives and was started by it, itself included."""
        return of_starts({self.number})

    def named(self, part: str) -> list[psutil.Process]:
        """Its processes whose command has this part, as a word."""
        return [p for p in self.processes() if part in command_of(p)]

    def containers(self) -> list[psutil.Process]:
        return [p for p in self.named("penstock.container") if command_of(p)[0] != "/bin/sh"]

    def jvms(self) -> list[psutil.Process]:
        return [p for p in self.processes() if "java" in Path((command_of(p) or [""])[0]).name]

    def workers(self) -> list[psutil.Process]:
        """Spark's Python workers: children of the process that they are forked from."""
        daemons = self.named("penstock.spark.workers.worker_daemon")
        pids = {p.pid for p in daemons}
        return [p for p in daemons if _parent(p) in pids]

    def direct(self) -> list[psutil.Process]:
        return self.named("penstock.direct")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def ended(self, what: str) -> int:
        """Wait for its end; its exit status."""
        wait_for(lambda: not self.running, f"{what}: the end of the driver of start {self.number}")
        return int(self.process.returncode)

    def clean_up(self) -> None:
        """End everything that it started."""
        while found := self.processes():
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.05)
        self.process.wait(DEADLINE_S)


def command_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _parent(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error):
        return process.ppid()
    return None


def of_starts(numbers: set[int] | None = None) -> list[psutil.Process]:
    """The living processes of these starts of this soak, or of all."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            environ = process.environ()
            if environ.get(SOAK) == TOKEN and START in environ and (numbers is None or int(environ[START]) in numbers):
                found.append(process)
    return found


def send(signal_number: int, processes: list[psutil.Process]) -> None:
    """Send a signal to those that still live."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.Signals(signal_number))
