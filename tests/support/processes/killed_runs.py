"""`penstock run` in a process of its own, which is killed once its job has come somewhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.processes.python import PENSTOCK, run_python, variables
from tests.support.tools.places import ROOT

_WAIT_S = 240.0


class KilledRun:
    """Runs of one application with the same configuration, one after the other."""

    def __init__(self, folder: Path, app: str, config: Mapping[str, object], environ: Mapping[str, str] | None = None):
        """`app`: the text of a module with the application `app`."""
        self._folder = folder
        (folder / "killed_job.py").write_text(app, encoding="utf-8")
        keys = {"spark.master": "local[2]", "task.commit.ms": "300", **config}
        options = [part for key, text in keys.items() for part in ("-c", f"{key}={text}")]
        self._arguments = [*PENSTOCK, "run", "killed_job.py:app", *options]
        self._environ: dict[str, str | None] = {"PYTHONPATH": str(ROOT), "SPARK_HOME": None, **(environ or {})}

    def kill_once(
        self, reached: Callable[[], object], meanwhile: Callable[[], object] = lambda: None, every_s: float = 0.5
    ) -> str:
        """Start a driver, and kill it once `reached()` is true. `meanwhile` is called between two looks. Returns what
        the driver printed."""
        printed = self._folder / "driver.log"
        with printed.open("w") as log:
            command, environ = [sys.executable, *self._arguments], variables(self._environ)
            driver = subprocess.Popen(command, cwd=self._folder, env=environ, stdout=log, stderr=log)
            try:
                end = time.monotonic() + _WAIT_S
                while not reached():
                    assert driver.poll() is None, printed.read_text()
                    assert time.monotonic() < end, printed.read_text()
                    meanwhile()
                    time.sleep(every_s)
            finally:
                driver.send_signal(signal.SIGKILL)
                driver.wait()
        return printed.read_text()

    def run_to_the_end(self) -> str:
        """Read all that there is. Returns what the driver printed."""
        done = run_python(*self._arguments, "--until", "latest", folder=self._folder, environ=self._environ)
        return done.stdout + done.stderr
