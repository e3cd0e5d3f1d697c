"""This version shows and continues the jobs that each kept version has left, and the other way round."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tests.compat.kept import archive
from tests.compat.kept.job import KeptHome
from tests.compat.kept.play import JOBS, finish, shown, write

KEPT = archive.kept_jobs()
VERSIONS = sorted({version for version, _ in KEPT})
REFUSES: dict[str, tuple[str, ...]] = {}
"""Kept version -> the jobs of this version that it must refuse, because this one writes a newer format of something.
docs/upgrades.md says so of each."""


@pytest.mark.parametrize(("version", "job"), KEPT)
def test_a_job_of_a_kept_version_is_shown_and_continued(version: str, job: str, tmp_path: Path) -> None:
    """Commands show what those of the kept version have shown, and change nothing. A start goes on from there: outputs
    and state are those of a plain computation over all of the input, each message once."""
    with closing(KeptHome(archive.unpack(version, job, tmp_path / "home"), JOBS[job]())) as home:
        before = objects(home)
        assert shown(home) == json.loads((archive.VERSIONS / version / f"{job}.json").read_bytes())
        assert objects(home) == before
        finish(home)


def objects(home: KeptHome) -> dict[str, bytes]:
    return {key: home.objects.get(key) for key in home.objects.list("")}


def test_every_kept_version_has_every_job_of_its_time() -> None:
    assert KEPT
    assert archive.this_version() in VERSIONS, "keep this version: python -m tests.compat.keep"
    assert {job for version, job in KEPT if version == archive.this_version()} == JOBS.keys()
    assert {job for _, job in KEPT} <= JOBS.keys(), "a kept job is never removed"


def test_archives_are_small() -> None:
    sizes = {path: path.stat().st_size for path in archive.VERSIONS.rglob("*.tar.xz")}
    assert max(sizes.values()) < 100_000
    assert sum(sizes.values()) < 1_500_000


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_kept_version_continues_the_jobs_of_this_one(version: str, tmp_path: Path) -> None:
    """As far as docs/upgrades.md promises it: what a kept version cannot read, it refuses, and changes nothing."""
    commit = archive.commit_of(version)
    if not archive.has_commit(commit):
        pytest.skip(f"the history of this clone does not have commit {commit} of version {version}")
    tree = archive.check_out(commit, tmp_path / "tree")
    for name in sorted(job for kept, job in KEPT if kept == version):
        folder = tmp_path / name
        with closing(KeptHome(folder, JOBS[name]())) as home:
            write(home)
            expected = None if name in REFUSES.get(version, ()) else json.loads(json.dumps(shown(home)))
            before = objects(home)
        if expected is None:
            refused = archive.play(tree, "finish", name, shutil.copytree(folder, tmp_path / f"{name}-refused"))
            assert "IncompatibleError" in refused.stderr
            assert "or a newer one" in refused.stderr
            with closing(KeptHome(tmp_path / f"{name}-refused", JOBS[name]())) as home:
                assert before.items() <= {**objects(home), **_of_the_start(before)}.items()
            continue
        told = archive.play(tree, "show", name, folder)
        assert told.returncode == 0, told.stderr
        assert json.loads(told.stdout) == expected
        finished = archive.play(tree, "finish", name, shutil.copytree(folder, tmp_path / f"{name}-moved"))
        assert finished.returncode == 0, finished.stderr


def _of_the_start(before: dict[str, bytes]) -> dict[str, bytes]:
    """The objects that a refused start may change: the lease, and the folder that the job is bound to."""
    return {key: data for key, data in before.items() if key.endswith("/uid") or "/lease/" in key}
