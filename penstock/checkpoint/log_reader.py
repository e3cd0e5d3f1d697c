"""The reading of the slots of a checkpoint log."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from penstock.checkpoint.log_view import TAIL, LogView
from penstock.checkpoint.record import Record, decode_record
from penstock.errors import CorruptError, NotFoundError, PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

_THREADS = 16
"""Records fetched at once: a round trip to a remote store takes tens of milliseconds."""


class LogReader:
    """Reads the records of a log and remembers them: they never change. Used by one thread at a time."""

    def __init__(self, store: ObjectStore, paths: JobPaths) -> None:
        self._store = store
        self._paths = paths
        self.known: dict[int, Record] = {}
        """Every record that was read, or written by the owner of this reader, and was not seen to be gone."""
        self._damaged: dict[int, str] = {}

    def read(self) -> LogView:
        """Everything up to the end of the log, judged; nothing is raised for what is damaged or missing.

        The listed slots are fetched before the end is probed for. So when a slot is found empty that was pruned
        meanwhile, the checkpoint that dropped it is found too.

        Raises:
            IncompatibleError: a newer Penstock wrote a record.
            RetryableError: the store failed. What was read so far is remembered.
        """
        keys = self._store.list(self._paths.checkpoints)
        listed = {slot for key in keys if (slot := self._paths.slot_of(key)) is not None}
        end = 1 + max(listed | self.known.keys(), default=-1)
        # A listing may miss the last records, and one that runs while records are made may miss one and show the next.
        tail = range(max(0, end - TAIL), end)
        for slot in self.known.keys() - listed - set(tail):
            del self.known[slot]
        self._damaged = {}
        self._fetch(sorted((listed | set(tail)) - self.known.keys()))
        for slot in count(end):
            if not self._note(slot, self._look(slot)):
                return LogView.of(self.known, self._damaged, slot)
        raise AssertionError("no log has this many slots")

    def get(self, slot: int) -> Record:
        """The record in a slot, read now. Raises as ObjectStore.get and decode_record do."""
        key = self._paths.checkpoint(slot)
        return decode_record(self._store.get(key), key)

    def view(self) -> LogView:
        """The view of the known records. No I/O."""
        return LogView.of(self.known, self._damaged, 1 + max(self.known.keys() | self._damaged.keys(), default=-1))

    def _fetch(self, slots: list[int]) -> None:
        failures = []
        for slot, found in zip(slots, self._outcomes(slots), strict=True):
            try:
                self._note(slot, found)
            except PenstockError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _outcomes(self, slots: list[int]) -> Iterable[Record | PenstockError]:
        if len(slots) < 2:
            return map(self._look, slots)
        with ThreadPoolExecutor(min(_THREADS, len(slots)), thread_name_prefix="checkpoint-log") as pool:
            return list(pool.map(self._look, slots))

    def _look(self, slot: int) -> Record | PenstockError:
        try:
            return self.get(slot)
        except PenstockError as error:
            return error

    def _note(self, slot: int, found: Record | PenstockError) -> bool:
        """Remember a record, or its damage. True unless the slot is free. Raises any other error."""
        if isinstance(found, CorruptError):
            self._damaged[slot] = str(found)
        elif isinstance(found, NotFoundError):
            return False
        elif isinstance(found, PenstockError):
            raise found
        else:
            self.known[slot] = found
        return True
