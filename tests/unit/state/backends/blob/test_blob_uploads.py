"""The blob backend's uploads, memory, downloads and collections, over real RocksDB copies."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest

from penstock.base.parallel import ByteBudget, in_parallel
from penstock.errors import CorruptError, NotFoundError, PenstockError, RetryableError
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import RestoreProgress, RestoreTarget
from penstock.state.backends.blob import BlobFactory, BlobMarker, SnapshotIndex, is_index
from penstock.state.backends.registry import backend_factory
from penstock.state.backends.resources import process_pools
from penstock.testing.faulty_store import FaultyStore
from penstock.testing.state_backend_harness import STORES, BackendHarness, Content

FOLDER = "contract-1/state/first/0/blob"


class WatchingStore(FaultyStore):
    """Notes what is put, and how many bytes are in the hands of puts and gets at once."""

    def __init__(self, inner: ObjectStore, seed: int = 0, rate: float = 0.0) -> None:
        super().__init__(inner, seed, rate)
        self.puts: list[str] = []
        self.peak = 0
        self.delete_at_most = 10**9
        self._now = 0
        self._noting = threading.Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.puts.append(key)
        with self._holding(len(data)):
            return super().put_if_absent(key, data)

    def get(self, key: str) -> bytes:
        data = super().get(key)
        with self._holding(len(data)):
            return data

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        for piece in super().pieces(key):
            with self._holding(len(piece)):
                yield piece

    def delete(self, key: str) -> None:
        if self.delete_at_most == 0:
            raise RetryableError("interrupted")
        self.delete_at_most -= 1
        super().delete(key)

    def _holding(self, size: int) -> closing[_Held]:
        return closing(_Held(self, size))


class _Held:
    def __init__(self, store: WatchingStore, size: int) -> None:
        self._store, self._size = store, size
        with store._noting:
            store._now += size
            store.peak = max(store.peak, store._now)
        # Long enough for the other threads to come here as well, if anything lets them.
        threading.Event().wait(0.002)

    def close(self) -> None:
        with self._store._noting:
            self._store._now -= self._size


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Iterator[WatchingStore]:
    with closing(open_store(f"memory://{id(request)}-{request.node.nodeid}")) as store:
        yield WatchingStore(store)


@pytest.fixture
def open_harness(objects: WatchingStore, tmp_path: Path) -> Iterator[Callable[[BlobFactory], BackendHarness]]:
    opened: list[BackendHarness] = []

    def one(factory: BlobFactory) -> BackendHarness:
        opened.append(BackendHarness(factory, objects, tmp_path / str(len(opened)), "rocksdb"))
        return opened[-1]

    yield one
    for harness in opened:
        harness.close()
        assert not harness.copies


@pytest.fixture
def harness(open_harness: Callable[[BlobFactory], BackendHarness]) -> BackendHarness:
    return open_harness(BlobFactory())


def index_of(harness: BackendHarness, marker: str, store: str = "first") -> SnapshotIndex:
    name = BlobMarker.parse(marker).index
    key = harness.paths.state_object(store, 0, f"blob/{name}")
    return SnapshotIndex.decode(harness.objects.get(key), key)


def blobs_of(harness: BackendHarness, marker: str) -> set[str]:
    files = index_of(harness, marker).directory.by_path().values()
    return {f"{FOLDER}/{blob.name}" for file in files for blob in file.blobs}


def ssts(harness: BackendHarness, marker: str) -> dict[str, str]:
    files = index_of(harness, marker).directory.by_path()
    return {path: file.blobs[0].name for path, file in files.items() if path.endswith(".sst")}


def test_the_registry_knows_it() -> None:
    assert isinstance(backend_factory("blob"), BlobFactory)
    assert backend_factory("blob").name == "blob"


def test_only_new_ssts_are_uploaded(harness: BackendHarness, objects: WatchingStore) -> None:
    task = harness.backup(1)
    before: dict[str, str] = {}
    for number in range(3):
        objects.puts.clear()
        marker = task.commit(first={b"%d" % number: random.Random(number).randbytes(100_000)})["first"]
        now = ssts(harness, marker)
        assert before.items() < now.items()
        assert len(now) == number + 1
        own = [key for key in objects.puts if key.startswith(FOLDER)]
        sizes = sum(len(objects.get(key)) for key in own)
        assert 100_000 < sizes < 115_000, "the cost of a commit grows with the state"
        assert len(own) == len(set(own))
        assert is_index(own[-1])
        before = now
    index = index_of(harness, marker)
    assert (index.store, index.task, index.epoch, index.job_name, index.job_id) == ("first", 0, 1, "contract", "1")
    assert index.checkpoint_id.startswith(f"{index.creation_time_ms}-")


def test_the_indexes_of_a_store_are_linked(harness: BackendHarness) -> None:
    task = harness.backup(1)
    first = task.commit(first={b"a": b"1"})["first"]
    second = task.commit(first={b"a": b"2"})["first"]
    assert index_of(harness, first).previous is None
    assert index_of(harness, second).previous == BlobMarker.parse(first).index


def test_after_a_restore_what_was_restored_is_not_uploaded_again(harness: BackendHarness) -> None:
    task = harness.backup(1)
    for number in range(3):
        markers = task.commit(first={b"%d" % number: b"x" * 1000})
    task.close()
    later = harness.backup(2, markers).commit(first={b"new": b"1"})
    assert ssts(harness, markers["first"]).items() < ssts(harness, later["first"]).items()
    assert len(ssts(harness, later["first"])) == 4


def test_two_restores_of_one_copy_write_different_files_of_one_name_and_size(harness: BackendHarness) -> None:
    with closing(harness.backup(1)) as task:
        base = task.commit(first={b"base": b"1"})
    markers = {}
    for epoch in (2, 3):
        with closing(harness.backup(epoch, base)) as task:
            markers[epoch] = task.commit(first={b"k": b"%d" % epoch})
    files = {epoch: index_of(harness, own["first"]).directory.by_path() for epoch, own in markers.items()}
    same = {name for name in files[2] if name.endswith(".sst") and name in files[3]}
    differing = {name for name in same if files[2][name].sha256 != files[3][name].sha256}
    assert [name for name in differing if files[2][name].size == files[3][name].size]
    # And one of them over the index of the other, as after a restore by another backend.
    with closing(harness.backup(4, markers[2], content={"first": {b"base": b"1"}})) as task:
        task.engines["first"].apply({b"k": b"2"})
        mixed = task.commit(first={b"more": b"1"})
    for epoch in (2, 3):
        assert harness.restore(markers[epoch]["first"]) == {b"base": b"1", b"k": b"%d" % epoch}
    assert harness.restore(mixed["first"]) == {b"base": b"1", b"k": b"2", b"more": b"1"}


def test_content_that_comes_back_gets_an_object_of_its_own(objects: WatchingStore, tmp_path: Path) -> None:
    """So a collection that is deleting the old one cannot take it away from a commit under way."""
    with closing(BackendHarness(BlobFactory(), objects, tmp_path, "memory")) as harness:
        task = harness.backup(1)
        first = task.commit(first={b"k": b"1"})
        task.commit(first={b"k": b"2"})
        third = task.commit(first={b"k": b"1"})
        assert index_of(harness, first["first"]).directory.by_path()["entries.zst"].sha256 == (
            index_of(harness, third["first"]).directory.by_path()["entries.zst"].sha256
        )
        assert not blobs_of(harness, first["first"]) & blobs_of(harness, third["first"])


def test_files_are_cut_into_parts(
    open_harness: Callable[[BlobFactory], BackendHarness], objects: WatchingStore
) -> None:
    harness = open_harness(BlobFactory(max_part_bytes=10_000))
    task = harness.backup(1)
    value = random.Random(1).randbytes(95_000)
    marker = task.commit(first={b"k": value})["first"]
    assert harness.restore(marker) == {b"k": value}
    assert all(len(objects.get(key)) <= 10_000 for key in blobs_of(harness, marker))
    assert len(blobs_of(harness, marker)) >= 10
    lost = max(blobs_of(harness, marker), key=lambda key: len(objects.get(key)))
    objects.delete(lost)
    with pytest.raises(NotFoundError, match=lost):
        harness.restore(marker)


def test_the_byte_budget_holds(open_harness: Callable[[BlobFactory], BackendHarness], objects: WatchingStore) -> None:
    harness = open_harness(BlobFactory(ByteBudget(50_000), max_part_bytes=20_000))
    task = harness.backup(1)
    changes = {b"%d" % number: random.Random(number).randbytes(10_000) for number in range(40)}
    marker = task.commit(first=changes)["first"]
    assert 20_000 < objects.peak <= 50_000
    objects.peak = 0
    assert harness.restore(marker) == changes
    assert 20_000 < objects.peak <= 50_000


def test_more_than_the_budget_goes_alone() -> None:
    budget = ByteBudget(10)
    with budget.hold(1000):
        waiting = threading.Thread(target=lambda: budget.hold(1).__enter__(), daemon=True)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


def test_after_a_failure_no_other_job_begins_and_what_was_done_is_known() -> None:
    begun: list[int] = []
    failed = threading.Event()

    def job(number: int) -> int:
        begun.append(number)
        if number == 0:
            failed.set()
            raise RetryableError("no")
        failed.wait(10)
        return number

    done: list[int] = []
    jobs = [lambda n=n: job(n) for n in range(1000)]
    with pytest.raises(RetryableError, match="no"):
        done.extend(in_parallel(jobs, process_pools().transfers, threading.Event(), "it"))
    assert sorted({*done, 0}) == sorted(begun)
    assert len(begun) < 1000


def test_what_a_failed_try_has_put_is_not_put_again(
    open_harness: Callable[[BlobFactory], BackendHarness], objects: WatchingStore
) -> None:
    harness = open_harness(BlobFactory(max_part_bytes=1000))
    objects.rate = 0.3
    task = harness.backup(1)
    value = random.Random(1).randbytes(50_000)
    for number in range(3):
        objects.puts.clear()
        marker = task.commit_changes({"first": {b"%d" % number: value}}, retry=True)["first"]
    assert objects.faults > 10
    # At most one put of an object works; only what failed, or whose reply was lost, is tried again.
    own = [key for key in objects.puts if key.startswith(FOLDER)]
    assert len(own) < 2 * len(set(own)) + 10
    objects.rate = 0
    assert harness.restore(marker) == task.content()


def test_another_content_under_a_name_is_refused(harness: BackendHarness, objects: WatchingStore) -> None:
    task = harness.backup(1)
    task.commit()
    following = harness.last_id().millis + 1
    objects.put_if_absent(f"{FOLDER}/1-{following}-0.index", b"somebody else's")
    with pytest.raises(PenstockError, match="exists with other content: two containers write as epoch 1"):
        task.commit(first={b"a": b"1"})
    assert objects.get(f"{FOLDER}/1-{following}-0.index") == b"somebody else's"


def test_a_truncated_a_vanished_and_a_changed_object_are_named(harness: BackendHarness, objects: WatchingStore) -> None:
    marker = harness.backup(1).commit(first={b"a": b"1"})["first"]
    for key in blobs_of(harness, marker):
        data = objects.get(key)
        for damaged, said in (
            (data[:-1], f"has {len(data) - 1} of {len(data)} bytes"),
            (data + b"x", f"has {len(data) + 1} of {len(data)} bytes or more"),
            (data[:-1] + b"\xff", "hash"),
        ):
            objects.delete(key)
            objects.put_if_absent(key, damaged)
            with pytest.raises(CorruptError, match=f"blob `{key}`, of file .* of store `first` of task 0.*{said}"):
                harness.restore(marker)
        objects.delete(key)
        with pytest.raises(NotFoundError, match=f"blob `{key}`, of file .* of store `first` of task 0, is missing"):
            harness.restore(marker)
        objects.put_if_absent(key, data)
    index = f"{FOLDER}/{BlobMarker.parse(marker).index}"
    data = objects.get(index)
    objects.delete(index)
    with pytest.raises(NotFoundError, match=f"index `{index}` of store `first` of task 0 is missing"):
        harness.restore(marker)
    objects.put_if_absent(index, data.replace(b'"epoch":1', b'"epoch":2'))
    with pytest.raises(CorruptError, match=f"index `{index}` of store `first` of task 0 is damaged"):
        harness.restore(marker)


def test_a_store_whose_index_is_lost_is_uploaded_whole(harness: BackendHarness, objects: WatchingStore) -> None:
    """Another backend restored it; the marker that cannot be used does not live on."""
    first = harness.backup(1).commit(first={b"a": b"1"})
    objects.delete(f"{FOLDER}/{BlobMarker.parse(first['first']).index}")
    later = harness.backup(2, first, content={"first": {b"a": b"1"}}).commit()
    assert later["first"] != first["first"]
    assert later["second"] == first["second"]
    assert harness.restore(later["first"]) == {b"a": b"1"}


def test_a_restore_opens_no_engine_and_reports_from_its_own_thread(harness: BackendHarness, tmp_path: Path) -> None:
    marker = harness.backup(1).commit(first={b"a": b"1" * 10_000})["first"]
    threads: set[int] = set()
    reported: list[int] = []

    def report(size: int) -> None:
        threads.add(threading.get_ident())
        reported.append(size)

    def refuse() -> None:
        raise AssertionError("opened")

    target = RestoreTarget(tmp_path / "target", refuse)  # type: ignore[arg-type]
    with closing(harness.factory.restore_manager(harness.context(9))) as manager:
        manager.restore("first", marker, target, RestoreProgress(threading.Event(), report))
    assert threads == {threading.get_ident()}
    files = index_of(harness, marker).directory.by_path()
    assert sum(reported) == sum(file.size for file in files.values())
    assert {path.name: path.stat().st_size for path in target.directory.iterdir()} == {
        path: file.size for path, file in files.items()
    }


def test_a_restore_is_cancelled_half_way(
    open_harness: Callable[[BlobFactory], BackendHarness],
) -> None:
    harness = open_harness(BlobFactory(max_part_bytes=1000))
    marker = harness.backup(1).commit(first={b"a": random.Random(1).randbytes(100_000)})["first"]
    cancelled = threading.Event()
    progress = RestoreProgress(cancelled, lambda _: cancelled.set())
    with pytest.raises(RetryableError, match="the restore of store `first` of task 0 was cancelled"):
        harness.restore_engine(marker, "first", progress)


def test_a_base_is_made_once(open_harness: Callable[[BlobFactory], BackendHarness], objects: WatchingStore) -> None:
    """The commit that finds it complete uploads only what is new since."""
    harness = open_harness(BlobFactory())
    content = {b"%d" % number: random.Random(number).randbytes(10_000) for number in range(50)}
    task = harness.backup(1, {}, content={"first": content})
    markers = task.commit_changes({"first": {b"new": b"1"}}, complete=True)
    own = [key for key in objects.puts if key.startswith(FOLDER)]
    assert len(own) == len(set(own))
    assert sum(len(objects.get(key)) for key in own) < 530_000
    assert harness.restore(markers["first"]) == content | {b"new": b"1"}


@pytest.mark.parametrize("seed", range(6))
def test_a_collection_takes_nothing_that_is_needed(harness: BackendHarness, objects: WatchingStore, seed: int) -> None:
    """Commits, rewinds, collections that are interrupted anywhere, and lost uploads, in a random order."""
    rng = random.Random(seed)
    log: list[tuple[Mapping[str, str], dict[str, Content]]] = []
    left: list[Mapping[str, str]] = []
    epoch = 1
    task = harness.backup(epoch)
    for _ in range(25):
        step = rng.random()
        if step < 0.5 or not log:
            changes = {store: {b"%d" % rng.randrange(4): rng.choice((None, b"1", b"2"))} for store in STORES}
            log.append((task.commit_changes(changes), {store: task.content(store) for store in STORES}))
        elif step < 0.65:
            task.commit_changes({"first": {b"lost": b"1"}}, clean_up=False)
            task.close()
            epoch += 1
            start = rng.choice(log)
            log.append(start)
            task = harness.backup(epoch, start[0])
        else:
            left += [log.pop(rng.randrange(len(log) - 1))[0] for _ in range(rng.randrange(len(log)))]
            objects.delete_at_most = rng.choice((0, 1, 3, 10, 10**9))
            try:
                harness.collect([own for own, _ in log], left, epoch=epoch, sweep=rng.random() < 0.5)
                left.clear()
            except RetryableError:
                pass
            objects.delete_at_most = 10**9
            for markers, contents in log:
                for store in STORES:
                    assert harness.restore(markers[store], store) == contents[store], f"seed {seed}"
    task.close()
    harness.collect([own for own, _ in log], left, epoch=epoch + 1, sweep=True)
    needed = {blob for markers, _ in log for blob in blobs_of(harness, markers["first"])}
    indexes = {f"{FOLDER}/{BlobMarker.parse(markers['first']).index}" for markers, _ in log}
    assert set(objects.list(FOLDER)) == needed | indexes


def test_an_interrupted_collection_loses_no_deletions(harness: BackendHarness, objects: WatchingStore) -> None:
    """After every single deletion: the rest of the plan is found again, because an index is deleted last."""
    task = harness.backup(1)
    markers = [task.commit(first={b"k": b"%d" % number}) for number in range(4)]
    planned = harness.collect(markers[3:], markers[:3], epoch=1, dry_run=True).names
    assert len(planned) == 6
    while remaining := set(planned) & set(objects.list("")):
        again = harness.collect(markers[3:], markers[:3], epoch=1, dry_run=True).names
        assert remaining <= set(again)
        objects.delete_at_most = len(set(again) - remaining) + 1
        with suppress(RetryableError):
            harness.collect(markers[3:], markers[:3], epoch=1)
        objects.delete_at_most = 10**9
    assert harness.restore(markers[3]["first"]) == {b"k": b"3"}


def test_a_damaged_index_stops_collection_until_it_leaves(harness: BackendHarness, objects: WatchingStore) -> None:
    task = harness.backup(1)
    markers = [task.commit(first={b"k": b"%d" % number}) for number in range(3)]
    index = f"{FOLDER}/{BlobMarker.parse(markers[1]['first']).index}"
    objects.delete(index)
    objects.put_if_absent(index, b"damaged")
    before = objects.list("")
    with pytest.raises(CorruptError, match=re.escape(index)):
        harness.collect(markers[1:], markers[:1], epoch=1)
    assert objects.list("") == before
    harness.collect(markers[2:], markers[:2], epoch=1)
    assert harness.restore(markers[2]["first"]) == {b"k": b"2"}
