"""The contract of every state backend, as tests that each backend's own test class inherits.

```
class TestMyBackend(StateBackendContract):
    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        return MyBackendFactory()
```

Every test runs over RocksDB and over the engine in memory. A backend that keeps its data in a system overrides the
fixture `systems`; one that keeps anything outside the object store overrides `written`, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

import pytest

from penstock.errors import CorruptError, FencedError, NotFoundError, RetryableError
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import RestoreProgress, StateBackendFactory
from penstock.state.engines.engine import Changes
from penstock.system.base import System
from penstock.testing.contracts.state_retention import StateRetentionContract
from penstock.testing.faulty_store import FaultyStore, SlowStore
from penstock.testing.state_backend_harness import STORES, BackendHarness, Content, EngineName, StandbyOf

__all__ = ["STORES", "BackendHarness", "Content", "StateBackendContract"]

_SLOW_S = 1.2
"""Longer than an upload waits for a small base."""


class StateBackendContract(StateRetentionContract):
    """Inherit, and give a `factory` fixture: the backend. With retention, from `StateRetentionContract`."""

    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        """The backend under test."""
        raise NotImplementedError

    @pytest.fixture
    def systems(self) -> Mapping[str, System]:
        """The systems that contexts have, by name; new and empty for every test. Override it if you need one."""
        return {}

    @pytest.fixture
    def overrides(self) -> Mapping[str, object]:
        """The configuration of the job, where the defaults are not what you want to test."""
        return {}

    @pytest.fixture(params=["rocksdb", "memory"])
    def engine(self, request: pytest.FixtureRequest) -> EngineName:
        """The engine that the stores live in."""
        name: EngineName = request.param
        return name

    @pytest.fixture
    def objects(self, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
        """An empty object store."""
        with closing(open_store(f"memory://{id(request)}-{request.node.nodeid}")) as store:
            yield store

    @pytest.fixture
    def harness(
        self,
        factory: StateBackendFactory,
        objects: ObjectStore,
        tmp_path: Path,
        engine: EngineName,
        systems: Mapping[str, System],
        overrides: Mapping[str, object],
    ) -> Iterator[BackendHarness]:
        """A job that uses the backend. After the test, no copy may be in use."""
        with closing(BackendHarness(factory, objects, tmp_path, engine, systems, overrides)) as harness:
            yield harness
        assert not harness.copies

    def written(self, harness: BackendHarness) -> object:
        """All that the backend has written so far, in any form that can be compared."""
        return {key: harness.objects.get(key) for key in harness.objects.list("")}

    # -- commits and restores --

    def test_every_marker_rebuilds_its_own_version(self, harness: BackendHarness) -> None:
        """Random commits over several epochs; afterwards all of their markers restore exactly."""
        rng = random.Random(7)  # noqa: S311 - reproducible, not secret
        markers: dict[str, str] | None = None
        versions: list[tuple[dict[str, str], dict[str, Content]]] = []
        for epoch in range(1, 5):
            with closing(harness.backup(epoch, markers)) as task:
                for _ in range(4):
                    markers = task.commit_changes({store: random_changes(rng) for store in STORES})
                    versions.append((markers, {store: task.content(store) for store in STORES}))
        for own, contents in versions:
            for store in STORES:
                assert harness.restore(own[store], store) == contents[store]

    def test_a_copy_is_brought_from_marker_to_marker(self, harness: BackendHarness) -> None:
        """A standby follows some of the checkpoints of several epochs; where a step refuses, it restores whole."""
        rng = random.Random(11)  # noqa: S311 - reproducible, not secret
        markers: dict[str, str] | None = None
        copies = {every: StandbyOf(harness, "first") for every in (1, 3)}
        number = 0
        for epoch in range(1, 4):
            with closing(harness.backup(epoch, markers)) as task:
                for _ in range(4):
                    changes = {"first": {}, "second": {}} if number == 5 else {s: random_changes(rng) for s in STORES}
                    markers = task.commit_changes(changes)
                    number += 1
                    for every, copy in copies.items():
                        if number % every == 0:
                            copy.follow(markers["first"], epoch)
                            assert copy.content() == task.content("first")
        for copy in copies.values():
            copy.close()

    def test_a_copy_whose_step_was_cancelled_is_brought_to_a_later_marker(
        self, harness: BackendHarness, objects: ObjectStore
    ) -> None:
        rng = random.Random(13)  # noqa: S311 - reproducible, not secret
        copy = StandbyOf(harness, "first")
        with closing(harness.backup(1)) as task:
            copy.follow(task.commit_changes({s: random_changes(rng) for s in STORES})["first"])
            for seed in range(6):
                for _ in range(2):
                    markers = task.commit_changes({s: random_changes(rng) for s in STORES})
                harness.objects = faulty = FaultyStore(objects, seed, rate=0.4)
                with suppress(RetryableError):
                    copy.follow(markers["first"])
                faulty.rate, harness.objects = 0, objects
                markers = task.commit_changes({s: random_changes(rng) for s in STORES})
                copy.follow(markers["first"])
                assert copy.content() == task.content("first")
        copy.close()

    def test_a_copy_follows_or_begins_again_when_all_that_its_marker_named_is_deleted(
        self, harness: BackendHarness
    ) -> None:
        copy = StandbyOf(harness, "first")
        with closing(harness.backup(1)) as task:
            first = task.commit(first={b"%d" % n: b"x" * 50 for n in range(50)})
            copy.follow(first["first"])
            last = task.commit(first={b"1": b"y", b"2": None})
            task.finish()
            harness.collect([last], [first], epoch=1)
            copy.follow(last["first"])
            assert copy.content() == task.content("first")
        copy.close()

    def test_an_empty_store_has_a_marker_that_restores_empty(self, harness: BackendHarness) -> None:
        markers = harness.backup(1).commit()
        assert markers.keys() == set(STORES)
        assert harness.restore(markers["first"]) == {}

    def test_an_unchanged_store_writes_nothing_and_stays_restorable(self, harness: BackendHarness) -> None:
        task = harness.backup(1)
        first = task.commit(first={b"a": b"1"}, second={b"b": b"2"})
        before = self.written(harness)
        assert task.commit() == first
        task.close()
        assert harness.backup(2, first).commit() == first
        assert self.written(harness) == before
        assert harness.restore(first["second"], "second") == {b"b": b"2"}

    def test_deletes_and_odd_keys_and_values(self, harness: BackendHarness) -> None:
        task = harness.backup(1)
        odd = {b"": b"empty key", b"empty value": b"", b"\x00\xff": bytes(range(256)), b"k" * 70_000: b"v" * 70_000}
        markers = task.commit(first={**odd, b"gone": b"1"})
        assert harness.restore(markers["first"]) == {**odd, b"gone": b"1"}
        markers = task.commit(first={b"gone": None, b"never there": None, b"": None})
        assert harness.restore(markers["first"]) == {k: v for k, v in odd.items() if k}

    def test_deletes_of_absent_keys(self, harness: BackendHarness) -> None:
        task = harness.backup(1)
        assert harness.restore(task.commit(first={b"never there": None})["first"]) == {}
        markers = task.commit(first={b"a": b"1", b"nor this": None})
        task.close()
        markers = harness.backup(2, markers).commit(first={b"never there": None})
        assert harness.restore(markers["first"]) == {b"a": b"1"}

    def test_tasks_and_stores_do_not_touch_each_other(self, harness: BackendHarness) -> None:
        markers = {
            task: harness.backup(1, task=task).commit(first={b"k": b"%d" % task}, second={b"k": b"other"})
            for task in (0, 1, 11)
        }
        for task, own in markers.items():
            assert harness.restore(own["first"], task=task) == {b"k": b"%d" % task}
            assert harness.restore(own["second"], "second", task=task) == {b"k": b"other"}

    def test_upload_again_after_a_failure_has_the_same_effect(
        self, harness: BackendHarness, objects: ObjectStore
    ) -> None:
        for seed in range(10):
            faulty = FaultyStore(objects, seed, rate=0.5)
            harness.objects = faulty
            with closing(harness.backup(seed + 1)) as task:
                for number in range(3):
                    markers = task.commit_changes({"first": {b"%d" % number: b"x", b"k": b"%d" % number}}, retry=True)
                model = task.content()
            faulty.rate = 0
            assert harness.restore(markers["first"]) == model, f"seed {seed}"

    def test_nothing_written_is_ever_overwritten(self, harness: BackendHarness, objects: ObjectStore) -> None:
        task = harness.backup(1)
        first = task.commit(first={b"a": b"1"})
        before = {key: objects.get(key) for key in objects.list("")}
        task.commit(first={b"a": b"2"})
        markers = harness.backup(2, first).commit(first={b"b": b"3"})
        assert harness.restore(markers["first"]) == {b"a": b"1", b"b": b"3"}
        assert all(objects.get(key) == data for key, data in before.items())

    def test_a_dead_epochs_uploads_change_nothing(self, harness: BackendHarness) -> None:
        """Two epochs continue from one marker at once; the older one may be refused."""
        base = harness.backup(1).commit(first={b"base": b"1"})
        dead, live = harness.backup(2, base), harness.backup(3, base)
        with suppress(FencedError):
            dead.commit(first={b"dead": b"1"})
        first = live.commit(first={b"live": b"1"})
        with suppress(FencedError):
            dead.commit(first={b"dead": b"2", b"base": None})
        second = live.commit(first={b"live": b"2"})
        with suppress(FencedError):
            dead.commit(first={b"dead": b"3"})
        assert harness.restore(first["first"]) == {b"base": b"1", b"live": b"1"}
        assert harness.restore(second["first"]) == {b"base": b"1", b"live": b"2"}

    # -- what is lost, damaged or in the way --

    def test_a_lost_object_is_named(self, harness: BackendHarness, objects: ObjectStore) -> None:
        """Whatever is lost, a restore is exact or says what is missing."""
        task = harness.backup(1)
        task.commit(first={b"a": b"1"})
        marker = task.commit(first={b"b": b"1"})["first"]
        task.finish()
        stored = {key: objects.get(key) for key in self._objects_of(harness, "first")}
        for key, data in stored.items():
            objects.delete(key)
            message = self._restores_or_says(harness, marker, {b"a": b"1", b"b": b"1"})
            assert message is None or key in message
            objects.put_if_absent(key, data)
        for key in stored:
            objects.delete(key)
        message = self._restores_or_says(harness, marker, {b"a": b"1", b"b": b"1"})
        assert message is not None
        assert any(key in message for key in stored), "all ways may need the same one"
        for key, data in stored.items():
            objects.put_if_absent(key, data)
        assert harness.restore(marker) == {b"a": b"1", b"b": b"1"}

    def test_a_damaged_object_is_named(self, harness: BackendHarness, objects: ObjectStore) -> None:
        marker = harness.backup(1).commit(first={b"a": b"1" * 100})["first"]
        for key in self._objects_of(harness, "first"):
            data = objects.get(key)
            changed = data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
            for damaged in (b"", data[:-1], data[: len(data) // 2], data + b"x", changed):
                objects.delete(key)
                objects.put_if_absent(key, damaged)
                with pytest.raises(CorruptError) as raised:
                    harness.restore(marker)
                assert key in str(raised.value)
            objects.delete(key)
            objects.put_if_absent(key, data)

    @pytest.mark.parametrize("marker", ["", "x", "{}", "[]", "null", "7", '{"format":1}'])
    def test_what_is_not_a_marker_is_corrupt(self, harness: BackendHarness, marker: str) -> None:
        with pytest.raises(CorruptError):
            harness.restore(marker)
        with pytest.raises(CorruptError):
            harness.backup(1, {"first": marker}, content={"first": {}})

    def test_a_restore_reports_bytes_and_can_be_cancelled(self, harness: BackendHarness) -> None:
        task = harness.backup(1)
        for number in range(5):
            marker = task.commit(first={b"%d" % number: b"x" * 1000})["first"]
        reported: list[int] = []
        progress = RestoreProgress(Event(), reported.append)
        harness.restore_engine(marker, "first", progress).close()
        assert sum(reported) > 0
        progress.cancelled.set()
        with pytest.raises(RetryableError, match="cancelled"):
            harness.restore_engine(marker, "first", progress)

    # -- stores that somebody else restored, and bases --

    def test_init_after_somebody_else_restored(self, harness: BackendHarness) -> None:
        """Markers are continued over other files than the backend knows, and over what it wrote beyond them."""
        task = harness.backup(1)
        first = task.commit(first={b"a": b"1", b"b": b"1"}, second={b"s": b"1"})
        model = task.content()
        task.commit_changes({"first": {b"beyond": b"1", b"a": None}, "second": {b"s": b"2"}}, clean_up=False)
        task.close()
        with closing(harness.backup(2, first, content={"first": model, "second": {b"s": b"1"}})) as task:
            assert harness.restore(task.commit()["first"]) == model
            markers = task.commit(first={b"b": b"2", b"c": b"3"})
            assert task.content() == {b"a": b"1", b"b": b"2", b"c": b"3"}
        assert harness.restore(markers["first"]) == {b"a": b"1", b"b": b"2", b"c": b"3"}
        assert harness.restore(markers["second"], "second") == {b"s": b"1"}
        assert harness.restore(first["first"]) == model

    def test_base_before_marker(self, harness: BackendHarness) -> None:
        """A store with content and without a marker: none until all of it is backed up, then an exact one."""
        content = {b"%05d" % number: b"%d" % number * 20 for number in range(3000)}
        task = harness.backup(1, {}, content={"first": content})
        markers = task.commit_changes({"first": {b"00000": None, b"new": b"1"}}, complete=True)
        assert harness.restore(markers["first"]) == task.content()
        assert harness.restore(markers["second"], "second") == {}
        markers = task.commit(first={b"new": b"2"})
        assert harness.restore(markers["first"]) == task.content()
        assert len(task.content()) == 3000

    def test_changes_made_while_a_base_is_made(self, harness: BackendHarness, objects: ObjectStore) -> None:
        """Every marker that commits return meanwhile is exact; the last one is there in the end."""
        slow = SlowStore(objects, _SLOW_S)
        harness.objects = slow
        task = harness.backup(1, {}, content={"first": {b"base": b"1", b"changed": b"1", b"deleted": b"1"}})
        versions: list[tuple[str, Content]] = []
        changes: list[Changes] = [
            {b"at once": b"1"},
            {b"changed": b"2"},
            {b"deleted": None},
            {b"at once": None, b"last": b"1"},
        ]
        for number, changed in enumerate(changes):
            markers = task.commit_changes({"first": changed}, complete=number + 1 == len(changes))
            if "first" in markers:
                versions.append((markers["first"], task.content()))
            slow.seconds = 0
        for marker, content in versions:
            assert harness.restore(marker) == content
        assert versions[-1][1] == {b"base": b"1", b"changed": b"2", b"last": b"1"}

    def test_asking_again_for_a_base_changes_nothing_else(self, harness: BackendHarness, objects: ObjectStore) -> None:
        """One store has a marker and changes; the commit waits for the base of the other one."""
        with closing(harness.backup(1)) as task:
            first = task.commit(first={b"a": b"1"})["first"]
        harness.objects = SlowStore(objects, _SLOW_S)
        task = harness.backup(2, {"first": first}, content={"second": {b"b": b"1"}})
        markers = task.commit_changes({"first": {b"a": b"2"}, "second": {b"c": b"1"}}, complete=True)
        assert harness.restore(markers["first"]) == {b"a": b"2"}
        assert harness.restore(markers["second"], "second") == {b"b": b"1", b"c": b"1"}

    def test_close_while_a_base_is_made(self, harness: BackendHarness, objects: ObjectStore) -> None:
        """The copies are let go of; the next epoch starts again."""
        content = {b"a": b"1", b"b": b"2"}
        slow = SlowStore(objects, _SLOW_S)
        harness.objects = slow
        with closing(harness.backup(1, {}, content={"first": content})) as task:
            task.commit(first={b"c": b"3"})
        assert not harness.copies
        slow.seconds = 0
        task = harness.backup(2, {}, content={"first": content})
        markers = task.commit_changes({}, complete=True)
        assert harness.restore(markers["first"]) == content

    def test_a_base_that_fails_is_made_all_the_same(self, harness: BackendHarness, objects: ObjectStore) -> None:
        """The base is made even if an earlier, failed one has left objects, and if the store has changed since."""
        slow = _LosesFirstReply(objects, _SLOW_S)
        harness.objects = slow
        task = harness.backup(1, {}, content={"first": {b"%d" % number: b"x" for number in range(100)}})
        for number in range(3):
            task.commit_changes({"first": {b"%d" % number: b"changed"}}, retry=True)
            slow.seconds = 0
        markers = task.commit_changes({"first": {b"4": None}}, retry=True, complete=True)
        assert harness.restore(markers["first"]) == task.content()

    # -- metrics --

    def test_uploads_and_bases_and_restores_are_counted(self, harness: BackendHarness) -> None:
        """In bytes, at least those of the keys and values."""
        rng = random.Random(11)  # noqa: S311 - reproducible, not secret
        content = {rng.randbytes(20): rng.randbytes(400) for _ in range(200)}
        size_bytes = sum(len(key) + len(value) for key, value in content.items())

        def counted(name: str) -> float:
            return harness.metrics.snapshot().total(name, f"backend.{harness.factory.name}")

        with closing(harness.backup(1)) as task:
            markers = task.commit_changes({"first": content})
        assert counted("bytes-uploaded") >= size_bytes
        before = counted("bytes-downloaded")
        assert harness.restore(markers["first"]) == content
        assert counted("bytes-downloaded") >= before + size_bytes
        before = counted("bytes-uploaded")
        task = harness.backup(2, {}, content={"first": content})
        task.commit_changes({}, complete=True)
        assert counted("bytes-uploaded") >= before + size_bytes, "its base"
        before = counted("bytes-uploaded")
        task.commit_changes({"second": {b"k": b"v"}})
        assert before < counted("bytes-uploaded") < before + size_bytes, "what changed, and not the whole"

    def _restores_or_says(self, harness: BackendHarness, marker: str, content: Content) -> str | None:
        try:
            assert harness.restore(marker) == content
        except NotFoundError as error:
            return str(error)
        return None

    def _objects_of(self, harness: BackendHarness, store: str) -> list[str]:
        keys = harness.objects.list(harness.paths.store_folder(store))
        if not keys:
            pytest.skip("the backend keeps no objects")
        return keys


class _LosesFirstReply(SlowStore):
    """Makes its first object, and then reports a failure."""

    lost = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        done = super().put_if_absent(key, data)
        if not self.lost:
            self.lost = True
            raise RetryableError(f"the reply to the write of `{key}` was lost")
        return done


def random_changes(rng: random.Random) -> dict[bytes, bytes | None]:
    """A few puts and deletes of a few keys."""
    keys = [b"%d" % rng.randrange(30) for _ in range(rng.randrange(12))]
    return {key: None if rng.random() < 0.3 else rng.randbytes(rng.randrange(40)) for key in keys}
