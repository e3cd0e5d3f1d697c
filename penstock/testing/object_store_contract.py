"""The contract of every object store, as tests to inherit.

A test class inherits `ObjectStoreContract` and defines the pytest fixture `store`: an empty store. One whose stores
several processes can open inherits `SharedObjectStoreContract` and defines `url` too, for `open_store`.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier

import pytest

from penstock.errors import ConfigError, NotFoundError
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore

THREADS = 16
PROCESSES = 4
PROCESS_KEYS = 25
TIMEOUT_S = 60.0


class ObjectStoreContract:
    """The contract of `ObjectStore`, in one process."""

    def test_put_if_absent_keeps_the_first(self, store: ObjectStore) -> None:
        assert store.put_if_absent("a/b", b"first")
        assert not store.put_if_absent("a/b", b"second")
        assert store.get("a/b") == b"first"

    def test_the_empty_object(self, store: ObjectStore) -> None:
        assert store.put_if_absent("empty", b"")
        assert store.get("empty") == b""

    def test_the_pieces_of_an_object_are_the_object(self, store: ObjectStore) -> None:
        for size in (0, 1, (256 << 10) - 1, 256 << 10, (1 << 20) + 1):
            data = random.Random(size).randbytes(size)  # noqa: S311 - reproducible, not secret
            store.put_if_absent(f"of/{size}", data)
            assert b"".join(map(bytes, store.pieces(f"of/{size}"))) == data

    def test_get_of_nothing(self, store: ObjectStore) -> None:
        store.put_if_absent("a/b", b"")
        for key in ("missing", "a/missing", "a", "a/b/c"):
            with pytest.raises(NotFoundError, match=key):
                store.get(key)
            with pytest.raises(NotFoundError):
                store.get_with_tag(key)
            with pytest.raises(NotFoundError, match=key):
                list(store.pieces(key))

    def test_replace_needs_the_current_tag(self, store: ObjectStore) -> None:
        assert store.put_if_match("k", b"1", None)
        assert not store.put_if_match("k", b"2", None)
        data, old = store.get_with_tag("k")
        assert data == b"1"
        assert store.put_if_match("k", b"2", old)
        assert not store.put_if_match("k", b"3", old)
        data, new = store.get_with_tag("k")
        assert (data, new != old) == (b"2", True)

    def test_replace_does_not_bring_back_the_deleted(self, store: ObjectStore) -> None:
        store.put_if_absent("k", b"1")
        _, tag = store.get_with_tag("k")
        store.delete("k")
        assert not store.put_if_match("k", b"2", tag)
        with pytest.raises(NotFoundError):
            store.get("k")

    def test_delete_is_idempotent(self, store: ObjectStore) -> None:
        store.delete("never/was")
        store.put_if_absent("d/k", b"1")
        store.delete("d/k")
        store.delete("d/k")
        assert store.list("") == []
        assert store.put_if_absent("d/k", b"2")

    def test_list_is_sorted_whole_and_by_folder(self, store: ObjectStore) -> None:
        keys = ["a-b/x", "a.b/x", "a/b", "a/c/1", "a/c/10", "a/c/2", "a/c.d", "ab", "z/é"]
        for key in reversed(keys):
            store.put_if_absent(key, b"")
        assert store.list("") == sorted(keys)
        assert store.list("a") == store.list("a/") == ["a/b", "a/c.d", "a/c/1", "a/c/10", "a/c/2"]
        assert store.list("a/c") == ["a/c/1", "a/c/10", "a/c/2"]
        assert store.list("nothing") == store.list("a/b") == []

    def test_folders_are_the_topmost_ones(self, store: ObjectStore) -> None:
        assert store.folders() == []
        for key in ("b-1/uid", "b-1/state/x/0/1.1.delta", "a-1/metadata/lease/driver", "c-1/uid"):
            store.put_if_absent(key, b"x")
        assert store.folders() == ["a-1", "b-1", "c-1"]

    def test_list_after(self, store: ObjectStore) -> None:
        keys = [f"log/{slot:020d}.json" for slot in range(12)]
        for key in keys:
            store.put_if_absent(key, b"")
        assert store.list("log", after=keys[4]) == keys[5:]
        assert store.list("log", after="log/00000000000000000004.x") == keys[5:]
        assert store.list("log", after="log") == keys
        assert store.list("log", after=keys[-1]) == []

    def test_sizes(self, store: ObjectStore) -> None:
        found = {"a/b": 0, "a/c/1": 70_000, "a/c/2": 3}
        for key, size in {**found, "ab": 9, "a-b": 8}.items():
            store.put_if_absent(key, b"x" * size)
        assert list(store.sizes("a").items()) == list(store.sizes("a/").items()) == list(found.items())
        assert store.sizes("") == {**found, "ab": 9, "a-b": 8}
        assert store.sizes("nothing") == store.sizes("a/b") == {}

    def test_keys_with_dots(self, store: ObjectStore) -> None:
        keys = [".hidden", "a..b/..c", "s/1.2.delta", "s/local.my.stream.0", "trailing./x."]
        for key in keys:
            assert store.put_if_absent(key, key.encode())
        assert store.list("") == sorted(keys)
        assert [store.get(key) for key in keys] == [key.encode() for key in keys]

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", ".", "a\nb", "x" * 300, ".penstock-lock"])
    def test_malformed_keys_are_refused(self, store: ObjectStore, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.put_if_absent(key, b""),
            lambda: store.put_if_match(key, b"", "tag"),
            lambda: store.get(key),
            lambda: store.delete(key),
        ]
        for call in calls:
            with pytest.raises(ConfigError):
                call()

    def test_threads_race_to_create(self, store: ObjectStore) -> None:
        for key in (f"race/new/folder{attempt}/k" for attempt in range(5)):
            won = _race(lambda me, key=key: store.put_if_absent(key, b"%d" % me))  # type: ignore[misc]
            assert len(won) == 1
            assert store.get(key) == b"%d" % won[0]

    def test_threads_race_to_replace(self, store: ObjectStore) -> None:
        store.put_if_absent("k", b"start")
        for _ in range(5):
            _, tag = store.get_with_tag("k")
            won = _race(lambda me, tag=tag: store.put_if_match("k", tag.encode() + b"-%d" % me, tag))  # type: ignore[misc]
            assert len(won) == 1
            assert store.get("k") == tag.encode() + b"-%d" % won[0]

    def test_replace_and_delete_leave_one_order(self, store: ObjectStore) -> None:
        """Counting with compare and replace loses nothing."""
        store.put_if_absent("counter", b"0")

        def add(_: int) -> bool:
            while True:
                data, tag = store.get_with_tag("counter")
                if store.put_if_match("counter", b"%d" % (int(data) + 1), tag):
                    return True

        _race(add)
        assert store.get("counter") == b"%d" % THREADS

    def test_no_partial_object_is_ever_visible(self, store: ObjectStore) -> None:
        done = threading.Event()
        bodies = {f"big/{number}": bytes([number]) * 700_000 for number in range(8)}

        def watch() -> int:
            seen = 0
            while not done.is_set() or seen == 0:
                for key in store.list("big"):
                    data = store.get(key)
                    assert data[:32] == hashlib.sha256(data[32:]).digest()
                    seen += 1
            return seen

        with ThreadPoolExecutor(2) as pool:
            watching = pool.submit(watch)
            try:
                for key, body in bodies.items():
                    assert store.put_if_absent(key, hashlib.sha256(body).digest() + body)
            finally:
                done.set()
            assert watching.result(TIMEOUT_S) > 0

    def test_close_is_idempotent(self, store: ObjectStore) -> None:
        store.close()
        store.close()


class SharedObjectStoreContract(ObjectStoreContract):
    """The contract of a store that several processes open at one URL."""

    def test_processes_race_to_create(self, store: ObjectStore, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(PROCESSES)
        results: multiprocessing.queues.Queue[tuple[int, list[str]]] = context.Queue()
        workers = [
            context.Process(target=_create_all, args=(url, number, barrier, results)) for number in range(PROCESSES)
        ]
        for worker in workers:
            worker.start()
        won = dict(results.get(timeout=TIMEOUT_S) for _ in workers)
        for worker in workers:
            worker.join(TIMEOUT_S)
            assert worker.exitcode == 0
        keys = store.list("race")
        assert len(keys) == PROCESS_KEYS
        assert sorted(key for mine in won.values() for key in mine) == keys
        assert all(store.get(key) == b"%d" % number for number, mine in won.items() for key in mine)


def _race(attempt: Callable[[int], bool]) -> list[int]:
    """Run `attempt` in all threads at the same moment. Returns the numbers of the attempts that got True."""
    barrier = threading.Barrier(THREADS)

    def start(number: int) -> bool:
        barrier.wait(TIMEOUT_S)
        return attempt(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return [number for number, won in enumerate(pool.map(start, range(THREADS))) if won]


def _create_all(
    url: str, number: int, barrier: Barrier, results: multiprocessing.queues.Queue[tuple[int, list[str]]]
) -> None:
    store = open_store(url)
    won: list[str] = []
    for key in (f"race/{index:03d}/k" for index in range(PROCESS_KEYS)):
        barrier.wait(TIMEOUT_S)
        if store.put_if_absent(key, b"%d" % number):
            won.append(key)
    results.put((number, won))
    results.close()
    results.join_thread()
