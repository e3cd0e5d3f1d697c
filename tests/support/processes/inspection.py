"""Processes of a test: what they do on Ctrl-C, and what they were doing when they did not end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

HEARD = {"PYTHONFAULTHANDLER": "1"}
"""The environment of a Python process that `write_stacks` can ask."""
_ANSWER_S = 10.0
_SHOWN = 60_000
"""Characters of each log."""


def hear_ctrl_c() -> None:
    """For `preexec_fn`: the new process does not ignore SIGINT, though the tests may. A shell that starts them in the
    background ignores it for them, processes inherit that, and a job leaves it so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def write_stacks(processes: Sequence[psutil.Process], log: Path) -> None:
    """Have processes write the stacks of all their threads: JVMs to `log`, which is their output, Python processes to
    their standard error. Those end with it; parents come before their children.
    """
    for jvm in [process for process in processes if _runs(process, "java")]:
        seen = log.stat().st_size
        if _signalled(jvm, signal.SIGQUIT):
            _await(lambda: b"Heap" in log.read_bytes()[seen:] or _has_ended(jvm))  # noqa: B023
    for process in reversed([process for process in processes if _runs(process, "python")]):
        if _signalled(process, signal.SIGABRT):
            _await(lambda: _has_ended(process))  # noqa: B023


def containers_of(executors: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Live containers of executors. One whose parent, a worker, is gone is no descendant any more; it names its
    executor."""
    pids = {str(process.pid) for process in executors}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "penstock.container" in command and command[-1] in pids and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def containers_here() -> list[psutil.Process]:
    """Live containers of the Spark session in this process, also those of runs that are over."""
    return containers_of(psutil.Process().children(recursive=True))


def print_logs(driver: Path, folder: Path) -> None:
    """The ends of a driver's log and of its containers' logs, which are somewhere in the folder."""
    for log in (driver, *sorted(folder.rglob("container-*.log"))):
        print(f"{log.name}:", log.read_text(encoding="utf-8", errors="replace")[-_SHOWN:], sep="\n")


def _runs(process: psutil.Process, program: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name().startswith(program)
    return False


def _signalled(process: psutil.Process, number: int) -> bool:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
        return True
    return False


def _has_ended(process: psutil.Process) -> bool:
    """Without taking its exit status from the one who waits for it."""
    with contextlib.suppress(psutil.Error):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _ANSWER_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
