"""The driver's side of the direct worker: its process, and one run of a batch in it."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from penstock.direct.messages import Answer, Broken, Ready, Reports, RunOrder, Sign
from penstock.host.machine import ending
from penstock.wire.package import PackedPackage
from penstock.wire.ports import OtherWayError

logger = logging.getLogger(__name__)
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}
_LOOK_SECONDS = 0.5


class DirectWorker:
    """One process that runs batches, one at a time. Used by one thread, except for `kill` and `writes`."""

    def __init__(self, package: PackedPackage, silence_s: float, standstill_s: float) -> None:
        """Start the process, without waiting for it.

        Args:
            package: the job.
            silence_s: the process is killed if it gives no sign for this long.
            standstill_s: it is killed if it processes and writes nothing for this long.

        Raises:
            OSError: no process can be started.
        """
        self._silence_s, self._standstill_s = silence_s, standstill_s
        own, other = socket.socketpair()
        with other:
            environment = {**_ENVIRONMENT, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            command = [sys.executable, "-m", "penstock.direct", str(other.fileno()), str(os.getpid())]
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command, stdin=subprocess.DEVNULL, stdout=2, env=environment, pass_fds=[other.fileno()]
                )
            except BaseException:
                own.close()
                raise
        self._connection = Connection(own.detach())
        self._greeting = threading.Thread(target=self._greet, args=(package.data,), name="direct-start", daemon=True)
        self._ready = False
        self._failure = ""
        self._killed = False
        self.writes = False
        """True while the outputs are being written. Read by any thread."""
        self._greeting.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """True once it takes batches, and until it ends."""
        return self._ready and not self._killed and self._process.poll() is None

    @property
    def failure(self) -> str:
        """Why it did not start, in words; empty if it did, or still may."""
        return self._failure

    def run(self, order: RunOrder) -> tuple[bytes, ...]:
        """Run a batch. Returns the payloads of the reports. If this raises, the process has ended.

        Raises:
            OtherWayError: the run broke off.
        """
        try:
            self._connection.send_bytes(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))
            return self._await_reports()
        except (EOFError, OSError) as error:
            raise OtherWayError(f"the direct worker (process {self.pid}) {self._end()}") from error
        except BaseException:
            self._end()
            raise
        finally:
            self.writes = False

    def kill(self) -> None:
        """End the process at once. From any thread; a run that goes on in it breaks off."""
        self._killed = True
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """End the process, and wait for its end."""
        self._end()
        self._greeting.join()
        self._connection.close()

    def _end(self) -> str:
        """Kill the process if it still lives. Returns its end in words."""
        killed, status = self._killed, self._process.poll()
        self.kill()
        after = self._process.wait()
        return "was ended" if killed else "did not answer" if status is None and after == -9 else ending(after)

    def _greet(self, package: bytes) -> None:
        try:
            self._connection.send_bytes(package)
            answer: Answer = self._connection.recv()
            if isinstance(answer, Ready):
                self._ready = True
            elif isinstance(answer, Broken):
                self._failure = answer.why
        except (EOFError, OSError):
            self._failure = "" if self._killed else self._end()

    def _await_reports(self) -> tuple[bytes, ...]:
        seen: object = None
        heard = moved = time.monotonic()
        while True:
            if not self._connection.poll(_LOOK_SECONDS):
                if time.monotonic() - heard > self._silence_s:
                    raise OtherWayError(f"the direct worker gave no sign for {self._silence_s:.0f} s, and was killed")
                continue
            answer: Answer = self._connection.recv()
            heard = time.monotonic()
            match answer:
                case Reports(payloads):
                    return payloads
                case Broken(why, too_large):
                    raise OtherWayError(why, too_large=too_large)
                case Sign(progress, writes):
                    self.writes = writes
                    if progress is None or progress != seen:
                        seen, moved = progress, heard
                    elif heard - moved > self._standstill_s:
                        what = "wrote" if writes else "processed"
                        raise OtherWayError(
                            f"the direct worker {what} nothing for {self._standstill_s:.0f} s, and was killed"
                        )
                case Ready():
                    pass
