"""A job whose objects are signed: from its first run, from later on, and with changing keys."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from penstock import admin
from penstock.admin.job.ownership import held_job
from penstock.errors import ConfigError, CorruptError, NotFoundError, RetryableError
from penstock.job.lease import LeaseHeldError
from penstock.objects.file import FileObjectStore
from penstock.objects.forwarding import SignedStore, is_signed
from penstock.objects.store import ObjectStore
from penstock.system.files.listing import ROW_BITS
from penstock.system.registry import open_system
from tests.support.jobs.example_job import publish, run
from tests.support.tools.cli import call, call_json, own_home

FIRST, SECOND = "the first key of this root, long enough", "the second key of this root, long enough"
JOB = "flights-1"
Keys = dict[str, object]
NONE: Keys = {}
OLD: Keys = {"job.root.key": FIRST}
BOTH: Keys = {"job.root.key": SECOND, "job.root.key.previous": FIRST}
NEW: Keys = {"job.root.key": SECOND}


class Job:
    """The job in a home, and what its state has to be."""

    def __init__(self, home: Path) -> None:
        self.root = FileObjectStore(home / "jobs")
        self.miles: Counter[str] = Counter()
        admin.create_stream(admin.open_stream("trips"), 2)

    def publish(self, miles: int) -> None:
        messages = [(f"N{number}", miles + number) for number in range(5)]
        publish(messages)
        self.miles.update(dict(messages))

    def check(self, keys: Keys) -> None:
        with admin.open_job(JOB, overrides=keys) as job, admin.open_state(job, "miles") as store:
            assert {entry.key: entry.value for entry in store.scan()} == self.miles

    def sign(self, keys: Keys) -> tuple[int, int]:
        with admin.open_job(JOB, overrides=keys) as job:
            facts = admin.sign(job)
        return facts.objects, facts.signed

    def unsigned(self) -> list[str]:
        return [key for key in self.root.list("") if not is_signed(self.root.get(key))]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(own_home(tmp_path, monkeypatch))


def test_everything_is_signed_and_keys_change(job: Job) -> None:
    job.publish(100)
    run(OLD)
    assert job.unsigned() == []
    job.check(OLD)
    with pytest.raises(ConfigError, match=r"is signed.*no `job\.root\.key`"):
        run(NONE)
    with pytest.raises(ConfigError, match="signed with another key"):
        run(NEW)

    job.publish(200)
    run(BOTH)
    job.check(BOTH)
    with pytest.raises(ConfigError, match="signed with another key"):
        job.check(NEW)
    objects, signed = job.sign(BOTH)
    assert 0 < signed < objects
    assert job.sign(BOTH) == (objects + 1, 0), "the first call has left a record in the audit log"
    job.publish(300)
    run(NEW)
    job.check(NEW)


def test_a_root_that_was_not_signed(job: Job) -> None:
    job.publish(100)
    run(NONE)
    with pytest.raises(ConfigError, match=r"has no signature.*penstock job sign"):
        run(OLD)
    with pytest.raises(ConfigError, match=r"no `job\.root\.key` to sign with"):
        job.sign(NONE)
    objects, signed = job.sign(OLD)
    assert objects == signed > 5
    assert job.unsigned() == []
    job.publish(200)
    run(OLD)
    job.check(OLD)


@pytest.mark.parametrize("factory", ["files", "penstock.system.files.system:FilesSystem"])
def test_listings_are_signed_whatever_name_their_system_has(job: Job, tmp_path: Path, factory: str) -> None:
    folder = tmp_path / "data" / "rides"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"n": 1}\n')
    own: Keys = {"systems.in.samza.factory": factory, "systems.in.folder": str(folder.parent)}

    def upcoming(keys: Keys) -> int:
        with (
            admin.open_job(JOB, overrides={**own, **keys}) as found,
            closing(open_system(found.config.system("in")).admin()) as looking,
        ):
            return max(ends.upcoming for ends in looking.offsets("rides").values())

    job.publish(100)
    run(NONE)
    assert upcoming(NONE) == 1 << ROW_BITS
    assert [key for key in job.unsigned() if key.startswith("_files/")]
    job.sign({**own, **OLD})
    assert job.unsigned() == []
    assert upcoming(OLD) == 1 << ROW_BITS


def test_signing_that_was_interrupted_is_repeated(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.publish(100)
    run(NONE)
    signs, left = SignedStore.sign_again, iter(range(5))

    def fails(store: SignedStore, key: str) -> bool:
        if next(left, None) is None:
            raise RetryableError("the network is gone")
        return signs(store, key)

    with monkeypatch.context() as patch:
        patch.setattr(SignedStore, "sign_again", fails)
        with pytest.raises(RetryableError, match="network"):
            job.sign(OLD)
    for keys in (NONE, OLD):
        with pytest.raises(ConfigError, match="sign"):
            run(keys)
    objects, signed = job.sign(OLD)
    assert 0 < signed < objects
    job.publish(200)
    run(OLD)
    job.check(OLD)


@pytest.mark.attack
def test_what_a_stranger_adds_to_a_signed_root_is_not_signed(job: Job) -> None:
    job.publish(100)
    run(OLD)
    key = job.root.list(f"{JOB}/checkpoints")[-1]
    record = job.root.get(key)
    for data, keys in ((record[48:], OLD), (record[48:], BOTH), (record[:-1] + b" ", BOTH)):
        job.root.delete(key)
        job.root.put_if_absent(key, data)
        with pytest.raises((ConfigError, CorruptError), match="sign"):
            job.sign(keys)
        assert job.root.get(key) == data
    job.root.delete(key)
    job.root.put_if_absent(key, record)
    assert job.sign(BOTH)[1] > 0
    job.check(NEW)


def test_nothing_of_a_running_job_is_signed(job: Job) -> None:
    job.publish(100)
    run(NONE)
    with admin.open_job(JOB) as found, held_job(found, "test"):
        before = job.unsigned()
        with pytest.raises(LeaseHeldError):
            job.sign(OLD)
    assert set(before) - set(job.unsigned()) <= {found.paths.lease}


@pytest.mark.attack
def test_no_object_of_a_stranger_becomes_state(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger runs the same job with other messages, and puts objects of that run into the root: each alone, and
    all together. They have the right checksums."""
    job.publish(100)
    run(OLD)
    mine = tmp_path / "home"
    (tmp_path / "strange").mkdir()
    strange = Job(own_home(tmp_path / "strange", monkeypatch))
    strange.publish(1_000_000)
    run(NONE)
    forged = {key: strange.root.get(key) for key in strange.root.list("") if not key.endswith("/uid")}
    monkeypatch.setenv("PENSTOCK_HOME", str(mine))

    def place(objects: ObjectStore, key: str, data: bytes) -> None:
        objects.delete(key)
        assert objects.put_if_absent(key, data)

    refused = 0
    for key, data in forged.items():
        try:
            own = job.root.get(key)
        except NotFoundError:
            continue
        place(job.root, key, data)
        try:
            job.check(OLD)
        except (ConfigError, CorruptError):
            refused += 1
        place(job.root, key, own)
    assert refused > 2
    for key, data in forged.items():
        place(job.root, key, data)
    with pytest.raises((ConfigError, CorruptError), match="signature"):
        run(OLD)
    with pytest.raises((ConfigError, CorruptError), match="signature"):
        job.check(OLD)


def test_the_commands(job: Job, tmp_path: Path) -> None:
    job.publish(100)
    run(NONE)
    Path("key").write_text(f"{FIRST}\n")
    given = ("-c", "job.root.key=file:key")
    assert "`job.root.key`" in call("job", "sign", JOB, status=2)[1]
    assert "penstock job sign" in call("status", JOB, *given, status=2)[1]
    assert call_json("job", "sign", JOB, *given)["signed"] > 5
    assert "0 objects of" in call("job", "sign", JOB, *given)[1]
    assert JOB in call("status", JOB, *given)[0]
    assert "no `job.root.key`" in call("status", JOB, status=2)[1]
    short = call("status", JOB, "-c", "job.root.key=env:PENSTOCK_HOME_X", status=2)[1]
    assert "no variable" in short
    Path("key").write_text("short-secret")
    refused = call("status", JOB, *given, status=2)[1]
    assert "at least 32 characters" in refused
    assert "short-secret" not in refused
