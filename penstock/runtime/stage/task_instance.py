"""One task in its container: its open stores, its attempts, and the changes since the last commit.

Output may be kept with the task's state: from the End of its batch to a commit, which takes it with the state. Stores
that are filled from the outside have an interface here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Iterable, Mapping
from typing import Protocol, TypeAlias

from penstock.batch.batch import NOTHING_DUE, Batch, Due, earlier
from penstock.errors import ConfigError, ContainerLostError, Interrupted, RetryableError
from penstock.graph.topology import Topology
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.meters import StoreMeter
from penstock.runtime.operators.base import Step, operator_of
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import PacketAttempt
from penstock.runtime.stage.instance import StageInstance
from penstock.state.engines.engine import (
    Changes,
    Engine,
    EngineFailedError,
    changes_bytes,
    deletes_in,
    merged,
    without_passing,
)
from penstock.state.stores.build import build_store
from penstock.state.stores.task_store import SideView


class SideStores(Protocol):
    """The side stores of a container: stores of side inputs, and pushed tables. Thread-safe."""

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        """By store, the view for this run of this batch. All are taken at once, between two updates, when the first
        attempt of the task asks; later attempts of the same run get the same ones."""
        ...

    def release(self, task: int, batch: int) -> None:
        """Release the views of batches up to this one, which have ended."""
        ...


class NoSideStores:
    """The side stores of a job without any."""

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        return {}

    def release(self, task: int, batch: int) -> None: ...


NO_SIDE_STORES = NoSideStores()


class KeptAttempt(Protocol):
    """An attempt that processes nothing: what it takes is kept if End names it, and forgotten otherwise. A container
    treats it as a `PacketAttempt`."""

    stage: int
    task: int
    token: str
    batch: Batch
    step: Step | None
    processed: int
    process_ns: int
    operator: str

    def progress(self) -> object: ...

    def describe(self) -> str: ...

    def accept(self, packet: Packet) -> Iterable[Packet]: ...

    def finish(self, together: JointOutput | None = None) -> Iterable[Packet]: ...

    def apply(self) -> int:
        """Keep the packets: End names this attempt. Returns their bytes. Cannot fail half-way."""

    def close(self) -> None:
        """Forget the packets, unless they are kept."""


class KeptOutput(Protocol):
    """The output of one task that waits for a commit. Thread-safe."""

    def begin_attempt(self, topology: Topology, tasks: int, token: str, batch: Batch) -> KeptAttempt:
        """Begin an attempt of the stage `topology.outbox`."""

    def close(self) -> None:
        """Forget everything: the task leaves its container."""


logger = logging.getLogger(__name__)
TaskAttempt: TypeAlias = PacketAttempt | KeptAttempt
HOLD_SECONDS = 10.0
"""Time that an End waits for a copy to be made before the driver is asked to call again."""


class TaskInstance:
    """State and attempts of one task. Attempts run on the callers' threads; everything else is under a lock.

    The engines change only inside `end`. If that fails half-way the task is broken and refuses everything, so that
    the driver restores it elsewhere.
    """

    def __init__(
        self,
        task: int,
        topology: Topology,
        settings: RuntimeSettings,
        engines: Mapping[str, Engine],
        last_ended: int,
        metrics: MetricsRegistry | None = None,
        side: SideStores = NO_SIDE_STORES,
        kept_output: KeptOutput | None = None,
    ) -> None:
        """`engines`: of the stores that the job writes. `kept_output`: if the job has exactly-once outputs."""
        self.task = task
        self._side = side
        self._kept_output = kept_output
        self._topology = topology
        self._settings = settings
        self._engines = dict(engines)
        self._lock = threading.Lock()
        self._standing: dict[int, StageInstance] = {}
        """Stage -> the instance that served the last applied attempt."""
        self._finished: dict[tuple[int, str], TaskAttempt] = {}
        self._pending: dict[str, Changes] = {}
        self._free = threading.Event()
        self._free.set()
        self.pending_bytes = 0
        """Bytes of keys and values written since the last commit's snapshot, counted for each write; and of the output
        that is kept."""
        self._ended_tokens: dict[int, str] = {}
        self._broken: str | None = None
        self.last_ended = last_ended
        metrics = metrics or MetricsRegistry(f"Partition {task}")
        self._written_once = frozenset(spec.name for spec in topology.graph.stores if spec.writes_once)
        self._meters = {spec.name: StoreMeter(metrics, spec.name) for spec in topology.graph.stores}

    def begin_attempt(self, stage: int, token: str, batch: Batch) -> TaskAttempt:
        """Begin an attempt of any stage. Raises OperatorFailedError from `init`."""
        if stage != self._topology.outbox or self._kept_output is None:
            return self.start_attempt(stage, token, batch)
        with self._lock:
            self._check()
            return self._kept_output.begin_attempt(self._topology, self._settings.tasks, token, batch)

    def start_attempt(self, stage: int, token: str, batch: Batch) -> PacketAttempt:
        """Begin an attempt of operators, with the standing instance if it is free. Raises OperatorFailedError from
        `init`."""
        with self._lock:
            self._check()
            instance = self._standing.pop(stage, None)
        views = self._side.views(self.task, batch)
        if instance is None:
            engines: Mapping[str, Engine] = {**self._engines, **views}
            instance = StageInstance(self._topology, stage, self.task, self._settings, engines, batch.time_ms)
        elif views:
            instance.show(views)
        return PacketAttempt(instance, token, self._settings.tasks, batch)

    def finish_attempt(self, attempt: TaskAttempt) -> None:
        with self._lock:
            self._finished[attempt.stage, attempt.token] = attempt

    def discard_attempt(self, attempt: TaskAttempt) -> None:
        if isinstance(attempt, PacketAttempt):
            self._close(attempt.instance)
        else:
            attempt.close()

    def _close(self, instance: StageInstance) -> None:
        """Close the user's tasks. All their errors are logged."""
        try:
            instance.close()
        except BaseException as error:
            if isinstance(error, Interrupted):
                raise
            logger.exception("closing the tasks of stage %d of task %d failed", instance.stage, self.task)

    def end(self, batch: int, tokens: Mapping[int, str]) -> None:
        """Apply exactly these attempts (stage -> token) and drop all others. Idempotent.

        Raises:
            RetryableError: its stores are still being copied.
            ContainerLostError: it cannot apply exactly these. In both cases nothing was applied.
        """
        self.await_copies(HOLD_SECONDS)
        with self._lock:
            self._check()
            if batch == self.last_ended and dict(tokens) == self._ended_tokens:
                return
            if batch != self.last_ended + 1:
                raise ContainerLostError(
                    f"task {self.task} was asked to end batch {batch}, but its last ended batch is {self.last_ended}"
                )
            missing = [stage for stage, token in tokens.items() if (stage, token) not in self._finished]
            if missing:
                raise ContainerLostError(
                    f"task {self.task} has no finished attempt of stages {missing} with the tokens of batch {batch}"
                )
            applied = [self._finished.pop((stage, token)) for stage, token in tokens.items()]
            try:
                self._apply(applied)
            except BaseException as error:
                self._broken = f"applying batch {batch} failed: {type(error).__name__}: {error}"
                if isinstance(error, Interrupted | ConfigError):
                    raise
                raise ContainerLostError(f"task {self.task} must be restored: {self._broken}") from error
            self.last_ended = batch
            self._ended_tokens = dict(tokens)
            dropped, self._finished = self._finished, {}
        for attempt in dropped.values():
            self.discard_attempt(attempt)
        self._side.release(self.task, batch)

    def await_copies(self, timeout_s: float) -> None:
        """Wait until `release`. Raises RetryableError if that takes longer."""
        if not self._free.wait(timeout_s):
            raise RetryableError(f"the stores of task {self.task} are still being copied for a commit")

    def _apply(self, attempts: list[TaskAttempt]) -> None:
        for attempt in attempts:
            if not isinstance(attempt, PacketAttempt):
                self.pending_bytes += attempt.apply()
                continue
            for store, overlay in attempt.instance.overlays.items():
                self._meters[store].read(attempt.instance.stores[store])
                changes = overlay.take()
                if changes:
                    self._engines[store].apply(changes)
                    add = without_passing if store in self._written_once else merged
                    self._pending[store] = add(self._pending.get(store), changes)
                    size_bytes = changes_bytes(changes)
                    self.pending_bytes += size_bytes
                    self._meters[store].wrote(len(changes), deletes_in(changes), size_bytes)
            old = self._standing.pop(attempt.instance.stage, None)
            if old is not None:
                self._close(old)
            self._standing[attempt.instance.stage] = attempt.instance

    def drop_attempts(self) -> None:
        with self._lock:
            dropped, self._finished = self._finished, {}
        for attempt in dropped.values():
            self.discard_attempt(attempt)

    def next_due(self) -> dict[str, Due]:
        """By operator id, the times of the oldest timers that ended batches left in its stores. Builds no operator.
        Raises ContainerLostError if a store cannot be read."""
        specs = {spec.name: spec for spec in self._topology.graph.stores}
        found: dict[str, Due] = {}
        for spec in self._topology.graph.operators:
            operator = operator_of(spec)
            for name in operator.time_stores:
                try:
                    due = operator.next_due(build_store(specs[name], self._engines[name], cache_entries=1))
                except EngineFailedError as error:
                    raise ContainerLostError(
                        f"task {self.task} must be restored: what waits in its store `{name}` cannot be read: {error}"
                    ) from error
                if due != NOTHING_DUE:
                    found[spec.id] = earlier(due, found.get(spec.id, NOTHING_DUE))
        return found

    def take_changes(self, *, hold: bool = False) -> dict[str, Changes]:
        """Net changes of every store since the last call: the commit's synchronous part. With `hold`, the engines stay
        as they are, and the next `end` waits, until `release`."""
        with self._lock:
            self._check()
            pending, self._pending = self._pending, {}
            self.pending_bytes = 0
            if hold:
                self._free.clear()
        return {store: pending.get(store, {}) for store in self._engines}

    def release(self) -> None:
        self._free.set()

    def engine(self, store: str) -> Engine:
        return self._engines[store]

    def fence(self) -> bool:
        """Apply nothing any more: an End that is under way is awaited, and later ones are refused. False if a batch was
        applied in part: nobody knows what the stores hold."""
        with self._lock:
            is_whole = self._broken is None
            self._broken = self._broken or "the container leaves the epoch"
        return is_whole

    def close(self, besides: Container[str] = ()) -> None:
        """Close attempts, instances and engines, except those of the stores `besides`, which belong to somebody else by
        now. Errors of user code are logged."""
        self.drop_attempts()
        with self._lock:
            self._broken = self._broken or "it was closed"
            standing, self._standing = self._standing, {}
        for instance in standing.values():
            self._close(instance)
        if self._kept_output is not None:
            self._kept_output.close()
        for store, engine in self._engines.items():
            if store in besides:
                continue
            try:
                engine.close()
            except Exception as error:  # a working copy, which is never read again
                logger.warning("store `%s` of task %d was not closed cleanly: %s", store, self.task, error)

    def _check(self) -> None:
        if self._broken is not None:
            raise ContainerLostError(f"task {self.task} can do nothing more: {self._broken}")
