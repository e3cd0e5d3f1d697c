"""Kills a driver and its JVM at a point, from whichever of its processes comes to the point."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil

from tests.support.faults import Fault, Faults


class Killer(Faults):
    """As `Faults`, but `kill` ends the driver whose id is in the file `driver.pid`, and its JVM."""

    @property
    def _pid(self) -> Path:
        return self.folder / "driver.pid"

    def is_driver(self) -> None:
        """This process is the driver."""
        self._pid.write_text(str(os.getpid()), encoding="utf-8")

    def _strike(self, fault: Fault) -> None:
        if fault.do != "kill":
            super()._strike(fault)
            return
        driver = psutil.Process(int(self._pid.read_text(encoding="utf-8")))
        for child in driver.children():
            if child.name().startswith("java"):
                child.send_signal(signal.SIGKILL)
        driver.send_signal(signal.SIGKILL)
        time.sleep(60)  # whoever this is ends with it
