"""`penstock table versions|use`, and what `job delete` and `state gc` know of pushed tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.objects.file import FileObjectStore
from penstock.tables.versions.manifest import TableFile, TableFingerprint, TableManifest
from penstock.tables.versions.notes import VersionRefusal, refusal_of
from penstock.tables.versions.registry import TableRegistry
from tests.support.stores.stopped_job import PATHS, StoppedJob, saved
from tests.support.tools.cli import call, call_json, own_home

PRINT = TableFingerprint("string", "json", ("tail",), None, single_value=False, tasks=2, broadcast=False)
FILE = TableFile("0-0.sst", 0, "a" * 64, 3, 2, b"N1", b"N2")
JOB = PATHS.root


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileObjectStore:
    """A stopped job with three versions of the table `planes`."""
    home = own_home(tmp_path, monkeypatch)
    StoppedJob(home).run(saved(1, markers={}))
    objects = FileObjectStore(home / "jobs")
    for number in range(1, 4):
        build = f"1-{number}"
        registry(objects).put_file(build, FILE.name, b"abc")
        draft = TableManifest(
            "planes", 0, 1, build, "/data/planes", f"v{number} abc", 2, 1_700_000_000_000, PRINT, (FILE,)
        )
        registry(objects).publish(draft)
    return objects


def registry(objects: FileObjectStore) -> TableRegistry:
    return TableRegistry(objects, PATHS, "planes")


def test_versions_and_a_rollback(objects: FileObjectStore) -> None:
    out = call("table", "versions", JOB, "planes")[0]
    lines = [line.split() for line in out.splitlines() if "abc" in line]
    assert [(line[0], "yes" in line) for line in lines] == [("1", False), ("2", False), ("3", True)]
    assert "/data/planes" in out
    said = call("table", "use", JOB, "planes", "2")[1]
    assert said == f"table `planes` of job {JOB} uses version 2 from the next batches on\n"
    assert registry(objects).pinned() == 2
    (shown,) = call_json("table", "versions", JOB)
    assert (shown["table"], shown["chosen"], [each["version"] for each in shown["versions"]]) == (
        "planes",
        2,
        [1, 2, 3],
    )
    assert "(version 2 was chosen)" in call("table", "versions", JOB)[0]
    said = call("table", "use", JOB, "planes", "newest")[1]
    assert said == f"table `planes` of job {JOB} uses its newest version (3) from the next batches on\n"
    assert registry(objects).pinned() is None


def test_mistakes_name_what_there_is(objects: FileObjectStore) -> None:
    assert "table `planes` has no version 9; it has 1, 2, 3" in call("table", "use", JOB, "planes", "9", status=1)[1]
    assert (
        "has no versions of a pushed table `gates`; it has `planes`"
        in call("table", "use", JOB, "gates", "1", status=1)[1]
    )
    assert "`gates`; it has `planes`" in call("table", "versions", JOB, "gates", status=1)[1]
    assert "a version is a number, or `newest`" in call("table", "use", JOB, "planes", "last", status=2)[1]
    assert registry(objects).pinned() is None


def test_what_was_refused_and_what_is_damaged(objects: FileObjectStore) -> None:
    refusal_of(objects, PATHS, "planes").put(VersionRefusal("v4 abc", "its check failed", 1_700_000_000_000))
    objects.put_if_absent(PATHS.table_version("planes", 4), b"{}")
    said = call("table", "versions", JOB)[1]
    assert "version 4 cannot be read" in said
    assert "v4 abc its check failed" in said


def test_a_job_without_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StoppedJob(own_home(tmp_path, monkeypatch)).run(saved(1, markers={}))
    assert "has no versions of pushed tables" in call("table", "versions", JOB)[1]
    assert call_json("table", "versions", JOB) == []
    assert call_json("state", "gc", JOB, "--dry-run")["tables"] == []


def test_gc_collects_what_builds_left(objects: FileObjectStore) -> None:
    registry(objects).put_file("1-left", FILE.name, b"abc")
    left = f"{JOB}/tables/planes/builds/1-left/{FILE.name}"
    assert call_json("state", "gc", JOB, "--dry-run")["tables"] == [left]
    assert left in objects.list(PATHS.tables)
    assert left in call("state", "gc", JOB)[0]
    assert left not in objects.list(PATHS.tables)
    assert registry(objects).versions().numbers == (1, 2, 3)
    older = replace(registry(objects).manifest(3), build="1-late")
    assert registry(objects).newest() != older


def test_a_deleted_job_leaves_no_table(objects: FileObjectStore) -> None:
    out = call("job", "delete", JOB, "--yes")[0]
    assert "pushed tables" in out
    assert "6 objects" in out
    assert objects.list(JOB) == objects.list(PATHS.audit_log)
