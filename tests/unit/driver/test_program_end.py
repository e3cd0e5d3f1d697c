"""Programs that end while their jobs run, as processes; bodies in place of run loops."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.processes.warm_python import WarmPython
from tests.support.tools.fixtures import fixture_of

JOBS = r"""
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from penstock.driver.show.progress import ProgressBoard
from penstock.driver.part import StopRequest
from penstock.driver import program
from penstock.driver.job import Job
from penstock.driver.program import former_handlers, stop_on_signals

pool = ThreadPoolExecutor()


def started(name, ends_when=("graceful",), error=None):
    stop = StopRequest()
    job = Job(name, "r", ProgressBoard(), stop)

    def body():
        for request in ends_when:
            getattr(stop, request, threading.Event()).wait()
        how = "at once" if stop.immediate.is_set() else "with a commit"
        pool.submit(os.write, 1, f"{name} stopped {how}\n".encode()).result()
        if error is not None:
            raise error

    job.start(body, lambda: None)
    return job

"""


@dataclass(frozen=True)
class Ended:
    """The outcome of a program."""

    status: int
    out: str
    err: str


Run: TypeAlias = Callable[..., Ended]
python = fixture_of(lambda: WarmPython(JOBS), scope="module")


@pytest.fixture
def run(python: WarmPython, tmp_path: Path) -> Run:
    """Runs a program to its end. It gets the signal, if one is given, while it waits for its jobs."""
    out, err = tmp_path / "out", tmp_path / "err"

    def run(program: str, number: signal.Signals | None = None) -> Ended:
        out.touch()
        err.touch()
        pid = python.start(program, out, err)
        if number is not None:
            wait_until(lambda: "the program ends" in err.read_text(), "its end")
            os.kill(pid, number)
        return Ended(python.wait(pid, DEADLINE_S), out.read_text(), err.read_text())

    return run


@pytest.mark.few(2)
@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('its own')", 1)])
def test_jobs_stop_with_a_last_commit(run: Run, end: str, status: int) -> None:
    found = run(f"started('a-1')\nstarted('b-1')\n{end}")
    assert found.status == status
    assert sorted(found.out.splitlines()) == ["a-1 stopped with a commit", "b-1 stopped with a commit"]
    assert all(found.err.count(f"the program ends while job {name} runs") == 1 for name in ("a-1", "b-1"))
    assert found.err.count("Traceback") == (1 if "ValueError" in end else 0)


def test_a_program_whose_jobs_have_ended_says_nothing(run: Run) -> None:
    assert run("started('a-1').stop()") == Ended(0, "a-1 stopped with a commit\n", "")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("number", "handlers"),
    [
        (signal.SIGINT, ""),
        (signal.SIGINT, "stop_on_signals(job, job.ending, former_handlers())"),
        (signal.SIGTERM, "stop_on_signals(job, job.ending, former_handlers())"),
        (signal.SIGTERM, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))"),
    ],
)
def test_a_signal_meanwhile_stops_at_once(run: Run, number: signal.Signals, handlers: str) -> None:
    found = run(f"job = started('a-1', ['immediate'])\n{handlers}", number)
    assert (found.status, found.out) == (0, "a-1 stopped at once\n")
    assert ("job a-1 stops at once" in found.err) == ("stop_on" in handlers)
    assert "Traceback" not in found.err


def test_a_signal_overtakes_the_orderly_request(run: Run) -> None:
    program = """import logging
class Late(logging.Handler):
    def emit(self, record):
        os.kill(os.getpid(), signal.SIGINT)
        job._stop.immediate.wait(20)
logging.getLogger("penstock").addHandler(Late())
program._PATIENCE_SECONDS = 30
job = started("a-1", ["immediate"])"""
    assert run(program) == Ended(0, "a-1 stopped at once\n", "")


def test_a_program_does_not_wait_forever(run: Run) -> None:
    found = run("program._PATIENCE_SECONDS = 0.1\nstarted('a-1', ['immediate', 'never'])")
    assert (found.status, found.out) == (0, "")
    assert "job a-1 has not ended" in found.err


def test_an_error_that_nobody_asked_for_is_logged(run: Run) -> None:
    fails = "started('b-1', [], ValueError('of b')).ending.done.wait()"
    found = run(f"started('a-1', error=OSError('of a'))\n{fails}")
    assert found.status == 0
    assert found.err.splitlines()[1:] == ["job a-1 failed: of a", "job b-1 failed: of b"]


def test_an_error_that_the_program_has_is_not_logged(run: Run) -> None:
    fails = "started('a-1', [], ValueError('of a'))"
    program = f"from contextlib import suppress\nwith suppress(ValueError):\n    {fails}.await_termination()"
    assert run(program) == Ended(0, "a-1 stopped with a commit\n", "")


def test_a_forked_process_leaves_the_jobs_of_its_parent_alone(run: Run) -> None:
    fork = "child = multiprocessing.get_context('fork').Process(target=print, args=('in the child',), daemon=True)"
    found = run(f"started('a-1')\n{fork}\nchild.start()\nchild.join()\nprint(child.exitcode, flush=True)")
    assert (found.status, found.out) == (0, "in the child\n0\na-1 stopped with a commit\n")
    assert found.err.count("the program ends") == 1
