"""The changelog stream backend: markers, generations, reverts, appends of unknown outcome, compaction."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import orjson
import pytest

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config import load_config
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, CorruptError, FencedError, IncompatibleError, NotFoundError, RetryableError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths
from penstock.state.backends import bases, changelog_partition
from penstock.state.backends.base import AdminContext
from penstock.state.backends.changelog_partition import ChangelogMarker
from penstock.state.backends.changelog_stream import ChangelogStreamAdmin, ChangelogStreamFactory, needless
from penstock.state.backends.registry import backend_factory
from penstock.state.records import Changes
from penstock.system.base import OffsetRange, PartitionOffsets, RawMessage, RawRecord, System, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem, MemoryWriter
from penstock.testing.state_backend_contract import BackendHarness
from penstock.testing.system_contract import read_compacted

STREAM = "contract-1-first-changelog"
SSP = SystemStreamPartition("local", STREAM, 0)


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    with closing(open_store(f"memory://{id(request)}-{request.node.nodeid}")) as store:
        yield store


@pytest.fixture(params=["memory", "local"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    return MemorySystem("local") if request.param == "memory" else LocalSystem("local", str(tmp_path / "streams"))


@pytest.fixture
def harness(objects: ObjectStore, tmp_path: Path, system: System) -> Iterator[BackendHarness]:
    with closing(make_harness(objects, tmp_path, system)) as harness:
        yield harness


def make_harness(objects: ObjectStore, directory: Path, system: System) -> BackendHarness:
    return BackendHarness(ChangelogStreamFactory(), objects, directory, "memory", {"local": system})


def log(system: System) -> list[RawMessage]:
    """What is in the first store's partition of task 0."""
    ends = ends_of(system)
    return read_compacted(system, SSP, ends.oldest, ends.upcoming)


def ends_of(system: System) -> PartitionOffsets:
    admin = system.admin()
    try:
        return admin.offsets(STREAM)[0]
    finally:
        admin.close()


def pairs(messages: Sequence[RawMessage]) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, value) for _, _, key, value in messages]


def marker_of(markers: dict[str, str]) -> ChangelogMarker:
    return ChangelogMarker.deserialize(markers["first"])


# -- markers --


def test_a_marker_is_samzas_with_one_field_more() -> None:
    marker = ChangelogMarker(SystemStreamPartition("kafka", "orders-changelog", 3), 1000, 1017)
    assert marker.serialize() == (
        '{"version":1,"changelog-ssp":{"system":"kafka","partition":3,"stream":"orders-changelog","keyBucket":-1},'
        '"changelog-offset":"1017","generation-offset":"1000"}'
    )
    assert ChangelogMarker.deserialize(marker.serialize()) == marker
    empty = ChangelogMarker(SSP, 5, None)
    assert orjson.loads(empty.serialize())["changelog-offset"] is None
    assert ChangelogMarker.deserialize(empty.serialize()) == empty
    assert (marker.range, empty.range) == (OffsetRange(marker.ssp, 1000, 1018), OffsetRange(SSP, 5, 5))


def test_a_marker_that_samza_wrote() -> None:
    """Its generation begins with the stream; the key bucket may be missing, unknown fields are ignored."""
    text = (
        '{"version":1,"changelog-ssp":{"system":"kafka","stream":"a.b","partition":3},"changelog-offset":"7","new":[]}'
    )
    assert ChangelogMarker.deserialize(text) == ChangelogMarker(SystemStreamPartition("kafka", "a.b", 3), 0, 7)


@pytest.mark.parametrize(
    "fields",
    [
        {"changelog-offset": "x"},
        {"changelog-offset": "4"},
        {"changelog-ssp": None},
        {"changelog-ssp": "local.s.1"},
        {"changelog-ssp": {"system": "s", "stream": "t"}},
        {"generation-offset": "-1"},
        {"generation-offset": None},
        {"version": "x"},
    ],
    ids=str,
)
def test_a_damaged_marker(fields: dict[str, object]) -> None:
    good = orjson.loads(ChangelogMarker(SSP, 5, 9).serialize())
    with pytest.raises(CorruptError, match="marker"):
        ChangelogMarker.deserialize(orjson.dumps(good | fields).decode())


def test_a_marker_of_a_newer_version() -> None:
    with pytest.raises(IncompatibleError, match="version 2; this Penstock reads up to 1"):
        ChangelogMarker.deserialize(ChangelogMarker(SSP, 0, 1).serialize().replace('"version":1', '"version":2'))


# -- configuration --


def config(**overrides: object) -> JobConfig:
    return load_config(overrides={"job.name": "contract", "job.id": "1", **overrides}, environ={})


def test_the_stream_of_a_store() -> None:
    assert config().store("a.b").changelog == SystemStream("local", "contract-1-a.b-changelog")
    given = config(**{"systems.disk.type": "local", "stores.a.changelog": "disk.my.log", "stores.b.changelog": "plain"})
    assert given.store("a").changelog == SystemStream("disk", "my.log")
    assert given.store("b").changelog == SystemStream("local", "plain")
    assert given.flat()["stores.b.changelog"] == "local.plain"
    with pytest.raises(ConfigError, match=r"`stores\.a\.changelog` .*there is no system `kafka`; known: local"):
        config(**{"stores.a.changelog": "kafka.x"})
    with pytest.raises(ConfigError, match="or the name of one of the system `local`"):
        config(**{"stores.a.changelog": "kafka."})


def test_the_name() -> None:
    assert backend_factory("changelog-stream").name == "changelog-stream"
    assert config(**{"stores.backup.factories": "changelog-stream"}).store("a").restore_factories == (
        "changelog-stream",
    )


# -- the admin --


def admin_of(system: System, tasks: int = 2, settings: JobConfig | None = None) -> ChangelogStreamAdmin:
    objects = open_store("memory://unused")
    context = AdminContext(
        objects, JobPaths("contract", "1"), tasks, ("first", "second"), settings or config(), {"local": system}
    )
    return ChangelogStreamFactory().admin(context)


def test_resources_are_made_once_and_fenced(system: System) -> None:
    admin = admin_of(system)
    for epoch in (1, 1, 4):
        admin.create_resources(epoch)
        admin.validate_resources()
    with pytest.raises(FencedError, match=r"epoch 4 has taken over.*another `job\.id`"):
        admin.create_resources(3)
    with pytest.raises(FencedError):
        system.writer(WriterIdentity("contract-1/state", 3)).append(SSP, [])
    admin.close()


def test_another_partition_count_is_refused(system: System) -> None:
    admin_of(system).create_resources(1)
    for look in (admin_of(system, 3).validate_resources, lambda: admin_of(system, 3).create_resources(2)):
        with pytest.raises(ConfigError, match=rf"`local\.{STREAM}` has 2 partitions, the job 3 tasks"):
            look()


def test_two_stores_do_not_share_a_changelog(system: System) -> None:
    shared = config(**{"stores.second.changelog": STREAM})
    for look in (
        lambda: admin_of(system, settings=shared).create_resources(1),
        admin_of(system, settings=shared).validate_resources,
    ):
        with pytest.raises(ConfigError, match="stores `first` and `second` share the changelog"):
            look()


class CleanedSystem(MemorySystem):
    """Drops records in its own time."""

    compacts_on_request: ClassVar[bool] = False


def test_a_system_that_cannot_promise_is_refused_everywhere(objects: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drops records in its own time"):
        admin_of(CleanedSystem("local")).create_resources(1)
    with closing(make_harness(objects, tmp_path, MemorySystem("local"))) as harness:
        markers = harness.backup(1).commit(first={b"a": b"1"})
        harness.systems["local"] = CleanedSystem("local")
        with pytest.raises(ConfigError, match="drops records in its own time"):
            harness.restore(markers["first"])
        harness.systems.clear()
        with pytest.raises(ConfigError, match="there is no system `local`"):
            harness.restore(markers["first"])
        with pytest.raises(ConfigError, match="there is no system `local`"):
            harness.factory.backup_manager(harness.context(2)).init(None, {})


# -- commits --


def test_a_commit_is_its_net_changes_at_its_time(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    assert marker_of(task.commit()) == ChangelogMarker(SSP, 0, None)
    markers = task.commit(first={b"a": b"1", b"": b"", b"gone": None})
    time = harness.last_id().millis
    assert log(system) == [(0, time, b"a", b"1"), (1, time, b"", b""), (2, time, b"gone", None)]
    assert marker_of(markers) == ChangelogMarker(SSP, 0, 2)
    assert task.commit() == markers
    assert len(log(system)) == 3


def test_a_large_commit_is_several_appends(
    harness: BackendHarness, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog_partition, "_APPEND_RECORDS", 7)
    monkeypatch.setattr(changelog_partition, "_APPEND_BYTES", 40)
    monkeypatch.setattr(changelog_partition, "_READ_MESSAGES", 3)
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
    def append(self, ssp: SystemStreamPartition, records: Sequence[RawRecord]) -> int:
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
    monkeypatch.setattr(changelog_partition, "_APPEND_RECORDS", 3)
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
    assert marker_of(unchanged) == ChangelogMarker(SSP, 0, before + 2)  # so that what is dead can be compacted soon
    assert harness.restore(unchanged["first"]) == second.content()
    markers = second.commit(first={b"next": b"1"})
    assert marker_of(markers) == ChangelogMarker(SSP, 0, before + 3)
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
    assert marker_of(task.commit()) == ChangelogMarker(SSP, 2, None)
    markers = task.commit(first={b"b": b"2"})
    assert marker_of(markers) == ChangelogMarker(SSP, 2, 2)
    assert harness.restore(markers["first"]) == {b"b": b"2"}
    assert harness.restore(old["first"]) == {b"a": b"1", b"b": b"1"}


def test_an_empty_store_continues_in_a_generation_of_its_own(harness: BackendHarness, system: System) -> None:
    """What a dead epoch wrote lies before it, so there is nothing to revert."""
    task = harness.backup(1)
    empty = task.commit()
    task.commit_changes({"first": {b"dead": b"1"}}, clean_up=False)
    second = harness.backup(2, empty)
    assert len(log(system)) == 1
    markers = second.commit(first={b"a": b"1"})
    assert marker_of(markers) == ChangelogMarker(SSP, 1, 1)
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
    assert marker_of(markers) == ChangelogMarker(SSP, 2, 2)
    assert pairs(log(system)) == [(b"old", b"1"), (b"a", b"old"), (b"a", b"1")]
    assert harness.restore(markers["first"]) == {b"a": b"1"}
    markers = task.commit_changes({}, complete=True)
    assert marker_of(markers).generation == 2


@pytest.mark.parametrize("seed", range(6))
def test_a_base_that_breaks_off_counts_for_nothing(
    objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(changelog_partition, "_APPEND_RECORDS", 5)
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
    monkeypatch.setattr(changelog_partition, "_APPEND_RECORDS", 1)
    monkeypatch.setattr(bases, "SMALL_BASE_SECONDS", 0.0)
    reached, go_on = threading.Event(), threading.Event()

    class SlowSystem(MemorySystem):
        def writer(self, identity: WriterIdentity | None) -> MemoryWriter:
            return SlowWriter(self, identity)

    class SlowWriter(MemoryWriter):
        def append(self, ssp: SystemStreamPartition, records: Sequence[RawRecord]) -> int:
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
    assert planned.names == (f"local.{STREAM}/0 <= offset 0: 1 records",)
    assert harness.collect([markers], [old], epoch=2) == planned
    assert log(system) == []
    assert harness.restore(markers["first"]) == {b"a": b"1", b"b": b"1"}


# -- restores that cannot be --


def test_what_is_missing_is_named(harness: BackendHarness, system: System) -> None:
    harness.backup(1).commit(first={b"%d" % number: b"x" for number in range(5)})

    def restore(generation: int, offset: int, stream: str = STREAM) -> None:
        harness.restore(ChangelogMarker(SystemStreamPartition("local", stream, 0), generation, offset).serialize())

    with pytest.raises(NotFoundError, match=rf"store `first` of task 0 .*`local\.{STREAM}` partition 0.*is 5"):
        restore(0, 5)
    with pytest.raises(NotFoundError, match=r"`local\.nowhere` does not exist"):
        restore(0, 1, "nowhere")
    system.admin().compact(OffsetRange(SSP, 2, 4), WriterIdentity("contract-1/state", 1))
    with pytest.raises(NotFoundError, match=r"partition 0: expected offset 1 of the range \[1, 5\)"):
        restore(1, 4)
    with pytest.raises(NotFoundError, match=r"\[2, 3\) can no longer be told apart"):
        restore(2, 2)
    system.writer(None).append(SSP, [(0, None, b"by hand")])
    with pytest.raises(CorruptError, match=r"record at offset 5 .* partition 0 has no key"):
        restore(2, 5)


# -- collecting --


def test_what_is_needless() -> None:
    def marker(generation: int, offset: int | None) -> ChangelogMarker:
        return ChangelogMarker(SSP, generation, offset)

    def found(retained: list[ChangelogMarker], left: list[ChangelogMarker], *, in_use: bool) -> tuple[int, int] | None:
        offsets = needless(SSP, retained, left, in_use=in_use)
        return None if offsets is None else (offsets.start, offsets.end)

    assert found([marker(0, 9), marker(0, 5), marker(0, 7)], [], in_use=True) == (0, 6)
    assert found([marker(20, 25), marker(0, 5)], [], in_use=True) == (0, 6)
    assert found([marker(20, 25), marker(20, 31)], [marker(0, 5)], in_use=True) == (20, 26)
    assert found([marker(20, None), marker(20, 31)], [], in_use=True) == (20, 32)
    assert found([marker(20, None), marker(30, None)], [], in_use=True) == (20, 20)
    assert found([], [marker(0, 5), marker(3, 9)], in_use=False) == (10, 10)
    assert found([], [marker(0, 5)], in_use=True) is None
    assert found([], [], in_use=False) is None


def test_a_collection_says_what_goes(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    markers = [task.commit(first={b"k": b"%d" % number, b"gone": None}) for number in range(4)]
    planned = harness.collect(markers[2:], markers[:2], epoch=1, dry_run=True)
    assert planned.names == (f"local.{STREAM}/0 <= offset 5: 5 records",)
    assert len(log(system)) == 8
    assert harness.collect(markers[2:], markers[:2], epoch=1) == planned
    assert pairs(log(system)) == [(b"k", b"2"), (b"k", b"3"), (b"gone", None)]
    assert harness.collect(markers[2:], markers[:2], epoch=1).names == ()
    with pytest.raises(NotFoundError, match="told apart"):
        harness.restore(markers[1]["first"])


def test_a_collection_waits_until_much_is_new(harness: BackendHarness, system: System) -> None:
    task = harness.backup(1)
    markers = [task.commit(first={b"%d" % number: b"x" for number in range(10)})]
    dropped = []
    for number in range(20):
        markers.append(task.commit(first={b"%d" % (number % 10): b"y"}))
        dropped += harness.collect(markers[-1:], markers[-2:-1], epoch=1).names
    assert [name.rpartition(" <= ")[2] for name in dropped] == [
        "offset 10: 1 records",
        "offset 20: 10 records",
    ]
    markers.append(task.commit(first={b"0": b"z"}))
    assert len(harness.collect(markers[-1:], markers[-2:-1], epoch=1, sweep=True).names) == 1


def test_a_collection_where_the_stream_is_gone(harness: BackendHarness, system: System) -> None:
    gone = ChangelogMarker(SystemStreamPartition("local", "gone", 0), 0, 5).serialize()
    other = ChangelogMarker(SystemStreamPartition("no-such-system", "gone", 0), 0, 5).serialize()
    beyond = ChangelogMarker(SSP, 0, 500).serialize()
    harness.backup(1).commit(first={b"k": b"1"})
    for marker in (gone, other, beyond):
        assert harness.collect([{"first": marker}], [{"first": marker}], epoch=1).names == ()
    assert len(log(system)) == 1


# -- everything together --


def random_changes(rng: random.Random) -> dict[bytes, bytes | None]:
    keys = rng.sample((b"", b"a", b"b", b"c", b"d", b"e"), rng.randrange(5))
    return {key: rng.choice((None, b"", b"1", b"2", rng.randbytes(3))) for key in keys}


@pytest.mark.parametrize("seed", range(40))
def test_any_history_keeps_every_retained_marker(
    objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Epochs that end in the middle of a commit, rewinds to any retained checkpoint, cleared stores, stores that
    another backend restored, and collections. The oracle is a plain dict for each checkpoint."""
    monkeypatch.setattr(changelog_partition, "_APPEND_RECORDS", 4)
    monkeypatch.setattr(changelog_partition, "_READ_MESSAGES", 3)
    rng = random.Random(seed)
    system = LocalSystem("local", str(tmp_path / "streams")) if seed % 8 == 0 else MemorySystem("local")
    log: list[tuple[dict[str, str], dict[bytes, bytes]]] = []
    with closing(make_harness(objects, tmp_path, system)) as harness:
        for epoch in range(1, 9):
            start, content = (log[-1] if rng.random() < 0.6 else rng.choice(log)) if log else (None, {})
            kind = rng.random()
            if start is None or kind < 0.1:
                task, content = harness.backup(epoch), {}
            elif kind < 0.3:  # restored by another backend, with our marker or without
                known = start if rng.random() < 0.5 else {}
                task = harness.backup(epoch, known, content={"first": content, "second": {}})
            else:
                task = harness.backup(epoch, start)
            assert task.content() == content, f"epoch {epoch}"
            for _ in range(rng.randrange(5)):
                changes: dict[str, Changes] = {"first": random_changes(rng)}
                markers = task.commit_changes(changes, complete=True)
                log.append((markers, task.content()))
                if rng.random() < 0.4:
                    left = [log.pop(rng.randrange(len(log) - 1))[0] for _ in range(rng.randrange(len(log)))]
                    retained = [own for own, _ in log]
                    sweep = rng.random() < 0.3
                    planned = harness.collect(retained, left, epoch=epoch, sweep=sweep, dry_run=True)
                    assert harness.collect(retained, left, epoch=epoch, sweep=sweep) == planned
                for own, expected in log:
                    assert harness.restore(own["first"]) == expected, f"epoch {epoch}"
            if rng.random() < 0.7:
                task.commit_changes({"first": random_changes(rng)}, clean_up=False)  # not in the log
            task.close()
