"""A program that ends with the process that started it, whatever ends that one, and takes its folder along."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

_GUARD = """
exec 3<&0 </dev/null
(
    read -r _ <&3 && exit
    kill -9 $$
    tries=0
    while kill -0 $$ 2>/dev/null && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    rm -rf -- "$0"
) &
exec "$@" 3<&-
"""
"""The shell becomes the program. Beside it waits a shell for the end of a pipe that this process holds: it comes with
this process's death as well, and then that shell kills the program and removes the folder. A line on the pipe says that
the program has ended already, and its process id is another's from now on."""
_POLL_S = 0.01


class GuardedProcess:
    """A running program. One thread at a time uses it.

    Args:
        command: the program and its arguments.
        folder: removed if this process dies while the program runs.
        output: what the program writes goes to the end of this file.
    """

    def __init__(self, command: Sequence[str], folder: Path, output: Path) -> None:
        with output.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - a program of this machine, with our own arguments
                ["/bin/sh", "-c", _GUARD, str(folder), *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                process_group=0,  # Ctrl-C in a terminal is for the tests, and they say when the program ends
            )
        self._frozen = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, negative after a signal; None while the program runs."""
        status = self._process.poll()
        if status is not None:
            self._release()
        return status

    def freeze(self) -> None:
        """Stop the program where it is (SIGSTOP), until `resume`."""
        self._signal(signal.SIGSTOP)
        self._frozen = True

    def resume(self) -> None:
        """Let a frozen program continue. Programs that are not frozen are left as they are."""
        if self._frozen:
            self._signal(signal.SIGCONT)
            self._frozen = False

    def terminate(self, within_s: float) -> bool:
        """Ask the program to end, and wait. Returns True if it did; after `within_s` it is killed."""
        self._signal(signal.SIGTERM)
        self.resume()
        deadline = time.monotonic() + within_s
        while self.status is None:
            if time.monotonic() > deadline:
                self.kill()
                return False
            time.sleep(_POLL_S)
        return True

    def kill(self) -> None:
        """End the program at once (SIGKILL), and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._release()

    def _signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)  # which looks first whether the program is still there

    def _release(self) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(BrokenPipeError):
                pipe.write(b"\n")
                pipe.flush()
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
