"""The checkpoint that the open stores of a task can go back to, when its container leaves the epoch.

Without it, a rewind would restore every task of the job from its backends, however few of them were lost or moved. A
store that goes back is handed to the process's standby copies, as one that is at its checkpoint; the next epoch takes
it over from there, and reads the tail if the log has a later checkpoint by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.base.clock import Clock
from penstock.checkpoint.id import CheckpointId
from penstock.state.engines.engine import Engine, EngineFailedError
from penstock.state.engines.write_behind import EngineMark, WriteBehindEngine
from penstock.state.kept.store import StoreAtCheckpoint

logger = logging.getLogger(__name__)
_APART_S = 5.0
_CHEAP = 5_000
"""A mark copies what is gathered above RocksDB. If that is more than this, there is one in `_APART_S` at most."""
_MARKS_BYTES = 32 << 20
"""The memory of each kind that the marks of a container may take together. It also bounds the time to go back: some
seconds for a container."""
Targets = Callable[[CheckpointId, str, Mapping[str, Mapping[str, str]]], StoreAtCheckpoint]


@dataclass(frozen=True, slots=True)
class StoreAt:
    """A store with exactly the content of a checkpoint. The engine belongs to the caller."""

    engine: Engine
    target: StoreAtCheckpoint


class TaskMarks:
    """The marks of one task's stores in one epoch: that of the last checkpoint, and that of a commit under way."""

    def __init__(self, engines: Mapping[str, Engine], clock: Clock, tasks: int) -> None:
        """`tasks`: how many the container has."""
        self._most_bytes = _MARKS_BYTES // max(1, tasks * len(engines))
        self._engines = {store: each for store, each in engines.items() if isinstance(each, WriteBehindEngine)}
        self._clock = clock
        self._made_at: float | None = None
        self._is_trusted = True
        self._committed: dict[str, tuple[EngineMark, StoreAtCheckpoint]] = {}
        self._under_way: tuple[CheckpointId, dict[str, EngineMark]] | None = None

    def snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Mark the present content as that of a commit that begins, unless the last marks are too new. In that case the
        store can go back to these, and read the tail."""
        now = self._clock.monotonic()
        gathered = sum(engine.gathered for engine in self._engines.values())
        if gathered > _CHEAP and self._made_at is not None and now - self._made_at < _APART_S:
            return
        self._made_at = now
        self._forget_commit()
        marks = {store: mark for store, engine in self._engines.items() if (mark := engine.mark(self._most_bytes))}
        self._under_way = checkpoint_id, marks

    def committed(
        self, checkpoint_id: CheckpointId, markers: Mapping[str, Mapping[str, str]], targets: Targets
    ) -> None:
        """The checkpoint is in the log. `markers`: of the task, by backend and store. `targets`: makes a store's target
        from them."""
        if self._under_way is None or self._under_way[0] != checkpoint_id:
            return
        (_, marks), self._under_way = self._under_way, None
        for store, mark in marks.items():
            target = targets(checkpoint_id, store, markers)
            if not target.markers:
                self._engines[store].release(mark)
                continue
            former, self._committed[store] = self._committed.get(store), (mark, target)
            if former is not None:
                self._engines[store].release(former[0])

    def distrust(self) -> None:
        """A copy or an upload has failed, perhaps because a store is damaged: all of them are restored."""
        self._is_trusted = False

    def go_back(self, deadline: float) -> dict[str, StoreAt]:
        """Take every store back that can go to its checkpoint before the deadline. The others are to be closed."""
        found: dict[str, StoreAt] = {}
        if not self._is_trusted:
            return found
        for store, (mark, target) in self._committed.items():
            engine = self._engines[store]
            if engine.has_failed or mark.is_lost:
                continue
            try:
                below = engine.go_back(mark, deadline)
            except (Exception, EngineFailedError) as error:
                logger.warning("store `%s` is restored, because it cannot go back: %s", store, error)
                continue
            found[store] = StoreAt(below, target)
        return found

    def _forget_commit(self) -> None:
        if self._under_way is not None:
            for store, mark in self._under_way[1].items():
                self._engines[store].release(mark)
            self._under_way = None
