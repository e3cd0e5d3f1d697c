"""Reading the slots of the checkpoint log."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from penstock.checkpoint import decide
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import Record, decode_record
from penstock.errors import CorruptError, NotFoundError, PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

_THREADS = 16
"""Records fetched at once: a round trip to a remote store takes tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class _Damage:
    problem: str


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
        tail = range(max(0, end - decide.TAIL), end)
        for slot in self.known.keys() - listed - set(tail):
            del self.known[slot]
        self._damaged = {}
        self._fetch(sorted((listed | set(tail)) - self.known.keys()))
        for slot in count(end):
            found = self._look(slot)
            if found is None:
                return LogView.of(self.known, self._damaged, slot)
            self._note(slot, found)
        raise AssertionError("no log has this many slots")

    def get(self, slot: int) -> Record:
        """The record in a slot, read now. Raises as ObjectStore.get and decode_record do."""
        key = self._paths.checkpoint(slot)
        return decode_record(self._store.get(key), key)

    def view(self) -> LogView:
        """The view of the known records. No I/O."""
        return LogView.of(self.known, self._damaged, 1 + max(self.known.keys() | self._damaged.keys(), default=-1))

    def _fetch(self, slots: list[int]) -> None:
        failure: PenstockError | None = None
        for slot, found in zip(slots, self._outcomes(slots), strict=True):
            if isinstance(found, PenstockError):
                failure = failure or found
            elif found is not None:
                self._note(slot, found)
        if failure is not None:
            raise failure

    def _outcomes(self, slots: list[int]) -> Iterable[Record | _Damage | PenstockError | None]:
        if len(slots) < 2:
            return [self._attempt(slot) for slot in slots]
        with ThreadPoolExecutor(min(_THREADS, len(slots)), thread_name_prefix="checkpoint-log") as pool:
            return list(pool.map(self._attempt, slots))

    def _attempt(self, slot: int) -> Record | _Damage | PenstockError | None:
        try:
            return self._look(slot)
        except PenstockError as error:
            return error

    def _look(self, slot: int) -> Record | _Damage | None:
        try:
            return self.get(slot)
        except NotFoundError:
            return None
        except CorruptError as error:
            return _Damage(str(error))

    def _note(self, slot: int, found: Record | _Damage) -> None:
        if isinstance(found, _Damage):
            self._damaged[slot] = found.problem
        else:
            self.known[slot] = found
