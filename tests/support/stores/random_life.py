"""The random life of a job's storage, from a seed: epochs with all kinds of configurations, commits, faults and deaths,
and moves to other numbers of tasks, with plain dicts beside it. Whatever happened, each retained checkpoint is restored
from every marker that it holds."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TypeVar

import pytest

from penstock.admin.checkpoint import change
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.task_versions import markers_of
from penstock.driver.commit import coordinator
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.errors import ContainerLostError, PenstockError, RetryableError
from penstock.job.identity import settle
from penstock.objects.open import RemoteObjectStore
from penstock.objects.store import ObjectStore
from penstock.repartition.move import MadePart, Move, move_here
from penstock.repartition.placement import Rule
from penstock.state import outside_backup, restore
from penstock.state.backends import base_backup
from penstock.state.backends.changelog_files import backup
from penstock.state.reading.reader import StateReader
from penstock.system.memory import MemorySystem
from penstock.system.partitioner import partition_of
from penstock.testing.faulty_store import FaultyStore, ForwardingStore
from tests.support.stores.faulty_s3 import FaultyS3
from tests.support.stores.storage_job import DEADLINE_S, PATHS, ROOT, StorageJob

T = TypeVar("T")
Content = dict[tuple[str, int], dict[bytes, bytes]]

BACKENDS = ("changelog-files", "blob", "changelog-stream")
_KEYS = 12
_TRIES = 50
_TASKS = (1, 2, 2, 3, 3, 4, 8)


class DeadError(PenstockError):
    """The process that makes this call has died."""


class Lifeline(ForwardingStore):
    """The object store as one process sees it. It dies at a call, before or after that has happened, and with it
    all its threads: nothing that they do afterwards happens."""

    def __init__(self, inner: ObjectStore, dies_after: int | None, *, done: bool) -> None:
        """`dies_after`: so many calls; None: it does not. `done`: whether the last call still happens."""
        super().__init__(inner)
        self._left = dies_after
        self._done = done
        self._lock = threading.Lock()
        self.dead = False

    def die(self, calls: int = 0) -> None:
        """From here on, or from so many calls on, nothing happens any more."""
        with self._lock:
            self._left = calls
            self.dead = self.dead or calls == 0

    def _call(self, call: Callable[[], T]) -> T:
        with self._lock:
            if self.dead:
                raise DeadError("the process is dead")
            if self._left is not None:
                self._left -= 1
                self.dead = self._left <= 0
            dies = self.dead
        if dies and not self._done:
            raise DeadError("the process died before a call")
        result = call()
        if dies:
            raise DeadError("the process died behind a call")
        return result

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._call(lambda: self._inner.put_if_absent(key, data))

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        return self._call(lambda: self._inner.put_if_match(key, data, tag))

    def get(self, key: str) -> bytes:
        return self._call(lambda: self._inner.get(key))

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        for piece in self._call(lambda: self._inner.pieces(key)):
            yield piece
            self._call(lambda: None)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        return self._call(lambda: self._inner.get_with_tag(key))

    def folders(self) -> list[str]:
        return self._call(self._inner.folders)

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._call(lambda: self._inner.sizes(prefix))

    def delete_durably(self, key: str) -> None:
        self._call(lambda: self._inner.delete_durably(key))

    def remove_empty_folders(self, prefix: str) -> None:
        self._call(lambda: self._inner.remove_empty_folders(prefix))

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        return self._call(lambda: self._inner.list(prefix, after))

    def delete(self, key: str) -> None:
        self._call(lambda: self._inner.delete(key))

    def close(self) -> None:
        """Other threads of the process may still use it."""


class Life:
    """One job, from its first start. `story` says what happened."""

    def __init__(self, seed: int, folder: Path, objects: FaultyStore | FaultyS3 | None = None) -> None:
        """`objects`: None for a store in memory whose calls fail."""
        self.random = random.Random(seed)
        self.story: list[str] = []
        self._folder = folder
        self._faulty: FaultyStore | FaultyS3 = objects or FaultyStore(memory(), seed, 0.0)
        stores = ("first", "second")[: self.random.choice((1, 1, 2))]
        self._moves = self.random.choice((0.0, 0.6))
        """The share of gaps between two drivers in which the state is moved to another number of tasks."""
        self._inputs = self.random.choice((1, 1, 2)) if self._moves else 1
        self.job = StorageJob(
            folder,
            self._faulty,
            {"local": MemorySystem("local")},
            tasks=self.random.randint(self._inputs, 2),
            stores=stores,
            config={},
            kept=("kept",) if self._moves and self.random.random() < 0.5 else (),
            inputs=self._inputs,
        )
        self.job.uid = settle(self._faulty, PATHS, ROOT)
        self._now: Content = {}
        self._known: dict[CheckpointId, Content] = {}
        """The content of every checkpoint that was ever begun."""
        self._line = Lifeline(self._faulty, None, done=False)
        self._dies_at: str | None = None
        """Before which step of a commit the process dies, which one counting."""
        self._steps = 0
        self._loses = False
        """True if a container is lost before the next record is written."""

    def live(self, starts: int) -> None:
        """So many drivers, one after the other; after each one everything is looked at."""
        for number in range(starts):
            if number and self.random.random() < self._moves:
                self._repartition()
            try:
                self._run()
            except PenstockError as error:
                if not self._line.dead:
                    raise
                self._tell(f"died: {error}")
            finally:
                self._line.die()
                self.job.leave()
            if number == starts - 1 or self.random.random() < 0.25:
                self.check()
        shutil.rmtree(self._folder, ignore_errors=True)

    def check(self) -> None:
        """Restore each retained checkpoint from every marker that it holds, with the code that reads state."""
        self._faulty.rate = 0.0
        view = CheckpointLog(self._faulty, PATHS).read()
        for record in view.restorable:
            config = self.job.settings(record.task_count)
            with StateReader(config, PATHS, self._faulty, self.job.systems) as reader:
                for task in range(record.task_count):
                    own = markers_of(record, task, config.changelog_partitions(record.stores, task))
                    for store in record.stores:
                        backends = [name for name in own if store in own[name]]
                        assert backends, f"checkpoint {record.id} has no marker of `{store}`"
                        for backend in backends:
                            what = f"checkpoint {record.id}, store `{store}` of task {task}, from {backend}"
                            self._tell(f"restored: {what}")
                            with reader.open(record, store, task, backend) as engine:
                                found = dict(engine.scan(None, None))
                            expected = self._known[record.id].get((store, task), {})
                            assert found == expected, f"{what}: {found}, expected {expected}"

    # One driver.

    def _run(self) -> None:
        """From its start to its end: a clean stop, or whatever stops it."""
        dies = self.random.choice((None, None, self.random.randint(1, 80)))
        self._dies_at = self.random.choice((None, None, ("upload", "record", "clean-up")[self.random.randrange(3)]))
        self._steps = self.random.randint(1, 6)
        self._loses = False
        self._line = Lifeline(self._faulty, dies, done=self.random.random() < 0.5)
        self._faulty.rate = self.random.choice((0.0, 0.0, 0.03, 0.1))
        self.job.objects = self._line
        if not self.job.overrides or self.random.random() < 0.6:
            self.job.overrides = self._configuration()
        log = self.job.start()
        claim, commits = self._enter(log, lambda _: self._origin(log))
        for _ in range(self.random.randint(0, 5)):
            lost = self.random.random() < 0.2
            try:
                self._loses = lost and self.random.random() < 0.6
                self._step(commits, claim)
            except ContainerLostError:
                assert self._loses
            self._loses = False
            if lost:  # a container: a new epoch of the same driver
                self._tell("rewinds")
                commits.abandon()
                self._rewind()
                commits.close()
                claim, commits = self._enter(log, lambda claim: (log.latest_before(claim), False))
        if self.random.random() < 0.6:
            self._commit(commits, claim, last=True)
            for home in self.job.fleet.homes.values():
                home.services.wind_down(DEADLINE_S)
            self._tell("stopped")
        commits.close()

    def _enter(
        self, log: CheckpointLog, origin: Callable[[Claim], tuple[CheckpointRecord | None, bool]]
    ) -> tuple[Claim, CommitCoordinator]:
        """A claim, its epoch, and the start checkpoint. As the driver does, again if something failed for now."""
        for attempt in range(_TRIES):
            if attempt == 5:
                self._faulty.rate = 0.0
            try:
                claim = log.claim("run")
                record, empty = origin(claim)
                self._tell(f"epoch {claim.epoch} from {record.id if record else None}{', emptied' if empty else ''}")
                if record is not None:  # perhaps an older one, with another number of tasks
                    self.job.tasks = record.task_count
                commits = self.job.open(log, claim, record, self._homes(), empty=empty)
                self.job.fleet.at = self._at
                before = {} if record is None or empty else self._known[record.id]
                self._now = {place: dict(before.get(place, {})) for place in self._places()}
                found = self.job.content()
                assert found == self._now, f"epoch {claim.epoch} began with {found}, expected {self._now}"
                self._commit(commits, claim)
            except RetryableError as error:
                self._tell(f"again: {error}")
                self._rewind()
            else:
                return claim, commits
        raise AssertionError("no start succeeded")

    def _rewind(self) -> None:
        """Some of the containers live on."""
        names = sorted(self.job.fleet.homes)
        self.job.leave(keeping=[name for name in names if self.random.random() < 0.7])

    def _at(self, step: str) -> None:
        """A step of a commit is next."""
        if step == self._dies_at:
            self._steps -= 1
            if self._steps == 0:
                self._line.die()
        if step == "record" and self._loses:
            raise ContainerLostError("a container was lost before the record was written")
        if self._line.dead:
            raise DeadError(f"the process died before the {step}")

    def _origin(self, log: CheckpointLog) -> tuple[CheckpointRecord | None, bool]:
        """The last checkpoint, an older one (`--from`), or the last one with its state emptied."""
        view = log.known()
        if view.latest is None:
            return None, False
        choice = self.random.random()
        if choice < 0.2:
            return self.random.choice(view.restorable), False
        return view.latest, choice > 0.93

    def _step(self, commits: CommitCoordinator, claim: Claim) -> None:
        """Some batches, then a commit, the next batch beside it."""
        for _ in range(self.random.randint(0, 2)):
            self._batch()
        commits.begin(claim, self.job.request())
        self._remember(commits)
        if self.random.random() < 0.5:
            self._batch()
        self._await(commits)

    def _commit(self, commits: CommitCoordinator, claim: Claim, *, last: bool = False) -> None:
        commits.begin(claim, self.job.request(last=last))
        self._remember(commits)
        self._await(commits)

    def _remember(self, commits: CommitCoordinator) -> None:
        assert commits.in_flight is not None
        self._known[commits.in_flight.checkpoint_id] = {place: dict(own) for place, own in self._now.items()}

    def _await(self, commits: CommitCoordinator) -> None:
        done = commits.wait(DEADLINE_S, threading.Event())
        assert done is not None
        self._tell(f"checkpoint {done.record.id}")

    def _batch(self) -> None:
        changes: dict[tuple[str, int], dict[bytes, bytes | None]] = {place: {} for place in self._places()}
        for store in self.job.stores:
            for key, value in self._some().items():
                changes[store, partition_of(key, self.job.tasks)][key] = value
        for store in self.job.kept:
            for task in range(self._inputs):  # the others read nothing
                changes[store, task] = self._some()
        for place, own in changes.items():
            for key, value in own.items():
                if value is None:
                    self._now[place].pop(key, None)
                else:
                    self._now[place][key] = value
        self.job.run_batch(changes)

    def _some(self) -> dict[bytes, bytes | None]:
        """Changes of some keys."""
        count = self.random.choice((0, 1, 1, 3, _KEYS))
        keys = [b"%d" % self.random.randrange(_KEYS) for _ in range(count)]
        return {key: None if self.random.random() < 0.25 else self.random.randbytes(8) for key in keys}

    # Between two drivers.

    def _repartition(self) -> None:
        """Give the job another number of tasks, or die of it: whatever process dies, and at whatever call, the log ends
        with the former checkpoint, or with the new one, which has every entry in the task that the partitioner says,
        and all that the former one retained can be restored."""
        former = self._last()
        if former is None:
            return
        tasks = self.random.choice([each for each in _TASKS if self._inputs <= each != former.task_count])
        for attempt in range(_TRIES):
            error = self._try_to_move(former, tasks, healthy=attempt == 5)
            found = self._last()
            assert found is not None
            if found != former:
                self._check_moved(former, found, tasks)
            assert error is not None or found != former, "it said that it was done"
            if self.random.random() < 0.25 or (error is not None and found != former):
                self.check()
            if found != former or self.random.random() < 0.3:
                return
        raise AssertionError("no move succeeded")

    def _last(self) -> CheckpointRecord | None:
        """The last checkpoint, as somebody sees it whose store is healthy."""
        self._faulty.rate = 0.0
        return CheckpointLog(self._faulty, PATHS).read().latest

    def _try_to_move(self, former: CheckpointRecord, tasks: int, *, healthy: bool) -> PenstockError | None:
        """One process that moves the state. Returns what ended it before it was done."""
        self._faulty.delete(PATHS.lease)  # that of a dead process has run out
        if self.random.random() < 0.3:
            self.job.overrides = self._configuration()
        dies = None if healthy else self.random.choice((None, None, "before", "while", "behind"))
        calls = self.random.randint(1, 50) if dies == "before" else None
        self._line = self.job.objects = Lifeline(self._faulty, calls, done=self.random.random() < 0.5)
        self._faulty.rate = 0.0 if healthy else self.random.choice((0.0, 0.0, 0.03))
        self._tell(f"moves {former.id} from {former.task_count} to {tasks} tasks")
        try:
            self.job.repartition(tasks, lambda move: self._moved_here(move, dies), self._rules(former))
        except PenstockError as error:
            if not (
                self._line.dead or isinstance(error, RetryableError) or isinstance(error.__cause__, RetryableError)
            ):
                raise
            self._tell(f"ended: {error}")
            return error
        finally:
            self._line.die()
        return None

    def _moved_here(self, move: Move, dies: str | None) -> list[MadePart]:
        """Some parts are made twice, as if by a task of Spark that was repeated. The process dies `while` they are
        made, or `behind` that, about where the checkpoint is written."""
        if dies == "while":
            self._line.die(self.random.randint(1, 8 * move.after))
        made = move_here(move, self._scratch())
        if self.random.random() < 0.2:
            again = move_here(move, self._scratch())
            made = [self.random.choice(pair) for pair in zip(made, again, strict=True)]
        if dies == "behind":
            self._line.die(self.random.randint(1, 3))
        return made

    def _scratch(self) -> Path:
        """Another folder each time: a process that dies leaves files."""
        return Path(mkdtemp(prefix="moving-", dir=self._folder))

    def _rules(self, former: CheckpointRecord) -> dict[str, Rule]:
        """All of them say the same. One task needs one."""
        rules: dict[str, Rule] = {}
        for store in self.job.stores:
            choice = self.random.randrange(3)
            if choice == 0:
                rules[store] = lambda key, value: key
            elif choice == 1 or former.task_count == 1:
                rules[store] = "key"
        return rules

    def _check_moved(self, former: CheckpointRecord, found: CheckpointRecord, tasks: int) -> None:
        """Remember what the checkpoint has to hold: the model knows of no task but the key's own."""
        self._tell(f"moved: checkpoint {found.id}")
        assert (found.parent, found.task_count, found.batch) == (former.id, tasks, former.batch)
        if self.job.overrides["task.checkpoint.retained"] != 1:
            assert former.id in (found.retained or {}).values(), "the job does not retain the former checkpoint"
        assert found.next_offsets == {task: former.next_offsets.get(task, {}) for task in range(tasks)}
        content: Content = {}
        for (store, task), own in self._known[former.id].items():
            for key, value in own.items():
                owner = task if store in self.job.kept else partition_of(key, tasks)
                assert key not in content.setdefault((store, owner), {})
                content[store, owner][key] = value
        self._known[found.id] = content

    def _configuration(self) -> dict[str, object]:
        backups = self.random.sample(BACKENDS, self.random.choice((1, 1, 2, 3)))
        given: dict[str, object] = {
            "stores.backup.factories": ",".join(backups),
            "stores.restore.factories": ",".join(self.random.sample(BACKENDS, 3)),
            "job.host-affinity.enabled": self.random.random() < 0.3,
            "state.snapshot.interval.commits": self.random.choice((0, 1, 2, 3)),
            "state.snapshot.interval.seconds": 0,
            "state.changelog.enabled": self.random.random() < 0.8,
            "task.checkpoint.retained": self.random.randint(1, 4),
        }
        for store in (*self.job.stores, *self.job.kept):
            often = 12 if self._moves else 4  # many tasks on disk are slow
            given[f"stores.{store}.factory"] = self.random.choice(("memory",) * often + ("columns", "rocksdb"))
        self._tell(f"configured {given}")
        return given

    def _homes(self) -> dict[str, tuple[int, ...]]:
        """Tasks move between containers."""
        homes: dict[str, tuple[int, ...]] = {}
        for task in range(self.job.tasks):
            name = self.random.choice(("c0", "c1"))
            homes[name] = (*homes.get(name, ()), task)
        return homes

    def _places(self) -> list[tuple[str, int]]:
        stores = (*self.job.stores, *self.job.kept)
        return [(store, task) for store in stores for task in range(self.job.tasks)]

    def _tell(self, what: str) -> None:
        self.story.append(what)


def no_pauses(patch: pytest.MonkeyPatch) -> None:
    """Lives are lived without pauses."""
    patch.setattr(restore, "_RESTORE", replace(restore._RESTORE, pause_s=0.001))
    patch.setattr(coordinator, "_APPEND", replace(coordinator._APPEND, pause_s=0.001))
    patch.setattr(coordinator, "_LOOK_SECONDS", 0.001)
    patch.setattr(change, "_APPEND", replace(change._APPEND, pause_s=0.001))
    patch.setattr(outside_backup, "_UPLOAD", replace(outside_backup._UPLOAD, pause_s=0.001))
    patch.setattr(outside_backup, "_BASE_POLL_S", 0.001)
    patch.setattr(base_backup, "SMALL_BASE_SECONDS", 0.0)
    patch.setattr(backup, "_BASE", replace(backup._BASE, pause_s=0.001))
    patch.setattr("penstock.container.commit._BASE_POLL_SECONDS", 0.001)


def live(seed: int, starts: int, objects: FaultyStore | FaultyS3 | None = None) -> None:
    """One life; a failure names its seed and tells its story."""
    with TemporaryDirectory(prefix="penstock-life-") as folder:
        life = Life(seed, Path(folder), objects)
        try:
            life.live(starts)
        except BaseException as error:
            story = "\n".join(life.story)
            raise AssertionError(f"PENSTOCK_LIFE={seed} lives it again:\n{story}\n{error!r}") from error


def memory() -> ObjectStore:
    from obstore.store import MemoryStore

    return RemoteObjectStore("memory://life", store=MemoryStore())
