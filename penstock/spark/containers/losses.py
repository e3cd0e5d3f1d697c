"""Notices lost containers: their beats break off or stop, or the application's code in them does not return."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyspark import SparkContext

from penstock.config.settings import ContainerSettings
from penstock.spark.containers.inquiry import inquire
from penstock.wire.client import ContainerClient

logger = logging.getLogger(__name__)
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
