"""The ground of the tests of signals and kills: processes that hear Ctrl-C, and say what they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.cluster.test_signals import Run
from tests.support.processes.inspection import HEARD, write_stacks

WAITS = """
import threading

def waits_for_ever():
    print("waits", flush=True)
    threading.Event().wait()

waits_for_ever()
"""


def test_a_script_hears_ctrl_c_though_the_tests_ignore_it(tmp_path: Path) -> None:
    """As they do where a shell started them in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = Run(tmp_path, ["-c", WAITS])
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        run.await_log("waits")
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.process.wait(20) == -signal.SIGINT
    finally:
        run.process.kill()


def test_a_process_that_hangs_shows_its_stacks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", WAITS], env={**os.environ, **HEARD}, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        while b"waits" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
        write_stacks([psutil.Process(process.pid)], log)
        assert process.wait(20) == -signal.SIGABRT
    finally:
        process.kill()
    assert "in waits_for_ever" in log.read_text()
