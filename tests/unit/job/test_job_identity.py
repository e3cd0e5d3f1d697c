"""To which folder a job's uid is bound: a copy of its folder is noticed before it takes over anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.job.identity import JobIdentity, adopt, canonical_root, check_root, known_uid, settle
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from tests.support.stores.hooked_store import RetriedWrites
from tests.support.stores.stopped_job import PATHS, StoppedJob, call, saved

OTHER = JobPaths("other", "1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


@pytest.fixture
def objects(root: Path) -> FileObjectStore:
    return FileObjectStore(root)


def test_a_uid_is_minted_once_and_bound_to_its_folder(objects: FileObjectStore, root: Path) -> None:
    check_root(objects, PATHS, str(root))
    assert known_uid(objects, PATHS) == ""
    uid = settle(objects, PATHS, str(root))
    assert (settle(objects, PATHS, root.as_uri()), known_uid(objects, PATHS)) == (uid, uid)
    assert settle(objects, OTHER, str(root)) != uid
    check_root(objects, PATHS, str(root))


def test_a_copy_is_refused_with_the_ways_out(objects: FileObjectStore, root: Path) -> None:
    settle(objects, PATHS, str(root))
    copied = root.with_name("copied")
    shutil.copytree(root, copied)
    for start in (check_root, settle):
        with pytest.raises(IncompatibleError) as refused:
            start(FileObjectStore(copied), PATHS, str(copied))
        for part in (root.as_uri(), copied.as_uri(), "`penstock job adopt flights-1 -c job.root=", "--moved"):
            assert part in str(refused.value)


def test_a_copy_in_the_same_root_is_refused_until_it_is_adopted(objects: FileObjectStore, root: Path) -> None:
    uid = settle(objects, PATHS, str(root))
    shutil.copytree(root / PATHS.root, root / OTHER.root)
    for start in (check_root, settle):
        with pytest.raises(IncompatibleError) as refused:
            start(objects, OTHER, str(root))
        for part in (
            f"{root.as_uri()}/flights-1.",
            f"{root.as_uri()}/other-1 ",
            "`penstock job adopt other-1 -c job.root=",
        ):
            assert part in str(refused.value)
    _, after = adopt(objects, OTHER, str(root), moved=False)
    assert settle(objects, OTHER, str(root)) == after.uid != uid == settle(objects, PATHS, str(root))


def test_another_way_to_the_same_folder_is_no_copy(objects: FileObjectStore, root: Path) -> None:
    uid = settle(objects, PATHS, str(root))
    link = root.with_name("link")
    link.symlink_to(root)
    assert settle(FileObjectStore(link), PATHS, str(link)) == uid
    check_root(objects, PATHS, f"{root}/../{root.name}/")


def test_a_copy_becomes_a_job_of_its_own_and_a_moved_folder_does_not(objects: FileObjectStore, root: Path) -> None:
    uid = settle(objects, PATHS, str(root))
    before, after = adopt(objects, PATHS, "s3://bucket/jobs", moved=True)
    assert (before.uid, after) == (uid, JobIdentity(uid, "s3://bucket/jobs/flights-1"))
    before, after = adopt(objects, PATHS, str(root), moved=False)
    assert (before.uid, after.folder) == (uid, f"{root.as_uri()}/flights-1")
    assert settle(objects, PATHS, str(root)) == after.uid != uid
    assert adopt(objects, PATHS, str(root), moved=False) == (after, after)
    with pytest.raises(NotFoundError, match="no job was ever started"):
        adopt(objects, OTHER, str(root), moved=True)


@pytest.mark.parametrize("moved", [False, True])
def test_an_adoption_whose_reply_was_lost_is_told(objects: FileObjectStore, root: Path, moved: bool) -> None:
    uid = settle(objects, PATHS, str(root))
    before, after = adopt(RetriedWrites(objects), PATHS, "s3://bucket/jobs", moved=moved)
    assert (before.uid, after.folder) == (uid, "s3://bucket/jobs/flights-1")
    assert known_uid(objects, PATHS) == after.uid
    assert (after.uid == uid) == moved


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("s3://bucket/jobs/", "s3://bucket/jobs"),
        ("gs://bucket", "gs://bucket"),
        ("memory://name", "memory://name"),
        ("/srv/a%20b", "file:///srv/a%2520b"),
        ("file:///srv/a%20b", "file:///srv/a%20b"),
        ("/srv/a b/", "file:///srv/a%20b"),
    ],
)
def test_one_text_for_one_root(url: str, canonical: str) -> None:
    assert canonical_root(url) == canonical


@pytest.mark.parametrize("data", [b"\xff", b"{", b'{"format":1}', b'{"format":1,"uid":"a"}', b'{"format":1,"uid":1}'])
def test_a_damaged_identity(data: bytes) -> None:
    with pytest.raises(CorruptError, match="`flights-1/uid` is damaged"):
        JobIdentity.decode(data, PATHS.uid)
    with pytest.raises(IncompatibleError, match="another version"):
        JobIdentity.decode(orjson.dumps({"format": 2, "uid": "a", "folder": None}), PATHS.uid)


# The commands.


def test_commands_that_change_a_job_refuse_an_unadopted_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = StoppedJob(tmp_path / "home")
    job.run(saved(1))
    settle(job.objects, PATHS, str(tmp_path / "home" / "jobs"))
    shutil.copytree(tmp_path / "home", tmp_path / "copied")
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "copied"))
    assert str(saved(1).id) in call("list", "flights")[0], "looking is free"
    change = ("set", "flights", "--offsets", "-", "--yes")
    offsets = '{"local.dep.flights": {"0": 1}}'
    assert "is a copy" in call(*change, text=offsets, status=1)[1]
    assert "is a separate job now" in call("adopt", "flights", group="job")[1]
    call(*change, text=offsets)
    assert "nothing was changed" in call("adopt", "flights", group="job")[1]
    assert job.last.id == saved(1).id, "the original is as it was"

    shutil.move(tmp_path / "copied", tmp_path / "moved")
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "moved"))
    assert "is the same job as before" in call("adopt", "flights", "--moved", group="job")[1]
    call(*change, text='{"local.dep.flights": {"0": 2}}')
