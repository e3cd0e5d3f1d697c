"""The changelog stream backend: appends of unknown outcome, reverts, generations, what cannot be restored."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import CorruptError, FencedError, NotFoundError, RetryableError
from penstock.objects.store import ObjectStore
from penstock.state.backends import base_backup
from penstock.state.backends import changelog_partition as partition
from penstock.state.backends.changelog_partition import ChangelogRange
from penstock.system.base import OffsetRange, RawRecord, System, WriterIdentity
from penstock.system.memory import MemorySystem, MemoryWriter
from penstock.testing.state_backend_contract import BackendHarness
from tests.support.stores.changelog_stream import (
    SSP,
    STREAM,
    config,
    log,
    make_harness,
    marker_of,
    pairs,
    random_changes,
)

# -- commits --


def test_a_commit_is_its_net_changes_at_its_time(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    assert marker_of(task.commit()) == ChangelogRange(SSP, 0, None)
    markers = task.commit(first={b"a": b"1", b"": b"", b"gone": None})
    time = harness.last_id().millis
    assert log(system) == [(0, time, b"a", b"1"), (1, time, b"", b""), (2, time, b"gone", None)]
    assert marker_of(markers) == ChangelogRange(SSP, 0, 2)
    assert task.commit() == markers
    assert len(log(system)) == 3


def test_a_large_commit_is_several_appends(
    harness: BackendHarness, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "_APPEND_RECORDS", 7)
    monkeypatch.setattr(partition, "_APPEND_BYTES", 40)
    monkeypatch.setattr(partition, "_READ_MESSAGES", 3)
    task = harness.backup(1)
    changes = {b"%d" % number: b"x" * (number % 50) for number in range(100)}
    markers = task.commit(first=changes)
    assert marker_of(markers).offset == 99
    assert harness.restore(markers["first"]) == changes
    assert marker_of(harness.backup(2, markers).commit(first={b"0": None})).offset == 100


class FlakySystem(MemorySystem):
    """Appends fail now and then; some of those that fail have happened all the same."""

    def __init__(self, seed: int) -> None:
        super().__init__("local")
        self.rng = random.Random(seed)
        self.rate = 0.0

    def writer(self, identity: WriterIdentity | None) -> MemoryWriter:
        return FlakyWriter(self, identity)


class FlakyWriter(MemoryWriter):
    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        assert isinstance(self._system, FlakySystem)
        if self._system.rng.random() >= self._system.rate:
            return super().append(ssp, records)
        if self._system.rng.random() < 0.5:
            super().append(ssp, records)
        raise RetryableError("the reply was lost")


@pytest.mark.parametrize("seed", range(15))
def test_an_append_of_unknown_outcome_is_made_again(
    objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(partition, "_APPEND_RECORDS", 3)
    system = FlakySystem(seed)
    rng = random.Random(seed)
    with closing(make_harness(objects, tmp_path, system)) as harness:
        markers: dict[str, str] | None = None
        versions = []
        for epoch in range(1, 4):
            task = harness.backup(epoch, markers)
            system.rate = 0.4
            for _ in range(4):
                changes = {store: random_changes(rng) for store in ("first", "second")}
                markers = task.commit_changes(changes, retry=True)
                versions.append((markers, {store: task.content(store) for store in changes}))
            system.rate = 0.0
        for own, contents in versions:
            assert {store: harness.restore(marker, store) for store, marker in own.items()} == contents


def test_a_second_upload_appends_only_what_is_missing(objects: ObjectStore, tmp_path: Path) -> None:
    """`upload` is called again while another task waits for its base."""
    system = MemorySystem("local")
    with closing(make_harness(objects, tmp_path, system)) as harness:
        task = harness.backup(1)
        markers = task.commit(first={b"a": b"1"})
        assert task.manager.upload(harness.last_id(), {}) == markers
        assert len(log(system)) == 1


# -- init: back to the marker --


def test_init_writes_again_what_a_dead_epoch_changed(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    first = task.commit(first={b"changed": b"1", b"deleted": b"1", b"same": b"1", b"untouched": b"1"})
    task.commit_changes({"first": {b"changed": b"2", b"deleted": None}}, clean_up=False)
    task.commit_changes({"first": {b"new": b"1", b"same": b"1", b"came and went": b"1"}}, clean_up=False)
    task.commit_changes({"first": {b"came and went": None}}, clean_up=False)
    before = len(log(system))
    second = harness.backup(2, first)
    reverts = log(system)[before:]
    assert sorted(pairs(reverts)) == [(b"changed", b"1"), (b"deleted", b"1"), (b"new", None)]
    assert harness.restore(first["first"]) == second.content()  # the old marker is as exact as ever
    unchanged = second.commit()
    assert marker_of(unchanged) == ChangelogRange(SSP, 0, before + 2)  # so that what is dead can be compacted soon
    assert harness.restore(unchanged["first"]) == second.content()
    markers = second.commit(first={b"next": b"1"})
    assert marker_of(markers) == ChangelogRange(SSP, 0, before + 3)
    assert harness.restore(markers["first"]) == second.content()


def test_a_start_that_fails_again_and_again_does_not_lengthen_the_log(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    first = task.commit(first={b"a": b"1"})
    task.commit_changes({"first": {b"a": b"2", b"b": b"1"}}, clean_up=False)
    harness.backup(2, first)
    length = len(log(system))
    for epoch in range(3, 6):
        harness.backup(epoch, first)
        assert len(log(system)) == length
    assert harness.restore(first["first"]) == {b"a": b"1"}


def test_without_a_checkpoint_a_generation_starts(harness: BackendHarness, system: System) -> None:
    old = harness.backup(1).commit(first={b"a": b"1", b"b": b"1"})
    task = harness.backup(2)
    assert marker_of(task.commit()) == ChangelogRange(SSP, 2, None)
    markers = task.commit(first={b"b": b"2"})
    assert marker_of(markers) == ChangelogRange(SSP, 2, 2)
    assert harness.restore(markers["first"]) == {b"b": b"2"}
    assert harness.restore(old["first"]) == {b"a": b"1", b"b": b"1"}


def test_an_empty_store_continues_in_a_generation_of_its_own(harness: BackendHarness, system: System) -> None:
    """The writes of a dead epoch lie before it, so there is nothing to revert."""
    task = harness.backup(1)
    empty = task.commit()
    task.commit_changes({"first": {b"dead": b"1"}}, clean_up=False)
    second = harness.backup(2, empty)
    assert len(log(system)) == 1
    markers = second.commit(first={b"a": b"1"})
    assert marker_of(markers) == ChangelogRange(SSP, 1, 1)
    assert harness.restore(markers["first"]) == {b"a": b"1"}
    assert harness.restore(empty["first"]) == {}


def test_two_epochs_at_once(harness: BackendHarness, system: System) -> None:
    base = harness.backup(1).commit(first={b"k": b"base"})
    dead = harness.backup(2, base)
    dead.commit_changes({"first": {b"k": b"dead", b"dead": b"1"}}, clean_up=False)
    live = harness.backup(3, base)
    for _ in range(2):
        with pytest.raises(FencedError):
            dead.commit(first={b"k": b"dead again"})
    with pytest.raises(FencedError):
        harness.factory.backup_manager(harness.context(2)).init(harness.last_id(), base)
    markers = live.commit(first={b"live": b"1"})
    assert harness.restore(markers["first"]) == {b"k": b"base", b"live": b"1"}
    with pytest.raises(FencedError):
        harness.collect([base], [], epoch=2, sweep=True)


# -- bases --


def test_a_base_starts_a_generation(harness: BackendHarness, system: System) -> None:
    harness.backup(1).commit(first={b"old": b"1", b"a": b"old"})
    task = harness.backup(2, {}, content={"first": {b"a": b"1", b"b": b"1"}})
    markers = task.commit_changes({"first": {b"b": None}}, complete=True)
    assert marker_of(markers) == ChangelogRange(SSP, 2, 2)
    assert pairs(log(system)) == [(b"old", b"1"), (b"a", b"old"), (b"a", b"1")]
    assert harness.restore(markers["first"]) == {b"a": b"1"}
    markers = task.commit_changes({}, complete=True)
    assert marker_of(markers).generation == 2


@pytest.mark.parametrize("seed", range(6))
def test_a_base_that_breaks_off_counts_for_nothing(
    objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(partition, "_APPEND_RECORDS", 5)
    system = FlakySystem(seed)
    with closing(make_harness(objects, tmp_path, system)) as harness:
        content = {b"%d" % number: b"x" for number in range(20)}
        task = harness.backup(1, {}, content={"first": content})
        system.rate = 0.3
        for number in range(20):  # a base that fails begins anew, at the next commit's boundary
            task.commit_changes({"first": {b"%d" % number: None}}, retry=True)
        system.rate = 0.0
        markers = task.commit_changes({"first": {b"new": b"1"}}, retry=True, complete=True)
        assert harness.restore(markers["first"]) == {b"new": b"1"}


def test_a_base_that_is_cancelled(objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_APPEND_RECORDS", 1)
    monkeypatch.setattr(base_backup, "SMALL_BASE_SECONDS", 0.0)
    reached, go_on = threading.Event(), threading.Event()

    class SlowSystem(MemorySystem):
        def writer(self, identity: WriterIdentity | None) -> MemoryWriter:
            return SlowWriter(self, identity)

    class SlowWriter(MemoryWriter):
        def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
            records = list(records)
            if threading.current_thread() is not threading.main_thread() and records:
                reached.set()
                assert go_on.wait(30)
            return super().append(ssp, records)

    system = SlowSystem("local")
    with closing(make_harness(objects, tmp_path, system)) as harness:
        task = harness.backup(1, {}, content={"first": {b"%d" % number: b"x" for number in range(1000)}})
        assert "first" not in task.commit()
        assert reached.wait(30)
        threading.Timer(0.05, go_on.set).start()
        task.close()
        assert 0 < len(log(system)) < 1000


@pytest.mark.parametrize("loss", ["recreated", "compacted"])
def test_a_changelog_that_lost_its_records_gets_a_new_base(objects: ObjectStore, tmp_path: Path, loss: str) -> None:
    """Another backend restored the store; going on behind the hole would make markers that restore nothing."""
    with closing(make_harness(objects, tmp_path, MemorySystem("local"))) as harness:
        task = harness.backup(1)
        markers = task.commit(first={b"a": b"1", b"b": b"1"})
        content = task.content()
        if loss == "recreated":
            harness.systems["local"] = MemorySystem("local")
        else:
            writer = WriterIdentity("contract-1/state", 1)
            harness.systems["local"].admin().compact(OffsetRange(SSP, 1, 2), writer)
        with pytest.raises(NotFoundError):
            harness.restore(markers["first"])
        second = harness.backup(2, markers, content={"first": content, "second": {}})
        markers = second.commit_changes({"first": {b"b": None}}, complete=True)
        assert harness.restore(markers["first"]) == {b"a": b"1"}


def test_another_stream_is_a_new_base(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    old = task.commit(first={b"a": b"1"})
    content = task.content()
    harness.config = config(**{"stores.first.changelog": "renamed"})
    second = harness.backup(2, old)
    assert second.content() == content  # the marker says where it lies
    markers = second.commit_changes({"first": {b"b": b"1"}}, complete=True)
    assert marker_of(markers).ssp.stream == "renamed"
    assert harness.restore(markers["first"]) == {b"a": b"1", b"b": b"1"}
    planned = harness.collect([markers], [old], epoch=2, dry_run=True)
    assert planned.names == (f"local.{STREAM}/0 <= offset 0: 1 record",)
    assert harness.collect([markers], [old], epoch=2) == planned
    assert log(system) == []
    assert harness.restore(markers["first"]) == {b"a": b"1", b"b": b"1"}


# -- restores that cannot be --


def test_what_is_missing_is_named(harness: BackendHarness, system: System) -> None:
    harness.backup(1).commit(first={b"%d" % number: b"x" for number in range(5)})

    def restore(generation: int, offset: int, stream: str = STREAM) -> None:
        harness.restore(ChangelogRange(SystemStreamPartition("local", stream, 0), generation, offset).serialize())

    with pytest.raises(NotFoundError, match=rf"store `first` of task 0 .*`local\.{STREAM}` partition 0.*is 5"):
        restore(0, 5)
    with pytest.raises(NotFoundError, match=r"`local\.nowhere` does not exist"):
        restore(0, 1, "nowhere")
    system.admin().compact(OffsetRange(SSP, 2, 4), WriterIdentity("contract-1/state", 1))
    with pytest.raises(NotFoundError, match=r"partition 0: expected offset 1 of the range \[1, 5\)"):
        restore(1, 4)
    with pytest.raises(NotFoundError, match=r"\[2, 3\) can no longer be distinguished"):
        restore(2, 2)
    system.writer(None).append(SSP, [(0, None, b"by hand")])
    with pytest.raises(CorruptError, match=r"record at offset 5 .* partition 0 has no key"):
        restore(2, 5)
