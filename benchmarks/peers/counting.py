"""Parameters and progress of the scripts of all engines. It needs no package."""

from __future__ import annotations

import atexit
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

EVERY = 10
"""A key's count is sent on when it and the last character of the key add up to a multiple of this."""


def parameters() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sys.argv[-1])
    return found


def begin() -> tuple[dict[str, Any], Path, Counted]:
    """The parameters, the folder, and what counts the messages of a process that runs until it is killed."""
    given = parameters()
    return given, Path(given["work"]), Counted(given)


class Counted:
    """Appends the number of messages that this process has counted, with the time, to `counted-<process>-<start>`."""

    def __init__(self, given: dict[str, Any], pause_s: float = 0.25) -> None:
        self.messages = 0
        self._path = Path(given["work"], f"counted-{given['process']}-{given['start']}")
        threading.Thread(target=self._run, args=(pause_s,), daemon=True).start()
        atexit.register(self._write)

    def _run(self, pause_s: float) -> None:
        while True:
            self._write()
            time.sleep(pause_s)

    def _write(self) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{time.time():.3f} {self.messages}\n")
