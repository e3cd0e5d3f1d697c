"""Shared by the demos: running commands, and killing processes of a job while it runs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from penstock.testing.kafka_broker import KafkaBroker

PENSTOCK = (sys.executable, "-m", "penstock.cli")
PROGRAM = Path(sys.executable).with_name("penstock")
HOME = Path(".penstock")
"""The default home of `penstock`: its commands find jobs here without an option."""
DEADLINE_S = 240

Kind = Literal["driver", "container", "worker", "broker"]
"""The process to kill: the driver, a container, a Python worker of Spark, or the Kafka broker."""


def run(command: Sequence[str], stdin: subprocess.Popen[bytes] | None = None) -> None:
    """Run a command. If it fails, exit with its status."""
    status = subprocess.run(command, stdin=stdin.stdout if stdin else None, check=False).returncode
    if status:
        sys.exit(status)


@dataclass(frozen=True, slots=True)
class Crashes:
    """A job whose processes are killed while it runs.

    Each kill waits until the job has committed a batch since the previous kill, so that there is state to lose.
    """

    job: str
    command: Sequence[str]
    """Runs the job to the end of its inputs."""
    broker: KafkaBroker | None = None
    """The broker of the job's streams, if it may be killed too."""

    def run(self, kinds: Sequence[Kind], seed: int) -> None:
        """Kill a process for each entry of `kinds`, in an order that the seed decides, then let the job finish."""
        print(f"seed {seed}: {len(kinds)} kills of {', '.join(sorted(set(kinds)))}", flush=True)
        chance = random.Random(seed)
        order = list(kinds)
        chance.shuffle(order)
        driver = subprocess.Popen(self.command)
        batch = 0
        try:
            for number, kind in enumerate(order, 1):
                checkpoint = self.await_commit(driver, batch)
                time.sleep(chance.uniform(0.0, 1.0))  # to hit any moment of a batch or commit
                found = self.find(kind, driver.pid)
                if driver.poll() is not None or not found:
                    sys.exit(f"the job ended after {number - 1} of {len(order)} kills")
                victim = chance.choice(found)
                os.kill(victim, signal.SIGKILL)
                batch = checkpoint["batch"]
                place = f"after checkpoint {checkpoint['id']}, batch {batch}"
                print(f"kill {number}: kill -9 {victim} ({kind}) {place}", flush=True)
                if kind == "driver":
                    driver.wait()
                    driver = subprocess.Popen(self.command)
                elif kind == "broker" and self.broker is not None:
                    self.broker.kill()  # waits until it has ended
                    self.broker.start()
            if driver.wait():
                sys.exit(driver.returncode)
        finally:
            driver.kill()
            driver.wait()

    def find(self, kind: Kind, driver: int) -> list[int]:
        """The pids of the processes of a kind."""
        if kind == "broker":
            return [self.broker.pid] if self.broker is not None else []
        return {"driver": lambda pid: [pid], "container": containers, "worker": workers}[kind](driver)

    def await_commit(self, driver: subprocess.Popen[bytes], batch: int) -> dict[str, Any]:
        """Wait until the driver has containers and a checkpoint of a later batch. Returns the checkpoint."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and driver.poll() is None:
            found = last_commit(self.job)
            if found is not None and found["batch"] > batch and containers(driver.pid):
                return found
            time.sleep(0.1)
        sys.exit(f"nothing to kill: the job ended, or committed no batch after {batch} within {DEADLINE_S} s")


def last_commit(job: str) -> dict[str, Any] | None:
    """The last checkpoint that a commit wrote, or None before the first commit."""
    done = subprocess.run([*PENSTOCK, "checkpoint", "list", job, "--json"], capture_output=True, check=False)
    records = json.loads(done.stdout) if done.returncode == 0 else []
    return next((record for record in reversed(records) if record["kind"] == "commit"), None)


def containers(driver: int) -> list[int]:
    """The pids of the driver's containers. A container's command line ends with the pid of its executor."""
    executors = {str(child.pid) for child in _descendants(driver)}
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "penstock.container" in command and command[-1] in executors:
            found.append(process.pid)
    return found


def workers(driver: int) -> list[int]:
    """The pids of the driver's Python workers, without the process from which Spark forks them."""
    found = []
    for process in _descendants(driver):
        try:
            parent = process.parent()
            if parent is not None and all("worker_daemon" in " ".join(each.cmdline()) for each in (process, parent)):
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
