"""Versions of a table: numbers, fences, pins, what is kept, and what a driver that dies leaves."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.base.retry import Retry
from penstock.checkpoint.log import CheckpointLog
from penstock.errors import CorruptError, FencedError, IncompatibleError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.objects.store import ObjectStore
from penstock.tables.manifest import TableFile, TableFingerprint, TableManifest
from penstock.tables.registry import (
    PublishedVersions,
    TableRegistry,
    VersionPin,
    VersionRefusal,
    build_epoch,
    build_name,
    choose,
    expired,
    pin_of,
    refusal_of,
)
from penstock.testing.faulty_store import FaultyStore, ForwardingStore
from tests.support.tools.places import GOLDEN

PATHS = JobPaths("flights", "1")
PRINT = TableFingerprint("string", "json", ("tail",), None, single_value=False, tasks=2, broadcast=False)
FILE = TableFile("0-0.sst", 0, "a" * 64, 3, 2, b"N1", b"\xffN2")


def draft(build: str, epoch: int = 1, files: tuple[TableFile, ...] = (FILE,)) -> TableManifest:
    return TableManifest("planes", 0, epoch, build, "file:///planes", "folder v1", 2, 1_700_000_000_000, PRINT, files)


def registry(objects: ObjectStore) -> TableRegistry:
    return TableRegistry(objects, PATHS, "planes")


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return FileObjectStore(tmp_path)


def publish(table: TableRegistry, build: str, epoch: int = 1) -> TableManifest:
    table.put_file(build, FILE.name, b"abc")
    return table.publish(draft(build, epoch))


def test_the_manifest_is_written_and_read_as_the_golden_file() -> None:
    golden = (GOLDEN / "table-manifest-format1.json").read_bytes()
    written = replace(draft("3-00112233"), version=7, epoch=3)
    assert written.encode() == golden
    assert TableManifest.decode(golden, "k") == written
    with pytest.raises(CorruptError, match="its checksum does not match"):
        TableManifest.decode(golden.replace(b'"rows":2', b'"rows":3'), "k")
    with pytest.raises(IncompatibleError, match="format 2"):
        TableManifest.decode(golden.replace(b'"format":1', b'"format":2'), "k")
    with pytest.raises(CorruptError, match="`k` is damaged"):
        TableManifest.decode(b"{}", "k")


def test_versions_are_numbered_and_a_build_is_published_once(objects: ObjectStore) -> None:
    table = registry(objects)
    assert (table.versions(), table.newest()) == (PublishedVersions(), None)
    first, second = publish(table, "1-a"), publish(table, "1-b")
    assert (first.version, second.version) == (1, 2)
    assert table.publish(draft("1-a")) == first
    other = registry(objects)
    assert other.versions().manifests == (first, second)
    assert other.newest() == second
    assert b"".join(other.pieces(first, FILE)) == b"abc"
    with pytest.raises(NotFoundError, match="no version 3; it has 1, 2"):
        other.manifest(3)


def test_builds_that_end_at_once_get_different_numbers(objects: ObjectStore) -> None:
    barrier = threading.Barrier(8)
    found: list[TableManifest] = []

    def one(number: int) -> None:
        table = registry(objects)
        barrier.wait()
        found.append(publish(table, f"1-{number}"))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.version for each in found) == list(range(1, 9))
    assert {each.build for each in registry(objects).versions().manifests} == {f"1-{n}" for n in range(8)}


@pytest.mark.parametrize("seed", range(15))
def test_a_failing_store_publishes_at_most_once(
    objects: ObjectStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tables.registry._WRITE", Retry(pause_s=0.001, tries=5))
    faulty = FaultyStore(objects, seed, 0.3, lag=1)
    done = []
    for number in range(4):
        try:
            done.append(publish(registry(faulty), f"1-{number}").version)
        except RetryableError:
            continue
    versions = registry(objects).versions()
    builds = [each.build for each in versions.manifests]
    assert len(builds) == len(set(builds))
    assert versions.numbers == tuple(range(1, len(builds) + 1))
    assert set(done) <= set(versions.numbers)


def test_what_builds_left_is_collected_and_an_older_driver_publishes_nothing(objects: ObjectStore) -> None:
    old, new = registry(objects), registry(objects)
    first = publish(old, "1-a", 1)
    old.put_file("1-left", FILE.name, b"abc")
    new.put_file("2-now", FILE.name, b"abc")
    assert new.garbage(2, ["2-now"]) == (f"{PATHS.root}/tables/planes/builds/1-left/{FILE.name}",)
    assert new.collect(2, ["2-now"]) == 1
    assert new.collect(2, ["2-now"]) == 0
    with pytest.raises(FencedError, match="epoch 2 has it now"):
        old.publish(draft("1-left"))
    assert new.versions().manifests == (first,)
    assert new.publish(draft("2-now", 2)).version == 3  # the fence has a number
    with pytest.raises(FencedError):
        old.collect(1) or old.publish(draft("1-x"))
    assert new.collect(2) == 0


def test_a_driver_that_overtakes_between_reading_and_publishing(tmp_path: Path) -> None:
    """The older driver has chosen its number; the later one collects its files; it puts its manifest too late."""
    objects = FileObjectStore(tmp_path)

    class Overtaken(ForwardingStore):
        done = False

        def put_if_absent(self, key: str, data: bytes) -> bool:
            if "/versions/" in key and not self.done:
                self.done = True
                assert registry(objects).collect(2) == 1
            return objects.put_if_absent(key, data)

    table = registry(Overtaken(objects))
    table.put_file("1-a", FILE.name, b"abc")
    with pytest.raises(FencedError):
        table.publish(draft("1-a"))
    assert registry(objects).versions() == PublishedVersions()


def test_a_number_that_became_free_is_withdrawn(tmp_path: Path) -> None:
    objects = FileObjectStore(tmp_path)

    class Overtaken(ForwardingStore):
        done = False

        def put_if_absent(self, key: str, data: bytes) -> bool:
            if "/versions/" in key and not self.done:
                self.done = True
                other = registry(objects)
                other.collect(2)
                publish(other, "2-a", 2)
                publish(other, "2-b", 2)
                other.retain(1, (), lambda: None)
                assert key not in objects.list(PATHS.tables)
            return objects.put_if_absent(key, data)

    table = registry(Overtaken(objects))
    table.put_file("1-a", FILE.name, b"abc")
    with pytest.raises(FencedError):
        table.publish(draft("1-a"))
    assert [each.build for each in registry(objects).versions().manifests] == ["2-b"]


def test_old_versions_go_but_never_those_that_are_needed(objects: ObjectStore) -> None:
    table = registry(objects)
    for number in range(6):
        publish(table, f"1-{number}")
    table.pin(1, "somebody")
    assert table.pinned() == 1
    assert table.retain(2, [3], lambda: None) == (2, 4)
    assert table.versions().numbers == (1, 3, 5, 6)
    assert sorted({key.split("/")[-2] for key in objects.list(f"{PATHS.tables}/planes/builds")}) == [
        "1-0",
        "1-2",
        "1-4",
        "1-5",
    ]
    table.pin(None)
    assert table.retain(1, (), lambda: None) == (1, 3, 5)
    assert publish(table, "1-new").version == 7


def test_a_pinned_version_is_there_at_every_moment(objects: ObjectStore) -> None:
    """A process that dies while it deletes old versions leaves it."""
    deleted: list[str] = []

    class Noted(ForwardingStore):
        def delete_durably(self, key: str) -> None:
            deleted.append(key)
            super().delete_durably(key)

    table = registry(Noted(objects))
    for number in range(4):
        publish(table, f"1-{number}")
    table.pin(2)
    assert table.retain(1, (), lambda: None) == (1, 3)
    assert deleted == [PATHS.table_version("planes", number) for number in (1, 3)]


def test_a_version_that_is_pinned_while_it_expires_stays(tmp_path: Path) -> None:
    objects = FileObjectStore(tmp_path)

    class PinnedMeanwhile(ForwardingStore):
        def delete_durably(self, key: str) -> None:
            if key.endswith("0000000001.json"):
                registry(objects).pin(1)
            objects.delete_durably(key)

    table = registry(PinnedMeanwhile(objects))
    for number in range(3):
        publish(table, f"1-{number}")
    assert table.retain(1, (), lambda: None) == (2,)
    assert table.versions().numbers == (1, 3)
    assert registry(objects).choose(PRINT).version == table.manifest(1)


@pytest.mark.parametrize("moment", ["list", "delete_durably", "delete"])
def test_a_driver_that_takes_over_while_versions_expire_keeps_what_it_finds(tmp_path: Path, moment: str) -> None:
    """It uses an old version, because it has an older definition of the table."""
    objects = FileObjectStore(tmp_path)
    older = replace(PRINT, tasks=PRINT.tasks + 1)
    found: list[TableManifest | None] = []

    class Overtaken(ForwardingStore):
        """Another driver claims the log and looks: behind the look at the versions, before the deletion of the first
        manifest, or before that of the first file."""

        expires = False

        def overtake(self, call: str) -> None:
            if self.expires and call == moment and not found:
                CheckpointLog(objects, PATHS).claim("second")
                found.append(registry(objects).choose(older).version)

        def list(self, prefix: str, after: str | None = None) -> list[str]:
            there = objects.list(prefix, after)
            self.overtake("list")
            return there

        def delete_durably(self, key: str) -> None:
            self.overtake("delete_durably")
            objects.delete_durably(key)

        def delete(self, key: str) -> None:
            self.overtake("delete")
            objects.delete(key)

    store = Overtaken(objects)
    log, table = CheckpointLog(store, PATHS), registry(store)
    log.claim("first")
    table.put_file("1-a", FILE.name, b"abc")
    table.publish(replace(draft("1-a"), fingerprint=older))
    for name in ("1-b", "1-c"):
        publish(table, name)
    store.expires = True
    with pytest.raises(FencedError):
        table.retain(1, (), log.check_owner)
    seen = () if moment == "delete" else (1,)
    assert [each and each.version for each in found] == [*seen, *([] if seen else [None])]
    assert registry(objects).versions().numbers == (*seen, 2, 3)
    for each in registry(objects).versions().manifests:
        assert b"".join(registry(objects).pieces(each, FILE)) == b"abc"


def test_a_pin_names_a_whole_version(objects: ObjectStore) -> None:
    table = registry(objects)
    with pytest.raises(NotFoundError, match="no version 1; it has none yet"):
        table.pin(1)
    first = publish(table, "1-a")
    objects.delete(table.file_key(first, FILE))
    with pytest.raises(NotFoundError, match="is not whole"):
        table.pin(1)
    assert table.pinned() is None


def test_a_choice_is_replaced_and_never_deleted(objects: ObjectStore) -> None:
    """A late delete could remove a later choice."""
    deleted: list[str] = []

    class Deletes(ForwardingStore):
        def delete(self, key: str) -> None:
            deleted.append(key)
            super().delete(key)

        def delete_durably(self, key: str) -> None:
            deleted.append(key)
            super().delete_durably(key)

    table = registry(Deletes(objects))
    publish(table, "1-a")
    publish(table, "1-b")
    for version in (None, 1, None, None, 2, 1, None):
        table.pin(version)
        assert table.pinned() == version
    damaged = PATHS.metadata("table-use", "planes")
    objects.delete(damaged)
    objects.put_if_absent(damaged, b"x")
    with pytest.raises(CorruptError):
        table.pinned()
    table.pin(None)
    assert (table.pinned(), deleted) == (None, [])


def test_the_choice() -> None:
    other = replace(PRINT, tasks=4, value_columns=("year",))
    one, two, three = (replace(draft(f"1-{n}"), version=n) for n in (1, 2, 3))
    three = replace(three, fingerprint=other)
    versions = PublishedVersions((one, two, three))
    assert choose(versions, None, PRINT).version == two
    assert choose(versions, None, PRINT).warning is None
    assert choose(versions, 1, PRINT).version == one
    gone = choose(versions, 9, PRINT)
    assert gone.version == two
    assert gone.warning is not None
    assert "version 9, which `penstock table use` set, does not exist. The job uses version 2" in gone.warning
    foreign = choose(versions, 3, PRINT)
    assert foreign.warning is not None
    assert "value columns (year) and not all, tasks `4` and not `2`" in foreign.warning
    damaged = choose(PublishedVersions((one,), {2: "damaged"}), None, PRINT)
    assert (damaged.version, damaged.warning) == (one, "version 2 cannot be read: damaged")
    assert choose(PublishedVersions(), None, PRINT).version is None
    assert expired([1, 2, 3, 4], 0, ()) == (1, 2, 3)
    assert expired([1, 2, 3, 4], 2, {1}) == (2,)
    assert (build_epoch(build_name(7, "ab")), build_epoch("x")) == (7, 0)


def test_a_damaged_manifest_stops_collection_and_is_named(objects: ObjectStore) -> None:
    table = registry(objects)
    publish(table, "1-a")
    objects.put_if_absent(PATHS.table_version("planes", 2), b"{}")
    table.put_file("1-left", FILE.name, b"abc")
    assert "0000000002.json` is damaged" in table.versions().unreadable[2]
    assert table.collect(5) == 0
    assert publish(table, "1-b").version == 3
    with pytest.raises(CorruptError):
        table.manifest(2)


def test_the_pin_and_the_refusal_are_written_and_read_as_the_golden_files(objects: ObjectStore) -> None:
    pin, refusal = VersionPin(7, "ada on h1"), VersionRefusal("v8 0123456789ab", "its check failed", 1_700_000_000_000)
    pin_of(objects, PATHS, "planes").put(pin)
    refusal_of(objects, PATHS, "planes").put(refusal)
    for name in ("table-use", "table-refused"):
        golden = (GOLDEN / f"{name}-format1.json").read_bytes()
        key = PATHS.metadata(name, "planes")
        assert objects.get(key) == golden
        objects.delete(key)
        objects.put_if_absent(key, golden)
    assert (pin_of(objects, PATHS, "planes").get(), refusal_of(objects, PATHS, "planes").get()) == (pin, refusal)
    for name in ("table-use", "table-refused"):
        key = PATHS.metadata(name, "planes")
        objects.delete(key)
        objects.put_if_absent(key, b'{"format":2}')
    with pytest.raises(IncompatibleError, match="format 2"):
        pin_of(objects, PATHS, "planes").get()
    with pytest.raises(IncompatibleError, match="format 2"):
        refusal_of(objects, PATHS, "planes").get()
