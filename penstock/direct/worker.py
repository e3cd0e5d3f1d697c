"""The driver's side of the direct worker: its process, one run of a batch in it, and the messages between the two.

Messages are values, pickled over a socket that only driver and worker have.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TypeAlias

from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.host.position_page import spots_in
from penstock.host.posix import driver_mark, ending
from penstock.system.base import WriterIdentity
from penstock.wire.containers import Lane, ProcessDeath
from penstock.wire.ports import OtherWayError, PackedPackage
from penstock.wire.security import TlsIdentity


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One run of a batch."""

    epoch: int
    batch: Batch
    portions: Mapping[int, Sequence[tuple[int, Portion]]]
    lanes: tuple[Lane, ...]
    writer: WriterIdentity
    secret: str = field(repr=False)
    tls: TlsIdentity | None
    limit_bytes: int
    """The run breaks off once its messages take more memory than this."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker has loaded the application, and takes orders."""


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """The worker is alive. `progress` changes with each message that its own stages process or write; it is None while
    the worker waits for containers, which give signs of their own."""

    progress: object
    writes: bool = False
    """True while the outputs are being written."""


@dataclass(frozen=True, slots=True)
class RunReports:
    """The run is complete: the payloads of all reports."""

    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RunBreak:
    """The run broke off. `why`: the cause in words."""

    why: str
    declined: bool = False
    """True if it broke off before anything but the inputs was touched, and the worker is as before. Otherwise the
    worker takes no more orders."""


Answer: TypeAlias = WorkerReady | SignOfLife | RunReports | RunBreak


logger = logging.getLogger(__name__)
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}
_LOOK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 1.0
"""The end of a process may be seen a little after that of its connection."""
_PAGE_BYTES = 1 << 22
_NOTHING: Mapping[str, str] = {}


class DirectWorker:
    """One process that runs batches, one at a time. Used by one thread, except for `kill` and `writes`."""

    def __init__(
        self, package: PackedPackage, silence_s: float, standstill_s: float, environment: Mapping[str, str] = _NOTHING
    ) -> None:
        """Start the process, without waiting for it.

        Args:
            package: the job.
            silence_s: the process is killed if it gives no sign for this long.
            standstill_s: it is killed if it processes and writes nothing for this long.
            environment: the variables that it has beside those of this process.

        Raises:
            OSError: no process can be started.
        """
        self._silence_s, self._standstill_s = silence_s, standstill_s
        own, other = socket.socketpair()
        self._page = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
        page = self._page.fileno()
        with other:
            path = os.pathsep.join(filter(None, sys.path))
            command = [sys.executable, "-m", "penstock.direct", str(other.fileno()), str(os.getpid()), str(page)]
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    env={**_ENVIRONMENT, **os.environ, **environment, **driver_mark(), "PYTHONPATH": path},
                    pass_fds=[other.fileno(), page],
                )
            except BaseException:
                own.close()
                self._page.close()
                raise
        self._connection = Connection(own.detach())
        self._greeting = threading.Thread(target=self._greet, args=(package.data,), name="direct-start", daemon=True)
        self._ready = False
        self.failure = ""
        """Why it did not start, in words; empty if it did, or still may."""
        self.is_cancelled = False
        """True once `kill` was called."""
        self.writes = False
        """True while the outputs are being written. Read by any thread."""
        self._ended_by_itself = False
        self.death: ProcessDeath | None = None
        """Its end while it ran a batch, unless somebody here ended it."""
        self._greeting.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True if it takes no batches any more."""
        return bool(self.failure) or self.is_cancelled or self._process.poll() is not None

    @property
    def is_ready(self) -> bool:
        """True once it takes batches, and until it ends."""
        return self._ready and not self.has_ended

    def run(self, order: RunOrder) -> tuple[bytes, ...]:
        """Run a batch. Returns the payloads of the reports. If this raises anything but an error that says that the
        batch was declined, the process has ended.

        Raises:
            OtherWayError: the run broke off.
        """
        try:
            self._connection.send_bytes(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))
            return self._await_reports()
        except (EOFError, OSError) as error:
            how = self._end(_LAST_WORDS_SECONDS)
            doing = ""
            if self._ended_by_itself and (spots := spots_in(os.pread(self._page.fileno(), _PAGE_BYTES, 0))):
                self.death = ProcessDeath(f"the direct worker (process {self.pid})", self._process.returncode, spots)
                doing = f" while it processed {' and '.join(map(str, spots))}"
            raise OtherWayError(f"the direct worker (process {self.pid}) {how}{doing}") from error
        except OtherWayError as error:
            if not error.declined:
                self._end()
            raise
        except BaseException:
            self._end()
            raise
        finally:
            self.writes = False

    def kill(self) -> None:
        """End the process at once. From any thread; a run that goes on in it breaks off."""
        self.is_cancelled = True
        self._process.kill()

    def close(self) -> None:
        """End the process, and wait for its end."""
        self._end()
        self._greeting.join()
        self._connection.close()
        self._page.close()

    def _end(self, wait_s: float = 0.0) -> str:
        """Kill the process if it still lives after this time. Returns its end in words."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        lives = self._process.poll() is None
        self._ended_by_itself = not lives and not self.is_cancelled
        self._process.kill()
        status = self._process.wait()
        return "was ended" if self.is_cancelled else "did not answer" if lives else ending(status)

    def _greet(self, package: bytes) -> None:
        try:
            self._connection.send_bytes(package)
            answer = self._receive()
            while answer is None:
                answer = self._receive()
            if isinstance(answer, WorkerReady):
                self._ready = True
            elif isinstance(answer, RunBreak):
                self.failure = answer.why
        except (EOFError, OSError):
            self.failure = f"it {self._end(_LAST_WORDS_SECONDS)}"

    def _receive(self) -> Answer | None:
        """The next answer; None if none came for a moment. Raises EOFError if none can come any more."""
        if not self._connection.poll(_LOOK_SECONDS):
            if self._process.poll() is None or self._connection.poll(0):
                return None
            raise EOFError
        answer: Answer = self._connection.recv()
        return answer

    def _await_reports(self) -> tuple[bytes, ...]:
        seen: object = None
        heard = moved = time.monotonic()
        while True:
            answer = self._receive()
            if answer is None:
                if time.monotonic() - heard > self._silence_s:
                    raise OtherWayError(f"the direct worker gave no sign for {self._silence_s:.0f} s, and was killed")
                continue
            heard = time.monotonic()
            match answer:
                case RunReports(payloads):
                    return payloads
                case RunBreak(why, declined):
                    raise OtherWayError(why, declined=declined)
                case SignOfLife(progress, writes):
                    self.writes = writes
                    if progress is None or progress != seen:
                        seen, moved = progress, heard
                    elif heard - moved > self._standstill_s:
                        what = "wrote" if writes else "processed"
                        raise OtherWayError(
                            f"the direct worker {what} nothing for {self._standstill_s:.0f} s, and was killed"
                        )
                case WorkerReady():
                    pass
