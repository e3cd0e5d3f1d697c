"""The logs and the present positions of a job's run, as a program reads them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from penstock import NotFoundError, admin
from penstock.admin.job import logs as logs_module
from penstock.admin.jobs import FoundJob
from penstock.host.logs import log_directory, log_path, open_log
from penstock.job.identity import uid_here
from penstock.job.lease import LeaseState
from tests.support.jobs.shown_job import ShownJob
from tests.support.stores.stopped_job import StoppedJob, saved
from tests.support.tools.cli import call, own_home


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FoundJob]:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    StoppedJob(tmp_path / "home").run(saved(1))
    with admin.open_all_jobs(overrides={"job.root": str(tmp_path / "home" / "jobs")}) as (job,):
        yield job


class Log:
    """A container's log, as its process writes it."""

    def __init__(self, job: FoundJob, container: str) -> None:
        folder = log_directory(job.config, job.paths, uid_here(job.objects, job.paths, job.config.job.root))
        folder.mkdir(parents=True, exist_ok=True)
        self.path = log_path(str(folder), container, "0123456789abcdef")

    def write(self, text: str) -> None:
        with open_log(self.path) as file:
            file.write(text.encode())

    def cut(self) -> None:
        self.path.replace(self.path.with_suffix(".log.1"))


def at(second: int, text: str) -> str:
    return f"2026-01-01T10:00:{second:02}.000Z INFO {text}\n"


def texts(lines: Iterator[admin.LogLine]) -> list[tuple[str, str]]:
    return [(line.container, line.text.rpartition("INFO ")[2]) for line in lines]


def test_lines_of_all_containers_by_time(job: FoundJob) -> None:
    first, second = Log(job, "12-0"), Log(job, "12-1")
    first.write(at(1, "a") + "printed\n" + at(4, "d"))
    second.write(at(2, "b") + at(3, "c") + at(5, "not whole")[:-1])
    found = [("12-0", "a"), ("12-0", "printed"), ("12-1", "b"), ("12-1", "c"), ("12-0", "d")]
    assert texts(admin.container_logs(job)) == found
    assert texts(admin.container_logs(job, 2)) == found[-2:]
    assert texts(admin.container_logs(job, 0)) == []
    options = ("-c", f"job.root={job.config.job.root}")
    shown, _ = call("logs", job.paths.root, "-n", "3", *options)
    assert [line.split("  ")[0] for line in shown.splitlines()] == ["12-1", "12-1", "12-0"]
    assert '"container":"12-0"' in call("logs", job.paths.root, "--json", *options)[0]


def test_a_job_without_logs_here(job: FoundJob) -> None:
    with pytest.raises(NotFoundError, match="has logged to"):
        admin.container_logs(job)


def test_only_the_end_of_a_long_log_is_read(job: FoundJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "_TAIL_BYTES", 1000)
    log = Log(job, "12-0")
    log.write("".join(at(1, f"line {n:03}") for n in range(100)))
    found = texts(admin.container_logs(job))
    assert found == [("12-0", f"line {n:03}") for n in range(100 - len(found), 100)]
    assert 10 < len(found) <= 1000 // len(at(1, "line 000"))


def test_new_lines_are_followed_over_a_cut_and_in_new_logs(job: FoundJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "_POLL_S", 0.01)
    monkeypatch.setattr(logs_module, "_READ_BYTES", 100)
    log = Log(job, "12-0")
    log.write(at(1, "before"))
    found = admin.container_logs(job, follow=True)
    assert texts(islice(found, 1)) == [("12-0", "before")]

    def write() -> None:
        log.write(at(2, "begun")[:-1])
        log.write(" and ended\n" + at(3, "last of the file"))
        log.cut()
        log.write(at(4, "first of the next"))
        Log(job, "12-1").write("x" * 250 + "\n")

    writer = threading.Thread(target=write)
    writer.start()
    seen = texts(islice(found, 6))
    writer.join()
    assert [text for container, text in seen if container == "12-0"] == [
        "begun and ended",
        "last of the file",
        "first of the next",
    ]
    assert "".join(text for container, text in seen if container == "12-1") == "x" * 250


@pytest.mark.parametrize(
    ("lease", "wait", "reads"),
    [
        ("held", False, True),
        ("stale", True, False),
        ("released", True, False),
        ("released", False, False),
        ("another run's", False, False),
        ("none", False, False),
    ],
)
def test_positions_of_a_run(
    tmp_path: Path, lease: str, wait: bool, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home(tmp_path, monkeypatch)
    with closing(ShownJob(tmp_path)) as job:
        job.show_run()
        job.run()
        state = LeaseState.decode(job.objects.get(job.paths.lease), job.paths.lease)
        job.objects.delete(job.paths.lease)
        if lease != "none":
            token = "0" * 32 if lease == "another run's" else state.token
            given = replace(state, token=token, released=lease == "released")
            job.objects.put_if_absent(job.paths.lease, given.encode())
        with admin.open_job("contract", assignments=[f"job.root={tmp_path / 'home' / 'jobs'}"]) as found:
            parts = [part for each in admin.status(found, wait=wait).inputs for part in each.partitions]
    assert {part.read is not None for part in parts} == {reads}
    assert {part.left == part.lag for part in parts if not reads} <= {True}
