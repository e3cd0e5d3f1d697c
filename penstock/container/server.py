"""The Flight server of a container."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import orjson
import psutil
import pyarrow as pa
import pyarrow.flight as flight

from penstock.api.shipped import read_shipped
from penstock.container.auth import SecretCheck
from penstock.container.container import Container, JobPackage, RunningAttempt
from penstock.container.protocol import (
    AttemptCall,
    CleanUpCall,
    CommitCall,
    EndCall,
    FinishCall,
    OpenCall,
    PlainCall,
    StartRun,
    dump,
    load,
)
from penstock.container.tls import TlsIdentity
from penstock.errors import PenstockError
from penstock.runtime.attempt import new_token
from penstock.runtime.context import OperatorFailedError
from penstock.runtime.failure import failed_attempt
from penstock.runtime.packet import PACKET_SCHEMA, Packet, from_batch, split_by_size, to_batch
from penstock.state.engines.engine import EngineFailedError

logger = logging.getLogger(__name__)
BEAT_SECONDS = 0.5
_PROGRESS_SECONDS = 0.2
T = TypeVar("T")


class ContainerServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one container at one location. A container has two of these: a Unix socket and a port."""

    def __init__(
        self,
        location: str,
        container: Container,
        check: SecretCheck,
        stop: Callable[[], None],
        tls: TlsIdentity | None = None,
    ) -> None:
        middleware = {"secret": check}
        if tls is None:
            super().__init__(location, middleware=middleware)
        else:
            # Mutual: nothing of a call is read before the caller has proved that it has the run's key.
            super().__init__(
                location,
                tls_certificates=[(tls.certificate, tls.key)],
                verify_client=True,
                root_certificates=tls.certificate,
                middleware=middleware,
            )
        self._container = container
        self._stop = stop
        self._process = psutil.Process()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Attempts of some tasks: packets in, packets out, at the same time."""
        call = load(AttemptCall, descriptor.command)
        writer.begin(PACKET_SCHEMA)
        running: dict[int, RunningAttempt] = {}
        try:
            failed = self._start_attempts(call, running)
            for chunk in reader:
                _send(writer, self._outputs(chunk.data, running))
            _send(writer, failed)
            for task in list(running):
                _send(writer, self._container.finish(running[task]))
                del running[task]
        except PenstockError as error:
            raise flight.FlightServerError(str(error)) from error
        finally:
            for attempt in running.values():
                self._container.abandon(attempt)

    def _outputs(self, batch: pa.RecordBatch, running: Mapping[int, RunningAttempt]) -> Iterator[Packet]:
        """Feed packets to their attempts, one by one: what comes out of one is sent before there is too much of it."""
        for packet in from_batch(batch):
            if packet.dest in running:
                yield from self._container.process(running[packet.dest], packet)

    def _start_attempts(self, call: AttemptCall, running: dict[int, RunningAttempt]) -> list[Packet]:
        """Begin an attempt for each task. Packets of those whose `init` or store failed come back: they run no
        further."""
        failed: list[Packet] = []
        for task in call.tasks:
            try:
                running[task] = self._container.start_attempt(call, task)
            except (OperatorFailedError, EngineFailedError) as error:
                topology, settings = self._container.job()
                failed.extend(failed_attempt(topology, settings, call.stage, task, new_token(), error))
        return failed

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """The driver's calls. Errors come back as their text, with the kind in front."""
        body = action.body.to_pybytes()
        actions: dict[str, Callable[[bytes], Iterator[bytes]]] = {
            "open": self._open,
            "start-run": self._plain(StartRun, self._container.start_run),
            "end": self._plain(EndCall, self._container.end),
            "snapshot": self._plain(CommitCall, self._container.snapshot),
            "upload": self._plain(CommitCall, self._container.upload),
            "clean-up": self._plain(CleanUpCall, self._container.clean_up),
            "finish": self._plain(FinishCall, self._container.finish_background),
            "beat": lambda _: self._beats(context),
            "close": self._close,
        }
        if action.type not in actions:
            raise flight.FlightServerError(f"a container has no action `{action.type}`")
        try:
            yield from actions[action.type](body)
        except PenstockError as error:
            raise flight.FlightServerError(f"{type(error).__name__}: {error}") from error
        except flight.FlightError:
            raise
        except Exception as error:
            logger.exception("action %s failed", action.type)
            raise flight.FlightServerError(f"{type(error).__name__}: {error}") from error

    @staticmethod
    def _plain(cls: type[T], call: Callable[[T], Any]) -> Callable[[bytes], Iterator[bytes]]:
        """A call with one answer."""

        def run(body: bytes) -> Iterator[bytes]:
            yield orjson.dumps(call(load(cls, body)))

        return run

    def _open(self, body: bytes) -> Iterator[bytes]:
        """Restores on a separate thread, so that progress can be streamed meanwhile."""
        size = int.from_bytes(body[:4], "big")
        call = load(OpenCall, body[4 : 4 + size])
        package: JobPackage = read_shipped(body[4 + size :])  # only callers with the secret come this far
        progress: SimpleQueue[int] = SimpleQueue()
        failure: list[BaseException] = []
        notes: list[str] = []

        def run() -> None:
            try:
                notes.extend(self._container.open(call, package, progress.put))
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run, name=f"open-{call.identity.epoch}", daemon=True)
        thread.start()
        restored = 0
        while thread.is_alive():
            thread.join(_PROGRESS_SECONDS if restored else 0.01)
            restored += _drain(progress)
            yield orjson.dumps({"restored_bytes": restored, "notes": []})
        if failure:
            raise failure[0]
        yield orjson.dumps({"restored_bytes": restored + _drain(progress), "notes": notes})

    def _beats(self, context: Any) -> Iterator[bytes]:
        while not context.is_cancelled():
            yield dump(self._container.beat(self._process.memory_info().rss))
            time.sleep(BEAT_SECONDS)

    def _close(self, body: bytes) -> Iterator[bytes]:
        self._container.close(load(PlainCall, body).identity)
        yield orjson.dumps(os.getpid())
        self._stop()


def _send(writer: Any, packets: Iterable[Packet]) -> None:
    for group in split_by_size(packets):
        writer.write_batch(to_batch(group))


def _drain(queue: SimpleQueue[int]) -> int:
    total = 0
    try:
        while True:
            total += queue.get_nowait()
    except Empty:
        return total


__all__ = ["BEAT_SECONDS", "ContainerServer"]
