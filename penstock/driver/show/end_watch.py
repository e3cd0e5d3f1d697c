"""Looks at the ends of a run's inputs while nobody else does: while a batch runs, or hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import PenstockError
from penstock.system.base import System, SystemAdmin
from penstock.system.contract.names import QUERY_SYSTEM

logger = logging.getLogger(__name__)


class EndWatch:
    """Has admins of its own, so that a system which does not answer delays no batch. Used by one thread."""

    def __init__(
        self,
        inputs: Collection[SystemStream],
        systems: Mapping[str, System],
        note: Callable[[Mapping[SystemStreamPartition, int]], None],
    ) -> None:
        """`note` gets the ends of each stream that answers."""
        self._inputs = [
            stream
            for stream in inputs
            if stream.system != QUERY_SYSTEM and systems[stream.system].lag_unit == "message"
        ]
        self._systems = systems
        self._note = note
        self._admins: dict[str, SystemAdmin] = {}
        self._closing = threading.Event()

    def look(self) -> None:
        """Note the present ends. What a system that does not answer had last stays."""
        for stream in self._inputs:
            if self._closing.is_set():
                return
            try:
                if stream.system not in self._admins:
                    self._admins[stream.system] = self._systems[stream.system].admin()
                ends = self._admins[stream.system].offsets(stream.stream)
            except PenstockError as error:
                logger.debug("the ends of %s are not known now: %s", stream, error)
                continue
            self._note(
                {
                    SystemStreamPartition(stream.system, stream.stream, partition): end.upcoming
                    for partition, end in ends.items()
                }
            )

    def stop(self) -> None:
        """Let the last look end early: the run ends, whatever a system does. From any thread."""
        self._closing.set()

    def close(self) -> None:
        """Close the admins. No call follows."""
        for admin in self._admins.values():
            admin.close()
