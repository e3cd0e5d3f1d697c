"""Damage under an open store: the answer is a new epoch and a restore, never a dead letter or the user's failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ContainerLostError
from penstock.runtime.reports import JobFailed
from penstock.state.backends.base import StoreCopy
from penstock.state.engines.rocksdb import RocksDbEngine
from tests.support.apps.container_app import Message, oracle
from tests.support.faults.damage import written_tables
from tests.support.processes.containers import ContainerProcess, Job, stored, wait_until

KEYS = 3000
SMALL = {"stores.rocksdb.write.buffer.bytes": 65536, "stores.rocksdb.block.cache.bytes": 0}


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerProcess]:
    started = ContainerProcess(tmp_path_factory.mktemp("logs"))
    yield started
    started.kill()


@pytest.fixture(params=[None, "local.dead"], ids=["strict", "dead letters"])
def job(request: pytest.FixtureRequest, tmp_path: Path, container: ContainerProcess) -> Job:
    job = Job(tmp_path, [container], config=SMALL, dead_letter=request.param, cache_entries=1)
    job.open()
    return job


def tables(job: Job, task: int) -> list[Path]:
    """RocksDB's table files of a task's open store, once there are some that have content: a file that RocksDB has
    made and not yet written could not be damaged."""
    found: list[Path] = []

    def look() -> list[Path]:
        found[:] = written_tables(job.folder / "local", f"totals/{task}")
        return found

    wait_until(look, "RocksDB writes a table")
    return found


def flip_bytes(job: Job, task: int) -> None:
    """Flip one bit in every data block, about, of every table."""
    for table in tables(job, task):
        with table.open("r+b") as file:
            size = table.stat().st_size
            for place in range(100, size * 3 // 4, 2000):
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ 1]))


def of_every_key(start: int, **more: object) -> list[Message]:
    return [{"key": f"k{n}", "n": start + n, **more} for n in range(KEYS)]


@pytest.mark.few(2)
@pytest.mark.parametrize("careful", [False, True], ids=["the error passes", "the error is caught"])
def test_a_flipped_byte_in_a_table_is_answered_by_a_restore(job: Job, careful: bool) -> None:
    first, second = of_every_key(0), of_every_key(7, careful=careful)
    job.run_batch(1, first)
    markers = job.commit()
    flip_bytes(job, 0)
    run = job.start(2, second)
    found, report = job.attempt(run, 0)
    other, whole = job.attempt(run, 1)
    assert report.failed is None
    assert report.dead_letters == 0
    assert report.error is not None
    assert report.error[0] == ContainerLostError.__name__
    assert "task 0: store `totals` cannot be read" in report.error[1]
    assert whole.error is None
    outcome = job.outcome(run, [*found, *other])
    assert isinstance(outcome, JobFailed)
    assert outcome.kind == ContainerLostError.__name__
    job.open(last_ended=1, markers=markers)
    assert job.run_batch(2, second).dead_letters == 0
    assert stored(job, job.commit(2)) == oracle(first, second)


@pytest.mark.few(1)
def test_a_store_whose_files_are_gone(job: Job) -> None:
    """As after an unmounted disk: End, which writes to it, or the next read fails; the answer is the same."""
    first = of_every_key(0)
    job.run_batch(1, first)
    markers = job.commit()
    for table in tables(job, 0):
        table.write_bytes(b"")
    _, report = job.attempt(job.start(2, of_every_key(1)), 0)
    assert report.error is not None
    assert report.error[0] == ContainerLostError.__name__
    job.open(last_ended=1, markers=markers)
    job.run_batch(2, of_every_key(1))
    assert stored(job, job.commit(2)) == oracle(first, of_every_key(1))


def test_a_damaged_copy_of_an_open_store_is_no_damaged_backup(tmp_path: Path) -> None:
    """An upload reads the copy; the store has to be restored, as when a task reads the damaged block."""
    engine = RocksDbEngine(tmp_path / "db", block_cache_bytes=0, write_buffer_bytes=1 << 16)
    engine.load({b"%06d" % n: b"x" * 50 for n in range(5000)})
    engine.copy_to(tmp_path / "copy")
    engine.close()
    (table,) = (tmp_path / "copy").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.unlink()
    table.write_bytes(data)

    def opened() -> RocksDbEngine:
        return RocksDbEngine(tmp_path / "copy", block_cache_bytes=0, write_buffer_bytes=1 << 16, read_only=True)

    with pytest.raises(ContainerLostError, match="the copy of a store is damaged, and with it the store"):
        list(StoreCopy(tmp_path / "copy", opened, lambda: None).entries())
