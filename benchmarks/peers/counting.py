"""Parameters and progress of the scripts of all engines, and what those of Bytewax share. It needs no package."""

from __future__ import annotations

import atexit
import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

EVERY = 10
"""A key's count is sent on when it and the last character of the key add up to a multiple of this."""


def parameters() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sys.argv[-1])
    return found


def run_bytewax(given: dict[str, Any], flow: Callable[[], Any], epoch_s: float) -> None:
    """Run a flow as one process of a cluster, with one worker; or only make the files of its recovery."""
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.run import cli_main

    recovery = Path(given["work"], "recovery")
    if given["prepare"]:
        recovery.mkdir()
        init_db_dir(recovery, len(given["addresses"]))
        return
    cli_main(
        flow(),
        process_id=given["process"],
        addresses=given["addresses"],
        epoch_interval=timedelta(seconds=epoch_s),
        recovery_config=RecoveryConfig(str(recovery)),
    )


def begin(pause_s: float = 0.25) -> tuple[dict[str, Any], Path, Counted]:
    """The parameters, the folder, and what counts the messages of a process."""
    given = parameters()
    return given, Path(given["work"]), Counted(given, pause_s)


class Counted:
    """Appends the number of messages that this process has counted, with the time, to `counted-<process>-<start>`."""

    def __init__(self, given: dict[str, Any], pause_s: float) -> None:
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
