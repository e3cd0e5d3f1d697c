"""Shows the positions of commits in the systems of the inputs: as a consumer group of Kafka (`task.commit.group`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.record import CheckpointRecord
from penstock.system.base import System, SystemAdmin

logger = logging.getLogger(__name__)
Shown = dict[SystemStreamPartition, int]


class _Streams(Protocol):
    @property
    def inputs(self) -> tuple[SystemStream, ...]: ...

    @property
    def systems(self) -> Mapping[str, System]: ...

    @property
    def admins(self) -> Mapping[str, SystemAdmin]: ...


def shown_positions(group: str | None, streams: _Streams) -> list[ShownPositions]:
    """For a commit coordinator: empty if no group is configured."""
    if group is None:
        return []
    inputs = [stream for stream in streams.inputs if streams.systems[stream.system].shows_positions]
    return [ShownPositions(group, inputs, streams.admins)]


class ShownPositions:
    """Shows the positions of the newest commit. A failure is logged: the next commit shows its own."""

    def __init__(self, group: str, inputs: Iterable[SystemStream], admins: Mapping[str, SystemAdmin]) -> None:
        self._group = group
        self._inputs = frozenset(inputs)
        self._admins = admins
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="positions")
        self._lock = threading.Lock()
        self._next: Shown | None = None
        self._running: Future[None] | None = None
        self._said = ""
        """The last failure, which is not logged again."""

    def behind(self, record: CheckpointRecord) -> None:
        """Show these positions, or after those that are being shown: the newest wait, older ones are left out."""
        with self._lock:
            self._next = lowest(record.next_offsets, self._inputs)
            if self._running is None or self._running.done():
                self._running = self._thread.submit(self._show)

    def close(self, *, wait: bool) -> None:
        """End the thread. No call follows."""
        self._thread.shutdown(wait=wait, cancel_futures=not wait)

    def _show(self) -> None:
        while (positions := self._taken()) is not None:
            for system in sorted({ssp.system for ssp in positions}):
                own = {ssp: offset for ssp, offset in positions.items() if ssp.system == system}
                try:
                    self._admins[system].show_positions(self._group, own)
                except Exception as error:
                    if str(error) != self._said:
                        self._said = str(error)
                        logger.warning("the next commit tries again: %s", error)
                else:
                    self._said = ""

    def _taken(self) -> Shown | None:
        with self._lock:
            taken, self._next = self._next, None
            if taken is None:
                self._running = None
            return taken


def lowest(next_offsets: Mapping[int, Mapping[SystemStreamPartition, int]], inputs: Iterable[SystemStream]) -> Shown:
    """The position of each partition of these inputs; of a partition that several tasks read, the lowest.

    Example:
        >>> trips, rates = (SystemStreamPartition("kafka", name, 0) for name in ("trips", "rates"))
        >>> lowest({0: {trips: 7, rates: 3}, 1: {trips: 5}}, [trips.system_stream])
        {SystemStreamPartition(system='kafka', stream='trips', partition=0): 5}
    """
    wanted, found = frozenset(inputs), Shown()
    for own in next_offsets.values():
        for ssp, offset in own.items():
            if ssp.system_stream in wanted:
                found[ssp] = min(offset, found.get(ssp, offset))
    return found
