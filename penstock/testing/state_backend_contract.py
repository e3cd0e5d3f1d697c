"""What every state backend must do, as tests to inherit.

A test class inherits `StateBackendContract` and defines the pytest fixture `factory`: the backend. All tests use one
object store in memory and engines in memory; the backend sees what a container would show it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping

import pytest

from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError, NotFoundError, PenstockError, RetryableError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths
from penstock.state.backends.base import BackendContext, RestoreProgress, StateBackendFactory, TaskBackupManager
from penstock.state.engine import Changes, Engine, MemoryEngine
from penstock.testing.faulty_store import FaultyStore

STORES = ("first", "second")
Content = dict[bytes, bytes]


class BackendHarness:
    """One task's stores over several epochs: the driver's part of commits and restores."""

    def __init__(self, factory: StateBackendFactory, objects: ObjectStore) -> None:
        self.factory = factory
        self.objects = objects
        self._commits = 0

    def context(self, epoch: int, task: int = 0) -> BackendContext:
        """What a backend is given."""
        return BackendContext(self.objects, JobPaths("contract", "1"), task, STORES, epoch)

    def backup(self, epoch: int, markers: Mapping[str, str] | None = None, task: int = 0) -> TaskBackupManager:
        """A backup manager that continues from markers."""
        manager = self.factory.backup_manager(self.context(epoch, task))
        manager.init(markers or {})
        return manager

    def commit(self, manager: TaskBackupManager, **changes: Changes) -> dict[str, str]:
        """Snapshot and upload."""
        self._commits += 1
        checkpoint_id = CheckpointId(self._commits, 0)
        manager.snapshot(checkpoint_id, {store: changes.get(store, {}) for store in STORES})
        return dict(manager.upload(checkpoint_id))

    def restore(self, marker: str, store: str = "first", *, epoch: int = 99, task: int = 0) -> Content:
        """A store as the marker has it."""
        engine = MemoryEngine()
        progress = RestoreProgress(threading.Event(), lambda _: None)
        self.restore_into(engine, marker, store, progress, epoch=epoch, task=task)
        return dict(engine.scan(None, None))

    def restore_into(
        self, engine: Engine, marker: str, store: str, progress: RestoreProgress, *, epoch: int = 99, task: int = 0
    ) -> None:
        """The same, into an engine."""
        manager = self.factory.restore_manager(self.context(epoch, task))
        try:
            manager.restore(marker, store, engine, progress)
        finally:
            manager.close()


class StateBackendContract:
    """The contract of `TaskBackupManager` and `TaskRestoreManager`."""

    @pytest.fixture
    def objects(self, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
        """An empty object store."""
        store = open_store(f"memory://{id(request)}-{request.node.nodeid}")
        yield store
        store.close()

    @pytest.fixture
    def harness(self, factory: StateBackendFactory, objects: ObjectStore) -> BackendHarness:
        """The backend under test."""
        return BackendHarness(factory, objects)

    def test_every_marker_rebuilds_its_own_version(self, harness: BackendHarness) -> None:
        """Random commits over several epochs; afterwards all of their markers restore exactly."""
        rng = random.Random(7)  # noqa: S311 - reproducible, not secret
        models: dict[str, Content] = {store: {} for store in STORES}
        markers: dict[str, str] = {}
        versions: list[tuple[dict[str, str], dict[str, Content]]] = []
        for epoch in range(1, 5):
            manager = harness.backup(epoch, markers)
            for _ in range(4):
                changes = {store: _random_changes(rng) for store in STORES}
                for store in STORES:
                    _apply(models[store], changes[store])
                markers = harness.commit(manager, **changes)
                versions.append((markers, {store: dict(model) for store, model in models.items()}))
            manager.close()
        for own, contents in versions:
            for store in STORES:
                assert harness.restore(own[store], store) == contents[store]

    def test_an_empty_store_has_a_marker_that_restores_empty(self, harness: BackendHarness) -> None:
        markers = harness.commit(harness.backup(1))
        assert markers.keys() == set(STORES)
        assert harness.restore(markers["first"]) == {}

    def test_an_unchanged_store_writes_nothing_and_stays_restorable(
        self, harness: BackendHarness, objects: ObjectStore
    ) -> None:
        manager = harness.backup(1)
        harness.commit(manager, first={b"a": b"1"}, second={b"b": b"2"})
        before = len(objects.list(""))
        markers = harness.commit(manager)
        assert len(objects.list("")) == before
        assert harness.restore(markers["second"], "second") == {b"b": b"2"}

    def test_deletes_and_odd_keys_and_values(self, harness: BackendHarness) -> None:
        manager = harness.backup(1)
        odd = {b"": b"empty key", b"empty value": b"", b"\x00\xff": bytes(range(256)), b"k" * 70_000: b"v" * 70_000}
        markers = harness.commit(manager, first={**odd, b"gone": b"1"})
        assert harness.restore(markers["first"]) == {**odd, b"gone": b"1"}
        markers = harness.commit(manager, first={b"gone": None, b"never there": None, b"": None})
        assert harness.restore(markers["first"]) == {k: v for k, v in odd.items() if k}

    def test_tasks_and_stores_do_not_touch_each_other(self, harness: BackendHarness) -> None:
        markers = {
            task: harness.commit(harness.backup(1, task=task), first={b"k": b"%d" % task}, second={b"k": b"other"})
            for task in (0, 1, 11)
        }
        for task, own in markers.items():
            assert harness.restore(own["first"], task=task) == {b"k": b"%d" % task}
            assert harness.restore(own["second"], "second", task=task) == {b"k": b"other"}

    def test_upload_again_after_a_failure_has_the_same_effect(
        self, factory: StateBackendFactory, objects: ObjectStore
    ) -> None:
        for seed in range(30):
            faulty = FaultyStore(objects, seed, rate=0.5)
            harness = BackendHarness(factory, faulty)
            manager = harness.backup(seed + 1)
            model: Content = {}
            for number in range(3):
                changes = {b"%d" % number: b"x", b"k": b"%d" % number}
                model |= changes
                checkpoint_id = CheckpointId(number + 1, 0)
                manager.snapshot(checkpoint_id, {"first": changes, "second": {}})
                markers = _until_it_works(manager, checkpoint_id)
            faulty.rate = 0
            assert harness.restore(markers["first"]) == model, f"seed {seed}"

    def test_nothing_written_is_ever_overwritten(self, harness: BackendHarness, objects: ObjectStore) -> None:
        manager = harness.backup(1)
        harness.commit(manager, first={b"a": b"1"})
        before = {key: objects.get(key) for key in objects.list("")}
        harness.commit(manager, first={b"a": b"2"})
        markers = harness.commit(harness.backup(2), first={b"a": b"3"})
        assert harness.restore(markers["first"]) == {b"a": b"3"}
        assert all(objects.get(key) == data for key, data in before.items())

    def test_a_dead_epochs_uploads_change_nothing(self, harness: BackendHarness) -> None:
        """Two epochs continue from one marker, at once and in either order."""
        base = harness.commit(harness.backup(1), first={b"base": b"1"})
        dead, live = harness.backup(2, base), harness.backup(3, base)
        harness.commit(dead, first={b"dead": b"1"})
        first = harness.commit(live, first={b"live": b"1"})
        harness.commit(dead, first={b"dead": b"2", b"base": None})
        second = harness.commit(live, first={b"live": b"2"})
        harness.commit(dead, first={b"dead": b"3"})
        assert harness.restore(first["first"]) == {b"base": b"1", b"live": b"1"}
        assert harness.restore(second["first"]) == {b"base": b"1", b"live": b"2"}

    def test_a_lost_object_is_named(self, harness: BackendHarness, objects: ObjectStore) -> None:
        manager = harness.backup(1)
        harness.commit(manager, first={b"a": b"1"})
        markers = harness.commit(manager, first={b"b": b"1"})
        for key in objects.list(""):
            data = objects.get(key)
            objects.delete(key)
            with pytest.raises(NotFoundError, match=key):
                harness.restore(markers["first"])
            objects.put_if_absent(key, data)
        assert harness.restore(markers["first"]) == {b"a": b"1", b"b": b"1"}

    def test_a_damaged_object_is_named(self, harness: BackendHarness, objects: ObjectStore) -> None:
        markers = harness.commit(harness.backup(1), first={b"a": b"1" * 100})
        for key in objects.list(""):
            data = objects.get(key)
            for damaged in (b"", data[:-1], data[: len(data) // 2], data + b"x", data[:-5] + b"y" + data[-4:]):
                objects.delete(key)
                objects.put_if_absent(key, damaged)
                with pytest.raises(CorruptError, match=key):
                    harness.restore(markers["first"])

    @pytest.mark.parametrize("marker", ["", "x", "{}", "[]", "null", "7", '{"format":1}'])
    def test_what_is_not_a_marker_is_corrupt(self, harness: BackendHarness, marker: str) -> None:
        with pytest.raises(CorruptError):
            harness.restore(marker)
        with pytest.raises(CorruptError):
            harness.backup(1, {"first": marker})

    def test_a_restore_reports_bytes_and_can_be_cancelled(self, harness: BackendHarness) -> None:
        manager = harness.backup(1)
        for number in range(5):
            markers = harness.commit(manager, first={b"%d" % number: b"x" * 1000})
        reported: list[int] = []
        progress = RestoreProgress(threading.Event(), reported.append)
        harness.restore_into(MemoryEngine(), markers["first"], "first", progress)
        assert sum(reported) > 0
        progress.cancelled.set()
        with pytest.raises(RetryableError, match="cancelled"):
            harness.restore_into(MemoryEngine(), markers["first"], "first", progress)


def _random_changes(rng: random.Random) -> dict[bytes, bytes | None]:
    keys = [b"%d" % rng.randrange(30) for _ in range(rng.randrange(12))]
    return {key: None if rng.random() < 0.3 else rng.randbytes(rng.randrange(40)) for key in keys}


def _apply(model: Content, changes: Changes) -> None:
    for key, value in changes.items():
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


def _until_it_works(manager: TaskBackupManager, checkpoint_id: CheckpointId) -> dict[str, str]:
    for _ in range(1000):
        try:
            return dict(manager.upload(checkpoint_id))
        except RetryableError:
            continue
    raise PenstockError("a thousand uploads failed")
