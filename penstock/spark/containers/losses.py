"""Lost containers: they are noticed, their hosts are asked about their ends, and they are replaced beside the batches.

A container is lost if its beats break off or stop, or if the application's code in it does not return. A Spark task
on its host reads the log there, which has its exit status and last words.

Another container starts in its place while standbys have its tasks, so every task has one meanwhile. One starts in
the same way on an executor that came.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TypeVar

from pyspark import SparkContext

from penstock.config.settings import ContainerSettings
from penstock.errors import ContainerLostError
from penstock.spark.containers.launch import ContainerLauncher
from penstock.spark.session.executors import job_group, live_executors, rdd_on
from penstock.spark.session.gateway import cause_of
from penstock.wire.client import ContainerClient
from penstock.wire.containers import ContainerAddress, Ending, UnknownEnd, ending_of

logger = logging.getLogger(__name__)
T = TypeVar("T")
ANSWER_SECONDS = 5.0
"""Longest wait for Spark's answer. The executor's slot is free once the cancelled batch has left it."""


def inquire(context: SparkContext, client: ContainerClient) -> Ending:
    """The host's knowledge of a container's end, or the reason why it is unknown. Takes a few seconds at most."""
    address = client.address
    if not client.host_answers():
        return UnknownEnd("its host does not answer")
    executor = next((e for e in live_executors(context) if e.id == address.executor_id), None)
    if executor is None:
        return UnknownEnd(f"Spark has lost its executor {address.executor_id}, too")
    group = f"penstock-inquiry-{address.incarnation}"
    patience = threading.Timer(ANSWER_SECONDS, context.cancelJobGroup, [group])
    patience.daemon = True
    patience.start()
    try:
        with job_group(context, group, "Asking how a Penstock container ended"):
            found: list[Ending] = (
                rdd_on(context, executor).mapPartitions(lambda _: iter([ending_of(address)])).collect()
            )
        return found[0]
    except Exception as error:  # the answer is for the reader of the log: nothing depends on it
        logger.debug("executor %s did not answer: %s", executor, error)
        return UnknownEnd(f"{executor} could not report how it ended: {cause_of(error)}")
    finally:
        patience.cancel()


LOOK_SECONDS = 0.25


class LossWatch:
    """Watches the containers of one run from a thread."""

    def __init__(
        self,
        context: SparkContext,
        settings: ContainerSettings,
        clients: Callable[[], Iterable[ContainerClient]],
        *,
        waits: bool = True,
    ) -> None:
        """`clients`: the present containers, asked again and again. `waits`: the report of a loss waits for the host's
        knowledge of it; otherwise that is logged when it comes, because standbys take over at once."""
        self.lost = threading.Event()
        self.overdue: str | None = None
        """A step in a container that exceeds its time limit, in words. The run fails with it."""
        self._context = context
        self._settings = settings
        self._clients = clients
        self._waits = waits
        self._on_lost: Callable[[], None] = lambda: None
        self._stopping = threading.Event()
        self._monitor = threading.Thread(target=self._watch, name="container-monitor", daemon=True)
        self._inquiries = ThreadPoolExecutor(max_workers=32, thread_name_prefix="container-inquiry")

    def start(self, on_lost: Callable[[], None]) -> None:
        """Watch from now on. `on_lost` is called from another thread when a container is lost."""
        self._on_lost = on_lost
        self._monitor.start()

    def stop(self) -> None:
        """Stop watching: containers that end from now on are not lost."""
        self._stopping.set()

    def close(self) -> None:
        """End without waiting for inquiries."""
        self._inquiries.shutdown(wait=False, cancel_futures=True)

    def pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def loss(self, otherwise: str) -> str:
        self.lost.wait(LOOK_SECONDS)  # a call may break off a moment before the beats do
        deaths = ((c, c.death() if self._waits else c.death(wait=False)) for c in self._clients())
        found = ((c.address.container, death or c.lost) for c, death in deaths)
        return "; ".join(f"container {name}: {why}" for name, why in found if why) or otherwise

    def lose(self, client: ContainerClient) -> None:
        """Note that a container is lost, and ask its host how it ended."""
        if self._stopping.is_set():
            return
        if not client.is_here:
            with suppress(RuntimeError):  # the run has just ended
                client.inquiry = self._inquiries.submit(inquire, self._context, client)
                if not self._waits:
                    client.inquiry.add_done_callback(lambda _: _tell(client))
        self.lost.set()
        self._on_lost()

    def _watch(self) -> None:
        """Silence for `container.lost.ms` is a loss, however healthy the sockets look; so is an attempt that stands
        still for `container.attempt.timeout.ms`. A driver that was stopped itself gives everyone a new chance."""
        last = time.monotonic()
        while not self._stopping.wait(LOOK_SECONDS):
            now = time.monotonic()
            if self.lost.is_set():
                self._on_lost()  # again: the first time there may have been no Spark job yet to cancel
            if now - last > 10 * LOOK_SECONDS:
                for client in self._clients():
                    client.last_beat_at = now
            last = now
            self._look_for_overdue()
            for client in self._clients():
                if client.lost is None and (reason := self._verdict(client, now)) is not None:
                    client.lost = reason
                    self.lose(client)

    def _look_for_overdue(self) -> None:
        """Containers that are stuck are asked no more: they would not answer before the end of their patience."""
        for client in self._clients():
            if client.lost is None and client.last_beat is not None and client.last_beat.overdue:
                self.overdue = client.lost = client.last_beat.overdue
        if self.overdue is not None:
            self._on_lost()  # cancels the batch

    def _verdict(self, client: ContainerClient, now: float) -> str | None:
        silence_ms = (now - client.last_beat_at) * 1000
        if silence_ms > self._settings.lost_ms:
            return f"silent for {silence_ms:.0f} ms, container.lost.ms is {self._settings.lost_ms}"
        beat = client.last_beat
        if beat is not None and beat.stalled_ms > self._settings.attempt_timeout_ms:
            return (
                f"the application has been processing one message for {beat.stalled_ms} ms, "
                f"container.attempt.timeout.ms is {self._settings.attempt_timeout_ms}"
            )
        return None


def _tell(client: ContainerClient) -> None:
    logger.warning("container %s: %s", client.address.container, client.death() or client.lost)


_AGAIN_SECONDS = 10.0
_END_SECONDS = 5.0
_QUIET_SECONDS = 2.0


class ReplacementLaunch:
    """One launch at a time. Used by the run loop's thread."""

    def __init__(self, launcher: ContainerLauncher, pool: Executor) -> None:
        self._launcher = launcher
        self._pool = pool
        self._launch: Future[list[ContainerAddress]] | None = None
        self._again_at = 0.0

    def begin(self, condemned: frozenset[str]) -> None:
        """Start missing containers, unless a launch is under way, or has just failed."""
        if self._launch is None and time.monotonic() >= self._again_at:
            self._launch = self._pool.submit(self._launcher.await_containers, condemned)

    def postpone(self) -> None:
        """Postpone a launch: for a moment, no starting process competes with the standbys that take over."""
        self._again_at = max(self._again_at, time.monotonic() + _QUIET_SECONDS)

    def started(self, condemned: Collection[str], known: Collection[str]) -> list[str]:
        """New containers of a launch that has ended, in words."""
        found = [] if self._launch is None or not self._launch.done() else self._found(self._launch)
        new = [a for a in found if a.container not in known and a.incarnation not in condemned]
        if not new and self._launch is not None and self._launch.done():
            self._launch = None
            self._again_at = time.monotonic() + _AGAIN_SECONDS
        return [f"container {address.container}" for address in new]

    def take(self) -> list[ContainerAddress]:
        """The containers that an ended launch has started; none as long as one is under way."""
        if self._launch is None or not self._launch.done():
            return []
        launch, self._launch = self._launch, None
        return self._found(launch)

    def end(self) -> list[ContainerAddress]:
        launch, self._launch = self._launch, None
        if launch is None:
            return []
        wait([launch], _END_SECONDS)
        return self._found(launch) if launch.done() else []

    def _found(self, launch: Future[list[ContainerAddress]]) -> list[ContainerAddress]:
        try:
            return launch.result()
        except (Exception, CancelledError) as error:
            self._again_at = time.monotonic() + _AGAIN_SECONDS
            logger.warning("no container was started beside the batches; the driver tries again: %s", error)
            return []


def error_of(client: ContainerClient, future: Future[T], abort: threading.Event) -> BaseException | None:
    """The error of a call; None if it succeeded. A call to a container that is lost meanwhile is left to its own
    deadline."""
    while True:
        try:
            return future.exception(LOOK_SECONDS)
        except TimeoutError:
            if client.lost is not None:
                return ContainerLostError(f"container {client.address.container}: {client.lost}")
            if abort.is_set():
                return ContainerLostError("the run was asked to end at once")
