"""Two drivers of one job, drivers that are told to end, and a disk that is full."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.home import DriverProcess, Home

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 3000


@pytest.fixture(params=[{}, {"job_latency_target_ms": 50, "job_batch_max_messages": 40}], ids=["by Spark", "directly"])
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Home:
    home = Home(tmp_path, job_lease_ms=2000, **request.param)
    home.publish(MESSAGES, seed=7)
    return home


@pytest.fixture
def drivers() -> Iterator[list[DriverProcess]]:
    """Whatever is put into it is cleaned up."""
    started: list[DriverProcess] = []
    yield started
    for driver in started:
        driver.clean_up()


def outputs(home: Home) -> dict[str, list[tuple[int, int, str, object]]]:
    return {stream: list(home.messages(stream)) for stream in ("totals", "regions")}


def test_a_stopped_driver_wakes_after_another_took_over(home: Home, drivers: list[DriverProcess]) -> None:
    first = home.driver(until=None)  # a fast one with an end would be over before it is stopped
    drivers.append(first)
    assert first.await_output(400)
    first.signal(signal.SIGSTOP)
    second = home.driver()
    drivers.append(second)
    second.succeeded()
    home.verify()
    files, streams = home.job_files(), outputs(home)
    first.signal(signal.SIGCONT)
    ended = first.ended()
    assert (ended.status, ended.error) == (1, "FencedError"), ended.log[-4000:]
    assert_only_orphans(without_dropped(files, home), without_dropped(home.job_files(), home), epoch=1)
    assert outputs(home) == streams, "the driver that was fenced has written output"
    home.verify()


def without_dropped(files: dict[str, bytes], home: Home) -> dict[str, bytes]:
    """Without records of checkpoints that left the list: whoever dropped them may free their slots at any time."""
    dropped = {
        f"totals-1/checkpoints/{slot:020d}.json" for slot in range(home.log.end) if slot not in home.log.retained
    }
    claims = {f"totals-1/checkpoints/{home.log.slot_of(claim):020d}.json" for claim in home.log.claims}
    return {name: data for name, data in files.items() if name not in dropped - claims}


def assert_only_orphans(before: dict[str, bytes], after: dict[str, bytes], epoch: int) -> None:
    """Log, lease, metadata and state are as they were. A commit that was under way may have left deltas under names
    with its dead epoch, which no checkpoint mentions."""
    assert not [name for name in before if after.get(name) != before[name]]
    orphans = [name for name in after.keys() - before.keys() if "/." not in name]
    assert all(re.fullmatch(rf"totals-1/state/\w+/\d+/\d+\.{epoch}\.delta", name) for name in orphans), orphans


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if (found := subprocess.run(command, capture_output=True, text=True)).returncode:
        pytest.skip(f"a small file system cannot be mounted here: {found.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Use up what is free."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return ballast


def test_a_full_disk_is_named_until_there_is_space(home: Home, drivers: list[DriverProcess], small_disk: Path) -> None:
    home.config |= {"job.root": str(small_disk / "jobs"), "task.commit.timeout.ms": 3000}
    driver = home.driver(until=None)
    drivers.append(driver)
    assert driver.await_output(600)
    ballast = fill(small_disk)
    home.publish(200, seed=8)  # a fast job may have committed everything before the disk was full
    ended = driver.ended()
    assert ended.status == 1
    assert ended.error in {"PenstockTimeoutError", "PenstockError"}
    assert "No space left on device" in ended.text
    assert str(small_disk) in ended.text
    assert "job.root" in ended.text
    ballast.unlink()
    home.verify_checkpoint(home.checkpoints[-1])
    again = home.driver(task_commit_timeout_ms=60_000)
    drivers.append(again)
    again.succeeded()
    home.verify()


def test_a_lease_that_is_not_renewed_ends_the_run(home: Home, drivers: list[DriverProcess], small_disk: Path) -> None:
    """The disk is full while no commit is due: only the lease notices."""
    home.config |= {"job.root": str(small_disk / "jobs"), "task.commit.ms": 600_000}
    driver = home.driver(until=None)
    drivers.append(driver)
    driver.await_started()
    assert driver.await_output(300)
    ballast = fill(small_disk)
    ended = driver.ended(120)
    assert ended.status == 1
    assert "No space left on device" in ended.text
    ballast.unlink()
    again = home.driver(task_commit_ms=300)
    drivers.append(again)
    again.succeeded()
    home.verify()
