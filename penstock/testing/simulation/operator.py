"""Somebody who types commands while a job lives, and while it does not; and the watches of its checkpoints.

Each retained checkpoint can be restored from every marker that it has, and each was put behind the claim that it
belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.admin.checkpoint.change import plan_offsets, write_checkpoint
from penstock.admin.checkpoint.labels import label_checkpoint, unlabel_checkpoint
from penstock.admin.job.delete import delete_job
from penstock.admin.job.drain import drain
from penstock.admin.job.fork import detach, fork
from penstock.admin.job.running import stop
from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.set import set_startpoint
from penstock.admin.startpoint.waiting import delete_startpoints
from penstock.admin.state.held import collect_garbage
from penstock.admin.state.repartition import planned_for, repartition
from penstock.api.requests import StartpointOldest, StartpointSpecific
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord, Claim, Label, decode_record
from penstock.checkpoint.task_versions import markers_of
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.job.paths import JobPaths
from penstock.objects.forwarding import ForwardingStore
from penstock.objects.open import open_job_root
from penstock.objects.store import ObjectStore
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete
from penstock.start.startpoint_request import NAMESPACE, WithState
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_engine
from penstock.state.reading import reader as reading
from penstock.state.reading.reader import StateReader
from penstock.system.base import System
from penstock.testing.simulation.scheduler import Process, Scheduler

Content = dict[bytes, bytes]
_reading: Any = reading
_open_whatever = _reading.open_whatever


def _open_in_memory(settings: StoreSettings, directory: Path) -> Engine:
    """An empty folder becomes a store in memory: to open RocksDB takes as long as half a life."""
    if any(directory.iterdir()):
        found: Engine = _open_whatever(settings, directory)
        return found
    return open_engine(
        settings.put(StoreSettings.factory, "memory") if settings.factory == "rocksdb" else settings, directory
    )


class LogWatch:
    """Follows the records of the log in the order in which they are put. Only the writer of the last claim may put a
    checkpoint at the end of the log. No request for a startpoint is deleted that no record took."""

    def __init__(self, paths: JobPaths, broken: list[str]) -> None:
        """`broken`: gets what does not hold, in words."""
        self._paths = paths
        self._broken = broken
        self._last = -1
        self._owner: Claim | None = None
        self._asked: dict[str, str] = {}
        """Uuid of a request → its key."""
        self._taken: set[str] = set()

    def forget(self, uuids: Collection[str]) -> None:
        """Somebody took these requests back."""
        for each in uuids:
            self._asked.pop(each, None)

    def lost_requests(self, keys: Collection[str]) -> list[str]:
        """The requests that no record took, and that are not among these keys any more, in words."""
        lost = [key for uuid, key in self._asked.items() if uuid not in self._taken and key not in keys]
        return [f"the startpoint `{key}` is deleted, and no start took it" for key in lost]

    def on_put(self, key: str, data: bytes) -> None:
        if key.startswith(f"{self._paths.metadata_folder(NAMESPACE)}/"):
            self._asked[self._paths.metadata_key(NAMESPACE, key).rpartition("/")[2]] = key
        slot = self._paths.slot_of(key)
        if slot is None or slot <= self._last:
            return  # in a slot that was freed nothing counts
        self._last, record = slot, decode_record(data, key)
        if isinstance(record, Claim):
            self._owner = record
        elif isinstance(record, Label):
            pass  # anybody may append one
        elif self._owner is None or (record.epoch, record.writer) != (self._owner.epoch, self._owner.writer):
            held = "nobody" if self._owner is None else f"epoch {self._owner.epoch}"
            self._broken.append(f"checkpoint {record.id} of epoch {record.epoch} was written to a log of {held}")
        else:
            self._taken.update(record.consumed_startpoints)


class _NotedReads(ForwardingStore):
    """Remembers the objects that were read."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.tags: dict[str, str] = {}
        self.by_name = True
        """Nothing else was asked: no listing, and no object that is not there."""

    def forget(self) -> None:
        """Remember nothing of what was read until now."""
        self.tags, self.by_name = {}, True

    def get(self, key: str) -> bytes:
        return self.get_with_tag(key)[0]

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        try:
            data, self.tags[key] = self._inner.get_with_tag(key)
        except NotFoundError:
            self.by_name = False
            raise
        return data, self.tags[key]

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        yield self.get(key)

    def sizes(self, prefix: str) -> dict[str, int]:
        self.by_name = False
        return super().sizes(prefix)

    def folders(self) -> list[str]:
        self.by_name = False
        return super().folders()

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        self.by_name = False
        return super().list(prefix, after)


class CheckpointWatch:
    """Restores retained checkpoints, each once in a while, and remembers what was in them. One is restored again from
    a marker once an object has changed that it was restored from, or is gone."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, systems: Mapping[str, System]) -> None:
        self._objects = objects
        self._paths = paths
        self._systems = systems
        self._known: dict[str, dict[tuple[str, int], Content]] = {}
        """Checkpoint → (store, task) → the entries that it had when it was looked at first."""
        self._restored: dict[tuple[str, ...], Mapping[str, str]] = {}
        """(Checkpoint, store, task, backend, engine) → object that it was restored from → its tag then."""
        self.checked = 0
        """Restores so far."""

    def look(self, config: JobConfig) -> list[str]:
        """Restore the first and the last retained checkpoint from all markers. Returns what is broken, in words."""
        restorable = CheckpointLog(self._objects, self._paths).read().restorable
        return [
            problem
            for record in {each.id: each for each in (*restorable[:1], *restorable[-1:])}.values()
            for problem in self._broken(record, config)
        ]

    def contents(self, checkpoint_id: str) -> Mapping[tuple[str, int], Content]:
        """(Store, task) → the entries of a checkpoint, as far as it was looked at."""
        return self._known.get(checkpoint_id, {})

    def all_contents(self) -> Iterable[Mapping[tuple[str, int], Content]]:
        """The entries of each checkpoint that was looked at."""
        return self._known.values()

    def look_at_all(self, config: JobConfig) -> list[str]:
        """As `look`, for every retained checkpoint."""
        restorable = CheckpointLog(self._objects, self._paths).read().restorable
        return [problem for record in restorable for problem in self._broken(record, config)]

    def seen(self, record: CheckpointRecord, config: JobConfig) -> dict[str, list[tuple[int, bytes, bytes]]]:
        """Store → (task, key, value) of all entries of a checkpoint, as the application has them."""
        found: dict[str, list[tuple[int, bytes, bytes]]] = {}
        with closing(_Reader(config, self._paths, self._objects, self._systems)) as reader:
            for store in record.stores:
                found[store] = [
                    (task, *entry) for task in range(record.task_count) for entry in reader.seen(record, store, task)
                ]
        return found

    def _broken(self, record: CheckpointRecord, config: JobConfig) -> list[str]:
        found: list[str] = []
        known = self._known.setdefault(str(record.id), {})
        with closing(_Reader(config, self._paths, self._objects, self._systems)) as reader:
            for task in range(record.task_count):
                own = markers_of(record, task, config.changelog_partitions(record.stores, task))
                for store in record.stores:
                    backends = [name for name in own if store in own[name]]
                    if not backends:
                        found.append(f"checkpoint {record.id} has no marker of `{store}` of task {task}")
                    for backend in backends:
                        what = f"checkpoint {record.id}, store `{store}` of task {task}, from {backend}"
                        same = str(record.id), store, str(task), backend, config.store(store).factory
                        if self._is_unchanged(self._restored.get(same)):
                            continue
                        reader.noted.forget()
                        try:
                            content = reader.content(record, store, task, backend)
                        except PenstockError as error:
                            found.append(f"{what} cannot be restored: {type(error).__name__}: {error}")
                            continue
                        self.checked += 1
                        if content != known.setdefault((store, task), content):
                            found.append(f"{what} has {content}; it had {known[store, task]}")
                        elif reader.noted.by_name and backend != "changelog-stream":
                            self._restored[same] = reader.noted.tags
        return found

    def _is_unchanged(self, tags: Mapping[str, str] | None) -> bool:
        try:
            return tags is not None and all(self._objects.get_with_tag(key)[1] == tag for key, tag in tags.items())
        except NotFoundError:
            return False


class _Reader:
    def __init__(self, config: JobConfig, paths: JobPaths, objects: ObjectStore, systems: Mapping[str, System]) -> None:
        _reading.open_whatever = _open_in_memory
        scratch = Path(config.job.logged_store_base_dir)
        scratch.mkdir(parents=True, exist_ok=True)
        self.noted = _NotedReads(objects)
        self._reader = StateReader(config, paths, self.noted, systems, scratch=scratch)

    def content(self, record: CheckpointRecord, store: str, task: int, backend: str) -> Content:
        with self._reader.open(record, store, task, backend) as engine:
            return dict(engine.scan(None, None))

    def seen(self, record: CheckpointRecord, store: str, task: int) -> list[tuple[bytes, bytes]]:
        with self._reader.open(record, store, task) as engine:
            return list(reading.seen_entries(record, store, engine).scan(None, None))

    def close(self) -> None:
        self._reader.__exit__(None, None, None)


FORK = "fork"
"""The name of the job's fork, while there is one."""


class Operator:
    """Types commands of `penstock.admin`. Refusals are part of the story; damage is not."""

    def __init__(self, scheduler: Scheduler, errors: list[BaseException]) -> None:
        self._scheduler = scheduler
        self._errors = errors
        self.labels: dict[str, str] = {}
        """Label → its checkpoint, of those that were set, and that nobody has begun to take off."""
        self.forked: str | None = None
        """The checkpoint that the fork begins with, if it is complete and nobody has begun to delete it."""

    def _type(self, name: str, work: Callable[[], object]) -> None:
        """Carry a command out in a process."""
        process = Process("operator")

        def run() -> None:
            self._scheduler.note(f"operator: {name}")
            try:
                self._scheduler.note(f"operator: {name} is done: {str(work())[:100]}")
            except PenstockError as error:
                self._scheduler.note(f"operator: {name}: {type(error).__name__}: {error}")
                if isinstance(error, CorruptError):
                    self._errors.append(error)

        actor = self._scheduler.spawn(process, name, run)
        self._scheduler.join(self._scheduler.me(), actor, 600.0)
        self._scheduler.kill(process, "the command has ended")

    def stop(self, config: JobConfig) -> None:
        self._type("stop", lambda: stop(self._found(config), wait=False))

    def drain(self, config: JobConfig) -> None:
        self._type("drain", lambda: drain(self._found(config), wait=False))

    def collect(self, config: JobConfig) -> None:
        """`state gc`, which is refused while the job runs."""
        self._type("gc", lambda: collect_garbage(self._found(config)))

    def label(self, config: JobConfig) -> None:
        """`checkpoint label` and `checkpoint unlabel`. The job may run."""
        choices = self._scheduler.choices
        name = "abc"[choices.draw(3)]

        def work() -> object:
            found = self._found(config)
            if name in self.labels:
                del self.labels[name]
                return unlabel_checkpoint(found, name).checkpoint
            restorable = found.log.read().restorable
            if not restorable:
                raise PenstockError("the job has no checkpoint")
            chosen = str(restorable[choices.draw(len(restorable))].id)
            self.labels[name] = label_checkpoint(found, chosen, name).checkpoint
            return chosen

        self._type(f"checkpoint label {name}", work)

    def fork(self, config: JobConfig) -> None:
        """`penstock fork`; of a fork that is there, `job detach` or `job delete`. The job may run."""
        choices = self._scheduler.choices

        def work() -> object:
            own = self.fork_of(config)
            if self.forked is not None:
                if choices.draw(3):
                    return detach(own).copied
                self.forked = None
                return delete_job(own).job
            found = self._found(config)
            restorable = found.log.read().restorable
            if not restorable:
                raise PenstockError("the job has no checkpoint")
            chosen = str(restorable[choices.draw(len(restorable))].id)
            try:
                made = fork(found, FORK, chosen)
            except IncompatibleError:
                delete_job(own)  # of another checkpoint, and somebody died on the way
                raise
            self.forked = made.parent_checkpoint
            return chosen

        self._type("fork", work)

    def lost_labels(self, view: LogView) -> list[str]:
        """The labels whose checkpoints cannot be restored any more, in words."""
        restorable = {str(record.id) for record in view.restorable}
        lost = [each for each in self.labels.items() if each[1] not in restorable]
        return [f"checkpoint {checkpoint} has the label `{name}`, and is not retained" for name, checkpoint in lost]

    def broken_fork(self, parent: CheckpointWatch, fork: CheckpointWatch, config: JobConfig) -> list[str]:
        """The difference between the fork and the checkpoint that it begins with, in words."""
        if self.forked is None:
            return []
        broken = [f"the fork: {each}" for each in fork.look(config.of_job(FORK, config.job.id))]
        known = parent.contents(self.forked)
        for found in fork.all_contents():
            different = [at for at, content in found.items() if content != known.get(at, content)]
            broken += [f"the fork has another content of store `{store}` of task {task}" for store, task in different]
        return broken

    def fork_of(self, config: JobConfig) -> FoundJob:
        return self._found(config.of_job(FORK, config.job.id))

    def startpoint(self, inputs: Sequence[SystemStream], config: JobConfig) -> None:
        """`startpoint set`, for a position that was reached before. The job may run."""
        choices = self._scheduler.choices
        stream = inputs[choices.draw(len(inputs))]
        with_state: WithState = ("keep", "clear", "nearest")[choices.draw(3)]

        def work() -> object:
            found = self._found(config)
            if with_state == "clear":
                asked = [set_startpoint(found, str(each), StartpointOldest(), with_state="clear") for each in inputs]
                return asked[-1].changes
            reached = self._reached(found, stream)
            partition = sorted(reached)[choices.draw(len(reached))]
            at = StartpointSpecific(str(choices.draw(reached[partition] + 1)))
            return set_startpoint(found, str(stream), at, partitions=[partition], with_state=with_state).changes

        self._type(f"startpoint set --with-state {with_state}", work)

    def take_back(self, config: JobConfig) -> tuple[str, ...] | None:
        """`startpoint delete`, as a start says that is refused because of one that leads it back to a checkpoint.
        Returns the uuids of what is deleted; None if the command failed, and is to be called again."""
        deleted: list[str] = []
        done: list[bool] = []

        def work() -> object:
            found = self._found(config)
            waiting = found.startpoints.waiting().live
            streams = {each.key.ssp.system_stream for each in waiting if each.with_state == "nearest"}
            for stream in sorted(streams, key=str):
                deleted.extend(each.uuid for each in waiting if each.key.ssp.system_stream == stream)
                delete_startpoints(found, str(stream))
            done.append(True)
            return len(deleted)

        self._type("startpoint delete", work)
        return tuple(deleted) if done or deleted else None

    def move(self, inputs: Sequence[SystemStream], config: JobConfig) -> None:
        """`checkpoint set`, back to positions that were reached before. It is refused while the job runs."""
        choices = self._scheduler.choices
        stream = inputs[choices.draw(len(inputs))]

        def work() -> object:
            found = self._found(config)
            reached = self._reached(found, stream)
            offsets = {
                SystemStreamPartition(stream.system, stream.stream, partition): choices.draw(upcoming + 1)
                for partition, upcoming in sorted(reached.items())
            }
            return write_checkpoint(plan_offsets(found, offsets)).checkpoint

        self._type("checkpoint set", work)

    def _reached(self, found: FoundJob, stream: SystemStream) -> dict[int, int]:
        """The positions that every retained checkpoint has reached: what is before them is in each one's state."""
        reached: dict[int, int] = {}
        for record in found.log.read().restorable:
            for own in record.next_offsets.values():
                for ssp, offset in own.items():
                    if ssp.system_stream == stream:
                        reached[ssp.partition] = min(offset, reached.get(ssp.partition, offset))
        if not reached:
            raise PenstockError("the job has no checkpoint")
        return reached

    def repartition(self, config: JobConfig, graph: ApplicationGraph, tasks: int) -> None:
        """`state repartition`."""

        def work() -> object:
            found = self._found(config)
            own = with_matches(complete(graph, config), config)
            streams = JobStreams.open(own, config)
            try:
                return repartition(planned_for(found, own, streams, tasks, {})).written
            finally:
                streams.close()

        self._type(f"repartition to {tasks}", work)

    def _found(self, config: JobConfig) -> FoundJob:
        return FoundJob(config, JobPaths(config.job.name, config.job.id), open_job_root(config.job))
