"""The handlers of calls, one for each line of the table in `penstock.wire.protocol`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import psutil

from penstock.base.application_code import read_shipped
from penstock.container.container import Container, Epoch
from penstock.container.shared import ChangedRows
from penstock.metrics.snapshot import Row
from penstock.wire import protocol
from penstock.wire.ports import JobPackage

Q = TypeVar("Q", bound=protocol.Request)
A = TypeVar("A")
Handler = Callable[[Container, protocol.Identity, Q], Iterator[A]]
_PROGRESS_SECONDS = 0.2


def serve(call: protocol.Call[Q, A], container: Container, body: bytes) -> Generator[bytes, None, None]:
    """Answer a call in the container. Raises CorruptError if it is malformed, and what the handler raises."""
    identity, request = call.parse(body)
    for answer in answers(call, container, identity, request):
        yield protocol.dump(answer)


def answers(call: protocol.Call[Q, A], container: Container, identity: protocol.Identity, request: Q) -> Iterator[A]:
    """The answers to a call of the kernel, or to one of a wing, in its epoch. Raises what the handler raises."""
    if call.name in HANDLERS:
        yield from HANDLERS[call.name](container, identity, request)
        return
    for answer in container.epoch(identity).wings.answer(call.name, request):
        yield answer
        container.epoch(identity)  # which may have been left


def _in_epoch(method_of: Callable[[Epoch], Callable[[Q], A]]) -> Handler[Q, A]:
    def handler(container: Container, identity: protocol.Identity, request: Q) -> Iterator[A]:
        yield method_of(container.epoch(identity))(request)

    return handler


def _open(
    container: Container, identity: protocol.Identity, request: protocol.OpenEpoch
) -> Iterator[protocol.OpenProgress]:
    """Restores in another thread, and answers with the progress meanwhile."""
    package: JobPackage = read_shipped(request.package)  # only callers with the secret come this far
    progress: SimpleQueue[int] = SimpleQueue()
    failure: list[BaseException] = []
    opened: list[Epoch] = []

    def run() -> None:
        try:
            opened.append(container.open(identity, request, package, progress.put))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name=f"open-{identity.epoch}", daemon=True)
    thread.start()
    restored = 0
    while thread.is_alive():
        thread.join(_PROGRESS_SECONDS if restored else 0.01)
        restored += _drained(progress)
        yield protocol.OpenProgress(restored)
    if failure:
        raise failure[0]
    (epoch,) = opened
    yield protocol.OpenProgress(restored + _drained(progress), epoch.notes, epoch.next_due, epoch.in_place)


def _drained(queue: SimpleQueue[int]) -> int:
    total = 0
    try:
        while True:
            total += queue.get_nowait()
    except Empty:
        return total


def _beat(container: Container, identity: protocol.Identity, request: protocol.NoArguments) -> Iterator[protocol.Beat]:
    """Beats until the container is closed; the driver listens as long as it wants to."""
    container.check_incarnation(identity)
    process = psutil.Process()
    changed = ChangedRows()
    with container.audience:
        left, is_last = 0, False
        while not is_last:
            rows: list[Row] = []
            if left == 0:
                began = time.thread_time()
                rows = changed.of(container.metrics())
                spent = time.thread_time() - began
                left = max(protocol.BEATS_PER_METRICS, round(spent / protocol.METRICS_SHARE / protocol.BEAT_SECONDS))
            left -= 1
            lines, left_out = container.passed_on.take()
            beat = container.beat(process.memory_info().rss)
            dropped = container.passed_on.dropped()
            yield replace(
                beat, metrics=rows, lines=lines, lines_left_out=left_out, lines_dropped=str(dropped) if dropped else ""
            )
            is_last = container.closed.wait(protocol.BEAT_SECONDS)
        lines, left_out = container.passed_on.take()
        if lines:
            yield replace(beat, lines=lines, lines_left_out=left_out)


def _renew_port(
    container: Container, identity: protocol.Identity, request: protocol.RenewPort
) -> Iterator[protocol.RenewedPort]:
    container.check_incarnation(identity)
    yield container.renew_port(request.callers)


def _close(container: Container, identity: protocol.Identity, request: protocol.NoArguments) -> Iterator[int]:
    """Closes the tasks, answers with the process id, and lets the process end."""
    container.check_incarnation(identity)
    container.close()
    yield os.getpid()
    container.closed.set()


HANDLERS: dict[str, Handler[Any, Any]] = {
    call.name: handler
    for call, handler in (
        (protocol.OPEN, _open),
        (protocol.START_RUN, _in_epoch(lambda epoch: epoch.start_run)),
        (protocol.END, _in_epoch(lambda epoch: epoch.end)),
        (protocol.SNAPSHOT, _in_epoch(lambda epoch: epoch.snapshot)),
        (protocol.UPLOAD, _in_epoch(lambda epoch: epoch.upload)),
        (protocol.CLEAN_UP, _in_epoch(lambda epoch: epoch.clean_up)),
        (protocol.WIND_DOWN, _in_epoch(lambda epoch: epoch.wind_down)),
        (protocol.CLOSE, _close),
        (protocol.BEAT, _beat),
        (protocol.RENEW_PORT, _renew_port),
    )
}
