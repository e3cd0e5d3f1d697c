"""The table of calls to a container: for each its name, request, answer and handler, and how long the driver waits.

The driver makes one request for all containers and asks for it (`ContainerDirectory.ask`); each container gets what
concerns its tasks, checks who the call is meant for, and hands it to the handler. A new call is a request in
`penstock.container.protocol`, a line here, and a handler.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from types import NoneType
from typing import Any, Generic, TypeVar

import psutil

from penstock.api.shipped import read_shipped
from penstock.config.model import JobConfig
from penstock.container.container import Container
from penstock.container.epoch import Epoch
from penstock.container.metrics import ChangedRows
from penstock.container.package import JobPackage
from penstock.container.protocol import (
    Beat,
    Bootstrap,
    Bootstrapped,
    CleanUp,
    EndBatch,
    Follow,
    Identity,
    LoadTable,
    Nothing,
    OpenEpoch,
    Publish,
    PublishProgress,
    RenewedPort,
    RenewPort,
    Request,
    Restored,
    StartRun,
    TableProgress,
    TakeSnapshot,
    Uploaded,
    UploadSnapshot,
    WindDown,
    dump,
    load,
)
from penstock.metrics.snapshot import Row
from penstock.retry import Retry

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
Handler = Callable[[Container, Identity, Q], Iterator[A]]
BEAT_SECONDS = 0.5
CLOSE_SECONDS = 15.0
FOLLOW_SECONDS = 5.0
BEATS_PER_METRICS = 4
_MINUTE = 60.0
_PROGRESS_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, A]):
    """A kind of call. A call may have several answers; of most there is one."""

    name: str
    request: type[Q]
    answer: Any
    """The type of its answers."""
    handler: Handler[Q, A]
    answer_s: Callable[[JobConfig, float], float | None] = lambda config, spent_s: _MINUTE
    """How long the driver waits for the last answer, after tries that took so long; None: until the stream ends."""
    again: Retry | None = None
    """How the driver tries again what may pass; all tries together last `task.commit.timeout.ms`."""

    def encode(self, identity: Identity, request: Q) -> bytes:
        """A call as it goes to the container that it is meant for."""
        return dump((identity, request))

    def serve(self, container: Container, body: bytes) -> Iterator[bytes]:
        """Answer a call in the container. Raises CorruptError if it is malformed, and what the handler raises."""
        identity, request = load(tuple[Identity, self.request], body)  # type: ignore[name-defined]
        for answer in self.handler(container, identity, request):
            yield dump(answer)

    def decode(self, answer: bytes) -> A:
        """An answer, back at the driver."""
        found: A = load(self.answer, answer)
        return found


def _in_epoch(method: Callable[[Epoch, Q], A]) -> Handler[Q, A]:
    """The handler of a call that is for one epoch and has one answer."""

    def handler(container: Container, identity: Identity, request: Q) -> Iterator[A]:
        yield method(container.epoch(identity), request)

    return handler


def _open(container: Container, identity: Identity, request: OpenEpoch) -> Iterator[Restored]:
    """Restores in another thread, and answers how far it is meanwhile."""
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
        yield Restored(restored)
    if failure:
        raise failure[0]
    (epoch,) = opened
    yield Restored(restored + _drained(progress), epoch.notes, epoch.next_due)


def _bootstrap(container: Container, identity: Identity, request: Bootstrap) -> Iterator[Bootstrapped]:
    """Answers how far the side inputs are, until they are caught up or have failed."""
    while True:
        side = container.epoch(identity).side_inputs
        ended = side.await_caught_up(_PROGRESS_SECONDS)
        yield Bootstrapped(*side.progress(), side.failure)
        if ended:
            return


def _publish(container: Container, identity: Identity, request: Publish) -> Iterator[PublishProgress]:
    """Answers how far the publication is, until it is complete."""
    publication = container.epoch(identity).publisher.publish(request)
    while not publication.await_end(_PROGRESS_SECONDS):
        container.epoch(identity)  # which may have been left
        yield publication.progress()
    yield publication.progress()


def _drained(queue: SimpleQueue[int]) -> int:
    total = 0
    try:
        while True:
            total += queue.get_nowait()
    except Empty:
        return total


def _beat(container: Container, identity: Identity, request: Nothing) -> Iterator[Beat]:
    """Beats until the container is closed; the driver listens as long as it wants to."""
    container.check_incarnation(identity)
    process = psutil.Process()
    changed = ChangedRows()
    for beat in itertools.count():
        rows = changed.of(container.metrics()) if beat % BEATS_PER_METRICS == 0 else []
        yield replace(container.beat(process.memory_info().rss), metrics=rows)
        if container.closed.wait(BEAT_SECONDS):
            return


def _renew_port(container: Container, identity: Identity, request: RenewPort) -> Iterator[RenewedPort]:
    container.check_incarnation(identity)
    yield container.renew_port(request.callers)


def _close(container: Container, identity: Identity, request: Nothing) -> Iterator[int]:
    """Closes the tasks, answers with the process id, and lets the process end."""
    container.check_incarnation(identity)
    container.close()
    yield os.getpid()
    container.closed.set()


OPEN = Call("open", OpenEpoch, Restored, _open, lambda config, _: config.container.restore_timeout_ms / 1000)
BOOTSTRAP = Call(
    "bootstrap",
    Bootstrap,
    Bootstrapped,
    _bootstrap,
    lambda config, _: config.side_inputs.bootstrap_timeout_ms / 1000 + _MINUTE,
)
START_RUN = Call("start-run", StartRun, NoneType, _in_epoch(Epoch.start_run))
END = Call("end", EndBatch, NoneType, _in_epoch(Epoch.end), again=Retry(pause_s=0.0))
SNAPSHOT = Call("snapshot", TakeSnapshot, NoneType, _in_epoch(Epoch.snapshot))
UPLOAD = Call(
    "upload",
    UploadSnapshot,
    Uploaded,
    _in_epoch(Epoch.upload),
    lambda config, spent_s: max(1.0, config.task.commit_timeout_ms / 1000 - spent_s),
    Retry(pause_s=0.2),
)
LOAD_TABLE = Call("load-table", LoadTable, NoneType, _in_epoch(Epoch.load_table))
TABLES = Call("tables", Nothing, list[TableProgress], _in_epoch(Epoch.table_progress))
CLEAN_UP = Call("clean-up", CleanUp, NoneType, _in_epoch(Epoch.clean_up))
PUBLISH = Call("publish", Publish, PublishProgress, _publish, lambda config, spent_s: None)
FOLLOW = Call("follow", Follow, NoneType, _in_epoch(Epoch.follow), lambda config, spent_s: FOLLOW_SECONDS)
WIND_DOWN = Call(
    "wind-down", WindDown, list[Row], _in_epoch(Epoch.wind_down), lambda c, _: c.task.shutdown_ms / 1000 + CLOSE_SECONDS
)
CLOSE = Call("close", Nothing, int, _close, lambda config, spent_s: CLOSE_SECONDS)
RENEW_PORT = Call("renew-port", RenewPort, RenewedPort, _renew_port, lambda config, spent_s: CLOSE_SECONDS)
BEAT = Call("beat", Nothing, Beat, _beat, lambda config, spent_s: None)

_OF_TABLES = (LOAD_TABLE, TABLES)
CALLS: dict[str, Call[Any, Any]] = {
    call.name: call
    for call in (
        OPEN,
        BOOTSTRAP,
        START_RUN,
        END,
        SNAPSHOT,
        UPLOAD,
        CLEAN_UP,
        PUBLISH,
        FOLLOW,
        WIND_DOWN,
        CLOSE,
        BEAT,
        RENEW_PORT,
        *_OF_TABLES,
    )
}
