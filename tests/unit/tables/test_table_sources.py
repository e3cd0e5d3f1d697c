"""The version of a source that is built: manifests, `_SUCCESS`, subfolders, what is missing, and a Delta log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import ConfigError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.tables.build import (
    SourceVersion,
    TableRefusedError,
    TableSourceFile,
    choose_place,
    find_place,
    read_version,
)
from penstock.testing.runner.sides import ArrowTableBuilder, local_folder

FOLDERS = ArrowTableBuilder(open_store("memory://sources"), JobPaths("j", "1"))


def put(path: Path, text: str = "x", at_s: float | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if at_s is not None:
        os.utime(path, (at_s, at_s))


def found(folder: Path) -> SourceVersion | None:
    side = ps.PushedTable(str(folder), key="k")
    place = find_place(FOLDERS, side)
    return None if place is None else read_version(FOLDERS, side, place)


def names(version: SourceVersion | None) -> list[str]:
    assert version is not None
    return [url.removeprefix(f"{version.url}/") for url in version.files]


def test_nothing_is_complete(tmp_path: Path) -> None:
    assert found(tmp_path / "missing") is None
    put(tmp_path / "a.parquet")
    put(tmp_path / "v1" / "a.parquet")
    assert found(tmp_path) is None


def test_the_newest_complete_subfolder_counts(tmp_path: Path) -> None:
    for number, name in enumerate(("v1", "v9", "v10", "half")):
        put(tmp_path / name / "part-0.parquet")
        put(tmp_path / name / "_committed_1")
        put(tmp_path / name / ".part-0.parquet.crc")
        if name != "half":
            put(tmp_path / name / "_SUCCESS", "", 1000.0 + number)
    version = found(tmp_path)
    assert names(version) == ["part-0.parquet"]
    assert version is not None
    assert version.version.startswith("v10 ")
    assert version.rows is None
    put(tmp_path / "v1" / "_SUCCESS", "", 2000.0)
    again = found(tmp_path)
    assert again is not None
    assert again.version.startswith("v1 ")


def test_folders_of_partitions_are_data(tmp_path: Path) -> None:
    put(tmp_path / "_SUCCESS")
    put(tmp_path / "year=2013" / "a.parquet")
    put(tmp_path / "_year=2013" / "b.parquet")
    put(tmp_path / "_temporary" / "0" / "c.parquet")
    assert names(found(tmp_path)) == ["_year=2013/b.parquet", "year=2013/a.parquet"]


def test_files_that_are_overwritten_make_another_version(tmp_path: Path) -> None:
    put(tmp_path / "_SUCCESS", "", 1.0)
    put(tmp_path / "a.parquet", "x", 1.0)
    first = found(tmp_path)
    assert found(tmp_path) == first
    put(tmp_path / "a.parquet", "y", 2.0)
    second = found(tmp_path)
    assert second != first
    put(tmp_path / "_SUCCESS", "", 3.0)
    assert found(tmp_path) != second


def test_the_manifest_of_the_folder_names_the_files(tmp_path: Path) -> None:
    put(tmp_path / "v1" / "_SUCCESS")
    put(tmp_path / "b.parquet")
    put(tmp_path / "a.parquet")
    put(tmp_path / "old.parquet")
    manifest = tmp_path / "_manifest.json"
    put(manifest, json.dumps({"files": ["b.parquet", "a.parquet"], "rows": 7}))
    version = found(tmp_path)
    assert names(version) == ["b.parquet", "a.parquet"]
    assert version is not None
    assert (version.rows, version.url) == (7, str(tmp_path))
    put(manifest, json.dumps({"files": [{"name": "b.parquet", "rows": 2}, {"name": "old.parquet", "rows": 3}]}))
    counted = found(tmp_path)
    assert counted is not None
    assert counted.rows == 5
    assert counted.version != version.version


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ('{"files": ["a.parquet", "b.parquet", "c.parquet"]}', "2 files of 3 that .* missing: `b.parquet` and `c.pa"),
        ('{"files": ["a.parquet", "b.parquet"]}', r"1 file of 2 that .*_manifest.json` names is missing: `b.parquet`"),
        ('{"files": ["a.parquet", "a.parquet"]}', "names a file twice"),
        ("{", "is not a manifest: it is not JSON"),
        ('{"rows": 1}', "missing required field `files`"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(tmp_path: Path, manifest: str, reason: str) -> None:
    put(tmp_path / "a.parquet")
    put(tmp_path / "_manifest.json", manifest)
    with pytest.raises(TableRefusedError, match=reason):
        found(tmp_path)


def test_a_delta_table_has_the_version_of_its_log(tmp_path: Path) -> None:
    side = ps.PushedTable(str(tmp_path), key="k", format="delta")
    assert find_place(FOLDERS, side) is None
    for number in (0, 1, 12):
        put(tmp_path / "_delta_log" / f"{number:020d}.json")
    put(tmp_path / "_delta_log" / "_last_checkpoint")
    place = find_place(FOLDERS, side)
    assert place is not None
    expected = SourceVersion(str(tmp_path), "delta version 12", delta_version=12)
    assert read_version(FOLDERS, side, place) == expected


def test_the_choice_is_pure() -> None:
    files = [
        TableSourceFile("b/_SUCCESS", 0, 5),
        TableSourceFile("a/_SUCCESS", 0, 5),
        TableSourceFile("b/_manifest.json", 9, 5),
    ]
    place = choose_place(files)
    assert place is not None
    assert (place.folder, place.has_manifest) == ("b", True)
    assert choose_place([]) is None


def test_urls_of_this_machine() -> None:
    assert local_folder("file:///a%20b/c") == Path("/a b/c")
    with pytest.raises(ConfigError, match="is not on this machine"):
        local_folder("s3a://bucket/planes")
    with pytest.raises(NotFoundError):
        FOLDERS.read("/nowhere/at/all")
