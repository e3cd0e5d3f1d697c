"""Whatever fails and however writers interleave: one linear log, one owner an epoch, old owners always fenced."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
from obstore.store import MemoryStore

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord, Claim, encode_record
from penstock.errors import CorruptError, FencedError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.open import RemoteObjectStore
from penstock.objects.store import ObjectStore
from penstock.testing.faulty_store import FaultyStore
from tests.support.stores.checkpoints import checkpoint

PATHS = JobPaths("flights", "1")
TIMEOUT_S = 60.0


def memory() -> ObjectStore:
    return RemoteObjectStore("memory://log", store=MemoryStore())


@dataclass
class Writer:
    """One driver: its log, its claim, and the checkpoints it was told are written."""

    log: CheckpointLog
    claim: Claim
    acknowledged: list[CheckpointRecord] = field(default_factory=list)


def assert_linear(view: LogView, writers: list[Writer]) -> None:
    """`read` has already refused a log that is not linear; here: it holds what was acknowledged, once, in order."""
    assert list(view.records) == list(range(len(view.records)))
    epochs = [claim.epoch for claim in view.claims]
    assert epochs == list(range(1, len(epochs) + 1)), "one owner an epoch, none skipped"
    for writer in writers:
        assert view.claims.count(writer.claim) == 1
        own = [record for record in view.checkpoints if record.writer == writer.claim.writer]
        assert [record for record in own if record in writer.acknowledged] == writer.acknowledged
        assert len(set(map(encode_record, own))) == len(own)


@pytest.mark.parametrize("seed", range(12))
def test_concurrent_drivers(seed: int) -> None:
    """Six drivers claim at once and append until they are fenced; replies are lost, calls fail, listings lag."""
    inner = memory()
    store = FaultyStore(inner, seed, rate=0.3, lag=2)
    barrier = threading.Barrier(6)

    def drive(me: int) -> Writer:
        log = CheckpointLog(store, PATHS)
        barrier.wait(TIMEOUT_S)
        while True:
            try:
                writer = Writer(log, log.claim(f"run-{me}"))
                break
            except RetryableError:
                continue
        for number in range(1, 9):
            record = checkpoint(writer.claim, me * 1000 + number)
            while True:
                try:
                    log.append(record)
                except RetryableError:
                    continue
                except FencedError:
                    with pytest.raises(FencedError, match="epoch"):
                        log.append(checkpoint(writer.claim, me * 1000 + 999))
                    return writer
                writer.acknowledged.append(record)
                break
        return writer

    with ThreadPoolExecutor(6) as pool:
        writers = list(pool.map(drive, range(6)))
    assert store.faults > 0
    view = CheckpointLog(inner, PATHS).read()
    # A claim that was given up after an unclear failure may be there too: it belongs to nobody.
    assert_linear(view, writers)
    for writer in writers:
        mine = [record for record in view.checkpoints if record.writer == writer.claim.writer]
        assert mine[: len(writer.acknowledged)] == writer.acknowledged
        assert len(mine) == len(writer.acknowledged), "a retried append knows its own record"


def test_a_stopped_driver_wakes_after_another_took_over() -> None:
    store = memory()
    old, new = CheckpointLog(store, PATHS), CheckpointLog(store, PATHS)
    first = old.claim("old")
    old.append(checkpoint(first, 1))
    second = new.claim("new")
    assert new.latest_before(second) == checkpoint(first, 1)
    assert new.latest_before(first) is None
    before = store.list("")
    for _ in range(2):
        with pytest.raises(FencedError, match="claimed by epoch 2 of run `new`"):
            old.append(checkpoint(first, 2))
    with pytest.raises(FencedError):
        old.claim("old again")
    assert store.list("") == before, "fenced: nothing more is written"
    new.append(checkpoint(second, 3))
    assert [record.id.millis for record in new.read().checkpoints] == [1, 3]


def test_a_driver_that_slept_takes_no_job_back() -> None:
    """It has not seen the other's claim when it claims again, as a rewind does."""
    store = memory()
    old, new = CheckpointLog(store, PATHS), CheckpointLog(store, PATHS)
    first = old.claim("old")
    assert old.claim("old").epoch == first.epoch + 1, "its own claims do not keep it from another one"
    second = new.claim("new")
    before = store.list("")
    for _ in range(2):
        with pytest.raises(FencedError, match="claimed by epoch 3 of run `new`"):
            old.claim("old")
    assert store.list("") == before
    new.append(checkpoint(second, 1))


def test_upload_of_commit_c_completes_after_a_rewind_to_c_minus_1() -> None:
    log = CheckpointLog(memory(), PATHS)
    first = log.claim("run")
    log.append(checkpoint(first, 1))
    late = checkpoint(first, 2)
    second = log.claim("run")
    with pytest.raises(FencedError, match="epoch 1"):
        log.append(late)
    log.append(checkpoint(second, 3))
    assert log.latest_before(second) == checkpoint(first, 1)


def test_a_record_that_is_appended_again_is_there_once() -> None:
    log = CheckpointLog(memory(), PATHS)
    record = checkpoint(log.claim("run"), 1)
    assert [log.append(record) for _ in range(3)] == [1] * 3
    assert list(log.read().checkpoints) == [record]


def test_a_record_of_an_epoch_never_claimed() -> None:
    with pytest.raises(FencedError, match="nothing"):
        CheckpointLog(memory(), PATHS).append(checkpoint(Claim(1, "run", "x"), 1))


def test_latest_before_an_unknown_claim() -> None:
    with pytest.raises(NotFoundError, match="epoch 7"):
        CheckpointLog(memory(), PATHS).latest_before(Claim(7, "run", "x"))


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_gap_is_an_error(slot: int) -> None:
    store = memory()
    log = CheckpointLog(store, PATHS)
    claim = log.claim("run")
    for number in (1, 2, 3):
        log.append(checkpoint(claim, number))
    store.delete(PATHS.checkpoint(slot))
    for call in (CheckpointLog(store, PATHS).read, lambda: CheckpointLog(store, PATHS).claim("other")):
        with pytest.raises(CorruptError, match=PATHS.checkpoint(slot)):
            call()


@pytest.mark.parametrize("last", [0, 1])
def test_a_damaged_record_is_an_error_and_never_skipped(last: int) -> None:
    store = memory()
    log = CheckpointLog(store, PATHS)
    claim = log.claim("run")
    log.append(checkpoint(claim, 1))
    key = PATHS.checkpoint(last)
    store.delete(key)
    store.put_if_absent(key, b"{}")
    with pytest.raises(CorruptError, match=key):
        CheckpointLog(store, PATHS).read()


def test_a_checkpoint_that_is_not_the_owners_is_an_error() -> None:
    store = memory()
    claim = CheckpointLog(store, PATHS).claim("run")
    store.put_if_absent(PATHS.checkpoint(1), encode_record(checkpoint(replace(claim, writer="forged"), 1)))
    with pytest.raises(CorruptError, match=PATHS.checkpoint(1)):
        CheckpointLog(store, PATHS).read()
