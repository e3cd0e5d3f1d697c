"""Forks of a job: what they have, what they leave alone, and what becomes of them when a process dies."""

from __future__ import annotations

import json
import os
import shutil
import threading
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import admin
from penstock.admin.job import delete, fork
from penstock.checkpoint.forks import check_whole
from penstock.checkpoint.log import CheckpointLog
from penstock.config import load_config
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.system.registry import open_systems
from penstock.testing.in_process import InProcessDriver
from tests.support.jobs.example_job import flights, publish
from tests.support.tools.cli import call, own_home
from tests.unit.test_readme import examples

BACKENDS: dict[str, dict[str, object]] = {
    "files": {"stores.backup.factories": "changelog-files"},
    "snapshots": {"stores.backup.factories": "changelog-files", "state.snapshot.interval.commits": 2},
    "root": {"stores.backup.factories": "blob"},
    "signed": {"stores.backup.factories": "blob", "job.root.key": "the key of this root, 32 characters or more"},
    "blob": {"stores.backup.factories": "blob"},
    "stream": {"stores.backup.factories": "changelog-stream", "stores.restore.factories": "changelog-stream"},
    "dual": {"stores.backup.factories": "changelog-stream,blob", "stores.restore.factories": "blob"},
}
QUICK = ("files", "dual")
TRIPS = [("N1", 500), ("N2", 200), ("N14", 90), ("N1", 700)]


class Jobs:
    """Jobs of one application in one root."""

    def __init__(self, backend: str) -> None:
        self.config: dict[str, Any] = {
            "task.commit.ms": 0,
            "task.checkpoint.retained": 2,
            "job.lease.ms": 2000,  # a process that dies leaves its own
            **BACKENDS[backend],
        }
        if backend == "root":
            self.config["state.backends.blob.root"] = os.environ["PENSTOCK_HOME"] + "/blobs"
        admin.create_stream(admin.open_stream("trips"), 2)

    def run(self, name: str, trips: list[tuple[str, int]] = []) -> None:  # noqa: B006
        """Publish, then have the job read everything and stop."""
        publish(trips)
        config = load_config(overrides={**self.config, "job.name": name})
        objects, systems = open_job_root(config.job), open_systems(config)
        check_whole(objects, paths_of(name))
        with closing(
            InProcessDriver(flights().graph(), config, objects, systems, containers=1, until_latest=True)
        ) as driver:
            driver.loop.run()

    def open(self, name: str) -> Any:
        return admin.open_job(name, overrides=self.config)

    def miles(self, name: str, version: str = "latest") -> dict[str, int]:
        with self.open(name) as job, admin.open_state(job, "miles", version=version) as store:
            return {each.key: each.value for each in store.scan()}

    def fork(self, name: str, new: str, from_checkpoint: str | None = None) -> admin.ForkFacts:
        with self.open(name) as job:
            return admin.fork(job, new, from_checkpoint)

    def labels(self, name: str) -> dict[str, str]:
        with self.open(name) as job:
            return {label: str(each.checkpoint) for label, each in job.log.read().labels.items()}


def paths_of(name: str) -> JobPaths:
    return JobPaths(name, "1")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_home(tmp_path, monkeypatch)


@pytest.fixture(params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BACKENDS])
def jobs(home: Path, request: pytest.FixtureRequest) -> Jobs:
    jobs = Jobs(request.param)
    for trip in TRIPS:
        jobs.run("flights", [trip])
    return jobs


def sums(trips: list[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, miles in trips:
        found[key] = found.get(key, 0) + miles
    return found


def objects_of(home: Path, name: str) -> dict[str, bytes]:
    folder = home / "jobs" / f"{name}-1" / "state"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_fork_has_the_state_and_goes_on_by_itself(jobs: Jobs, home: Path) -> None:
    made = jobs.fork("flights", "what-if")
    assert objects_of(home, "what-if") == {}, "nothing is copied"
    assert jobs.labels("flights") == {"fork:what-if-1": made.parent_checkpoint}
    before = objects_of(home, "flights")
    more = [("N2", 1), ("N3", 5)]
    for trip in more:
        jobs.run("what-if", [trip])
    assert jobs.miles("what-if") == sums([*TRIPS, *more])
    assert objects_of(home, "flights") == before
    assert jobs.miles("flights") == sums(TRIPS)
    later = [("N1", 3), ("N9", 9), ("N2", 2), ("N1", 1)]
    for trip in later:
        jobs.run("flights", [trip])
    assert jobs.miles("flights") == sums([*TRIPS, *more, *later])
    assert jobs.miles("flights", made.parent_checkpoint) == sums(TRIPS), "the pin keeps it"
    assert jobs.miles("what-if") == sums([*TRIPS, *more])
    for trip in [("N5", 5), ("N6", 6), ("N7", 7)]:
        jobs.run("what-if", [trip])
    assert jobs.miles("what-if") == sums([*TRIPS, *more, *later, ("N5", 5), ("N6", 6), ("N7", 7)])


def test_a_fork_of_an_older_checkpoint_and_of_a_fork(jobs: Jobs) -> None:
    with jobs.open("flights") as job:
        oldest = next(each.checkpoint for each in admin.checkpoints(job) if each.retained)
        assert oldest is not None
        admin.label_checkpoint(job, oldest.id, "old")
    then = jobs.miles("flights", "old")
    jobs.fork("flights", "one", "old")
    jobs.fork("one", "two")
    assert jobs.miles("two") == jobs.miles("one") == then
    jobs.run("two", [("N3", 5)])
    jobs.run("one", [("N3", 5)])
    for trip in [("N4", 4), ("N5", 5), ("N6", 6)]:
        jobs.run("flights", [trip])
    assert jobs.miles("two") == sums([*TRIPS, ("N3", 5)])
    jobs.run("two")
    jobs.run("one")
    assert jobs.miles("one") == jobs.miles("two") == jobs.miles("flights")


def test_a_fork_gets_another_number_of_tasks(jobs: Jobs) -> None:
    jobs.fork("flights", "wider")
    wider = {**jobs.config, "job.name": "wider", "job.intermediate.stream.partitions": 4}
    with admin.plan_repartition(flights(), 4, overrides=wider) as plan:
        admin.repartition(plan)
    jobs.run("flights", [("N3", 5)])
    jobs.config["job.intermediate.stream.partitions"] = 4
    jobs.run("wider", [("N4", 6)])
    assert jobs.miles("wider") == sums([*TRIPS, ("N3", 5), ("N4", 6)])
    with jobs.open("wider") as job:
        assert admin.read_checkpoint(job).task_count == 4


def test_a_detached_fork_needs_its_parent_no_more(jobs: Jobs, home: Path) -> None:
    jobs.fork("flights", "what-if")
    for trip in [("N3", 5), ("N4", 6), ("N5", 7)]:
        jobs.run("what-if", [trip])
    with jobs.open("flights") as job, pytest.raises(IncompatibleError, match="its fork `what-if-1` needs objects"):
        admin.delete_job(job)
    assert jobs.miles("flights") == sums(TRIPS), "nothing was deleted"
    with jobs.open("what-if") as job:
        assert admin.detach(job).parent == "flights-1"
        assert admin.detach(job).parent is None
    assert jobs.labels("flights") == {}
    with jobs.open("flights") as job:
        admin.delete_job(job)
    shutil.rmtree(home / "jobs" / "flights-1")
    expected = sums([*TRIPS, ("N3", 5), ("N4", 6), ("N5", 7)])
    assert jobs.miles("what-if") == expected
    jobs.run("what-if", [("N6", 1)])
    assert jobs.miles("what-if") == {**expected, "N6": 1}


def test_a_deleted_fork_takes_its_pin_along(jobs: Jobs, home: Path) -> None:
    jobs.fork("flights", "what-if")
    with jobs.open("flights") as job, pytest.raises(IncompatibleError, match="keeps what the fork `what-if-1` needs"):
        admin.unlabel_checkpoint(job, "fork:what-if-1")
    with jobs.open("what-if") as job:
        admin.delete_job(job)
    assert jobs.labels("flights") == {}
    before = jobs.miles("flights")
    jobs.run("flights", [("N3", 5)])
    assert jobs.miles("flights") == {**before, "N3": 5}


def test_a_pin_that_was_left_behind_is_collected(jobs: Jobs, home: Path) -> None:
    jobs.fork("flights", "what-if")
    shutil.rmtree(home / "jobs" / "what-if-1")
    with jobs.open("flights") as job:
        assert admin.collect_garbage(job, dry_run=True).pins == ("fork:what-if-1",)
        assert admin.collect_garbage(job).pins == ("fork:what-if-1",)
        assert admin.collect_garbage(job).pins == ()
    assert jobs.labels("flights") == {}


def test_a_lost_object_of_a_fork_is_not_taken_for_one_of_its_parent(home: Path) -> None:
    """Both jobs write the second version of the store, each in its own second run."""
    jobs = Jobs("files")
    jobs.config["task.checkpoint.retained"] = 10
    jobs.run("flights", [("N1", 1)])
    with jobs.open("flights") as job:
        admin.label_checkpoint(job, None, "first")
    jobs.run("flights", [("N2", 2)])
    jobs.fork("flights", "what-if", "first")
    jobs.run("what-if", [("N3", 3)])
    assert jobs.miles("what-if") == {"N1": 1, "N2": 2, "N3": 3}
    for delta in (home / "jobs" / "what-if-1" / "state").rglob("2.*"):
        delta.unlink()
    with pytest.raises(CorruptError, match=r"delta `what-if-1.* is missing"):
        jobs.miles("what-if")


@pytest.mark.parametrize("gone", ["label", "job"])
def test_a_fork_without_its_pin_does_not_start(home: Path, gone: str) -> None:
    jobs = Jobs("files")
    jobs.run("flights", TRIPS)
    jobs.fork("flights", "what-if")
    if gone == "job":
        shutil.rmtree(home / "jobs" / "flights-1")
    else:
        with jobs.open("flights") as job:
            job.log.label("fork:what-if-1", None, 0)
    with pytest.raises(IncompatibleError, match=r"is a fork of checkpoint .* does not keep this checkpoint"):
        jobs.run("what-if")
    with jobs.open("what-if") as job:
        admin.delete_job(job)
    assert not (home / "jobs" / "what-if-1" / "home").exists()


class DiedError(BaseException):
    """The process dies here."""


def die_at(step: int, objects: type, patch: pytest.MonkeyPatch) -> None:
    """Die before this write, not counting the audit log and renewals of the lease, which come by time."""
    writes = count()

    def dying(real: Any) -> Any:
        def call(self: Any, key: str, *rest: Any) -> Any:
            renews = threading.current_thread().name == "penstock-lease"
            if "/audit/" not in key and not renews and next(writes) >= step:
                raise DiedError
            return real(self, key, *rest)

        return call

    for name in ("put_if_absent", "put_if_match"):
        patch.setattr(objects, name, dying(getattr(objects, name)))


@pytest.mark.parametrize(
    "step", [step if step in {1, 3, 6} else pytest.param(step, marks=pytest.mark.slow) for step in range(9)]
)
def test_a_fork_that_dies_on_the_way_is_completed_or_deleted(
    home: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each write it dies: until the fork is complete it does not start, and both ways out lead out."""
    jobs = Jobs("files")
    jobs.run("flights", TRIPS)
    with jobs.open("flights") as job, monkeypatch.context() as patch:
        die_at(step, type(job.objects), patch)
        with suppress(DiedError):
            admin.fork(job, "what-if")
        view = CheckpointLog(job.objects, paths_of("what-if")).read()
        if view.latest is None and (home / "jobs" / "what-if-1" / "home").exists():
            with pytest.raises(IncompatibleError, match="the fork was not completed"):
                check_whole(job.objects, paths_of("what-if"))
    assert (view.latest is not None) == (step > 6), "the record is its seventh write"
    if view.end and step % 2:
        with jobs.open("what-if") as job:
            admin.delete_job(job)
        assert jobs.labels("flights") == {}
    if view.latest is None or step % 2:
        jobs.fork("flights", "what-if")
    jobs.run("what-if", [("N3", 5)])
    assert jobs.miles("what-if") == sums([*TRIPS, ("N3", 5)])
    assert list(jobs.labels("flights")) == ["fork:what-if-1"]


@pytest.mark.parametrize("step", [0, 4, 9, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 6, 12, 15))])
def test_a_fork_that_is_half_deleted_does_not_start(home: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first checkpoint alone may be left, whose objects the parent keeps."""
    jobs = Jobs("files")
    jobs.run("flights", TRIPS)
    jobs.fork("flights", "what-if")
    jobs.run("what-if", [("N3", 5)])
    with jobs.open("what-if") as job, monkeypatch.context() as patch:
        deletes, real = count(), type(job.objects).delete

        def dying(self: Any, key: str) -> None:
            if "/metadata/" not in key and next(deletes) >= step:
                raise DiedError
            real(self, key)

        patch.setattr(type(job.objects), "delete", dying)
        with suppress(DiedError):
            admin.delete_job(job)
    if (home / "jobs" / "what-if-1" / "deleting").exists():
        with pytest.raises(IncompatibleError, match="is being deleted"):
            jobs.run("what-if")
        with jobs.open("what-if") as job:
            admin.delete_job(job)
    with jobs.open("flights") as job:
        admin.collect_garbage(job)
        assert job.log.read().labels == {}
        admin.delete_job(job)


def test_a_job_that_is_deleted_while_it_is_forked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion has looked for forks before the fork pins, and goes on when the fork is there."""
    jobs = Jobs("files")
    jobs.run("flights", TRIPS)

    def forked_now(found: admin.FoundJob) -> None:
        monkeypatch.setattr(fork, "check_whole", lambda *_: None)  # it looked before the mark
        with pytest.raises(IncompatibleError, match="does not keep checkpoint"):
            jobs.fork("flights", "what-if")

    monkeypatch.setattr(delete, "refuse_forked", forked_now)
    with jobs.open("flights") as job:
        admin.delete_job(job)
    with pytest.raises(IncompatibleError, match="does not keep this checkpoint"):
        jobs.run("what-if")


def test_a_fork_whose_parent_has_lost_its_pin_does_not_start(home: Path) -> None:
    jobs = Jobs("files")
    jobs.run("flights", TRIPS)
    jobs.fork("flights", "one")
    jobs.fork("one", "two")
    with jobs.open("flights") as job:
        job.log.label("fork:one-1", None, 0)
    with pytest.raises(
        IncompatibleError, match=r"job `one-1` is a fork of checkpoint .* does not keep this checkpoint"
    ):
        jobs.run("two")
    with pytest.raises(IncompatibleError, match="does not keep this checkpoint"):
        jobs.fork("one", "three")


def test_what_cannot_be_forked(home: Path) -> None:
    jobs = Jobs("files")
    jobs.run("flights", TRIPS)
    with pytest.raises(NotFoundError, match="no checkpoint `none`"):
        jobs.fork("flights", "what-if", "none")
    with pytest.raises(IncompatibleError, match="cannot be a fork of itself"):
        jobs.fork("flights", "flights")
    jobs.run("other", [])
    with pytest.raises(IncompatibleError, match="there is a job `other-1` already"):
        jobs.fork("flights", "other")
    made = jobs.fork("flights", "what-if")
    assert jobs.fork("flights", "what-if") == made, "a call that is repeated"
    jobs.run("flights", [("N3", 5)])
    assert jobs.fork("flights", "what-if") == made, "also if the job has gone on"
    with pytest.raises(IncompatibleError, match="is a fork of checkpoint"):
        jobs.fork("flights", "what-if", "latest")


def test_the_example_of_the_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs("files")
    jobs.run("flights", TRIPS)
    (block,) = examples("docs/forks.md")
    exec(compile(block, "forks.md", "exec"), {})
    assert str(jobs.miles("flights")) in capsys.readouterr().out


def test_the_commands(home: Path) -> None:
    jobs = Jobs("files")
    jobs.run("flights", TRIPS)
    call("checkpoint", "label", "flights", "latest", "before-deploy")
    said = call("fork", "flights", "what-if", "--from", "before-deploy")[1]
    assert "penstock run ... -c job.name=what-if -c job.id=1" in said
    assert "fork:what-if-1" in call("checkpoint", "list", "flights")[0]
    jobs.run("what-if", [("N3", 5)])
    assert "job what-if-1 needs nothing of job flights-1 any more: " in call("job", "detach", "what-if")[1]
    assert "needs no objects of another job" in call("job", "detach", "what-if")[1]
    assert json.loads(call("fork", "flights", "again-7", "--json")[0])["job"] == "again-7"
    call("job", "delete", "again-7", "--yes")
    assert list(jobs.labels("flights")) == ["before-deploy"]
    call("job", "delete", "flights", "--yes")
