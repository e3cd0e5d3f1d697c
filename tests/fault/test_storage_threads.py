"""The threads of a container are bounded, whatever the number of its tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.base.parallel import InTurn, in_parallel, settle
from penstock.errors import ContainerLostError, RetryableError
from penstock.objects.open import open_store
from penstock.runtime.stage import task_instance
from penstock.state.backends.resources import BackendPools
from penstock.system.memory import MemorySystem
from tests.support.stores.hooked_store import HookedStore
from tests.support.stores.storage_job import StorageJob

DEADLINE_S = 60.0
BACKENDS = "changelog-files,blob,changelog-stream"


def wait_until(met: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def storage_threads() -> list[str]:
    names = ("restore-", "commit-", "copy-", "write-", "maintenance-", "transfer-", "base-", "blob")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


@pytest.mark.parametrize(
    ("tasks", "most"),
    [pytest.param(2, 40, marks=pytest.mark.slow), (50, 110), pytest.param(100, 110, marks=pytest.mark.slow)],
)
def test_a_container_has_a_bounded_number_of_threads(tmp_path: Path, tasks: int, most: int) -> None:
    """Every task has two stores in three backends, makes snapshots, and begins bases: all of it at once."""
    stores = ("first", "second")
    job = StorageJob(
        tmp_path,
        HookedStore(open_store(f"memory://{tmp_path}")),
        {"local": MemorySystem("local")},
        tasks=tasks,
        stores=stores,
        config={
            "stores.backup.factories": "changelog-files",
            "stores.first.factory": "memory",
            "stores.second.factory": "memory",
            "state.snapshot.interval.commits": 1,
        },
    )
    before = len(storage_threads())
    highest: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            highest.append(len(storage_threads()))
            done.wait(0.002)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    log = job.start()
    claim = log.claim("run")
    homes = {"c": tuple(range(tasks))}
    commits = job.open(log, claim, None, homes)
    changes = {(store, task): {b"key": b"%d" % task} for store in stores for task in range(tasks)}
    job.run_batch(changes)
    record = job.commit(commits, claim).record
    commits.close()
    job.leave()
    job.overrides["stores.backup.factories"] = BACKENDS
    claim = log.claim("run")
    commits = job.open(log, claim, record, homes)
    for _ in range(3):
        job.run_batch(changes)
        job.commit(commits, claim)
    commits.close()
    assert job.content() == changes
    job.leave()
    done.set()
    watching.join()
    assert max(highest) - before <= most
    assert max(highest) - before > 4, "they were counted"
    wait_until(lambda: len(storage_threads()) <= before, "all of them end with the epoch")


def test_what_is_given_in_turn_runs_one_after_another_and_no_thread_waits_for_its_turn() -> None:
    pool = ThreadPoolExecutor(2)
    turn, gate, order = InTurn(pool), threading.Event(), []

    def work(number: int) -> int:
        gate.wait(DEADLINE_S)
        order.append(number)
        return number

    futures = [turn.submit(lambda n=n: work(n)) for n in range(5)]  # type: ignore[misc]
    pool.submit(gate.set).result(DEADLINE_S)  # the other thread is free
    assert [future.result(DEADLINE_S) for future in futures] == order == [0, 1, 2, 3, 4]
    failed = turn.submit(lambda: 1 // 0)
    assert isinstance(failed.exception(DEADLINE_S), ZeroDivisionError)
    assert turn.submit(lambda: 7).result(DEADLINE_S) == 7
    pool.shutdown()


def test_what_waits_for_its_turn_can_be_cancelled_and_ends_with_the_pool() -> None:
    pool = ThreadPoolExecutor(1)
    turn, gate = InTurn(pool), threading.Event()
    first = turn.submit(lambda: gate.wait(DEADLINE_S))
    waiting: list[Future[int]] = [turn.submit(lambda n=n: n) for n in range(3)]  # type: ignore[misc]
    assert waiting[1].cancel()
    pool.shutdown(wait=False)
    assert not settle(first, 0)
    gate.set()
    assert settle(first, DEADLINE_S)
    for future in waiting:
        assert settle(future, DEADLINE_S)
    assert settle(turn.submit(lambda: 1), DEADLINE_S), "and after it nothing begins any more"


def test_transfers_take_turns_and_end_when_their_pool_is_closed() -> None:
    pools = BackendPools.for_tasks(1, "test")
    gate, begun = threading.Event(), []

    def job(number: int) -> int:
        begun.append(number)
        gate.wait(DEADLINE_S)
        return number

    found: Future[list[int]] = Future()

    def transfer() -> None:
        jobs = [lambda n=n: job(n) for n in range(100)]
        try:
            found.set_result(list(in_parallel(jobs, pools.transfers, threading.Event(), "it")))
        except BaseException as error:
            found.set_exception(error)

    thread = threading.Thread(target=transfer, daemon=True)
    thread.start()
    wait_until(lambda: len(begun) == 8, "as many as run at once")
    closing = threading.Thread(target=pools.close, daemon=True)
    closing.start()
    wait_until(lambda: _is_closed(pools), "the pool is closed")
    gate.set()
    thread.join(DEADLINE_S)
    closing.join(DEADLINE_S)
    assert isinstance(found.exception(0), RetryableError)
    assert len(begun) <= 16


def _is_closed(pools: BackendPools) -> bool:
    try:
        pools.transfers.submit(lambda: None)
    except RuntimeError:
        return True
    return False


def test_an_end_is_asked_for_again_while_stores_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the copy of a large store takes, its container does not count as lost."""
    monkeypatch.setattr(task_instance, "HOLD_SECONDS", 0.01)
    job = StorageJob(tmp_path, open_store("memory://holds"), {}, tasks=1, stores=("first",), config={})
    log = job.start()
    claim = log.claim("run")
    job.open(log, claim, None, {"c": (0,)}).close()
    (task,) = job.fleet.homes["c"].tasks.values()
    task.take_changes(hold=True)
    with pytest.raises(RetryableError, match="task 0 are still being copied") as caught:
        task.end(1, {})
    assert not isinstance(caught.value, ContainerLostError)
    task.release()
    task.end(1, {})
    assert task.last_ended == 1
    job.leave()
