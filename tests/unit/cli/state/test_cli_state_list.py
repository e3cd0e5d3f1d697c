"""`penstock state list`: what the log and the folders of a job say, against what was committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from penstock.config.settings import BACKENDS
from penstock.state.backends.registry import built_in, marker_text, span_text, stored_objects
from tests.support.stores.state_job import JOB, StateJob
from tests.support.tools import cli

TASKS = 3
call = partial(cli.call, "state", "list", JOB)
call_json = partial(cli.call_json, "state", "list", JOB)
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def job(home: Path) -> Iterator[StateJob]:
    """Three checkpoints, of which the first is not retained; `second` changed in the last one alone."""
    with closing(StateJob(home, backends=("changelog-files", "blob", "changelog-stream"))) as job:
        job.commit({0: {b"k": b"0"}})
        kept = job.commit({0: {b"k": b"1"}, 1: {b"l": b"1"}})
        job.commit({0: {b"b": b"2"}}, store="second", retained=[kept])
        yield job


def on_disk(home: Path) -> dict[tuple[str, int, str], tuple[int, int]]:
    """(store, task, kind) -> (number, bytes) of the files under the job root."""
    found: dict[tuple[str, int, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    folder = home / "jobs" / JOB / "state"
    for path in folder.rglob("*"):
        if path.is_file():
            store, task, *_ = path.relative_to(folder).parts
            kind = {".delta": "deltas", ".zip": "snapshots", ".index": "indexes"}.get(path.suffix, "files")
            count, size = found[store, int(task), kind]
            found[store, int(task), kind] = (count + 1, size + path.stat().st_size)
    return dict(found)


@pytest.mark.usefixtures("job")
def test_versions_of_blobs() -> None:
    """The golden files show those of the other backends."""
    found = {(each["batch"], each["store"]): each for each in call_json()["versions"] if each["backend"] == "blob"}
    assert list(found) == [(batch, store) for batch in (20, 30) for store in ("first", "second")]
    assert all(own["version"].startswith("1-17000000000") for own in found[30, "second"]["versions"])


@pytest.mark.usefixtures("job")
def test_objects_are_those_on_disk(home: Path) -> None:
    expected = on_disk(home)
    found = {(o["store"], o["task"], o["kind"]): (o["count"], o["sizeBytes"]) for o in call_json()["objects"]}
    assert found == expected
    assert found["first", 0, "deltas"][0] == 2
    backends = {o["kind"]: o["backend"] for o in call_json()["objects"]}
    assert backends == {"deltas": "changelog-files", "files": "blob", "indexes": "blob"}


@pytest.mark.usefixtures("job")
def test_snapshots_show_up_by_their_names(home: Path) -> None:
    folder = home / "jobs" / JOB / "state" / "first" / "2"
    (folder / "7.1.zip").write_bytes(b"x" * 3000)
    (folder / "9.2.zip").write_bytes(b"x" * 72)
    (folder / "strange.txt").write_bytes(b"xyz")
    found = {(o["task"], o["backend"], o["kind"]): o for o in call_json()["objects"] if o["store"] == "first"}
    assert (found[2, "changelog-files", "snapshots"]["count"], found[2, None, "other"]["sizeBytes"]) == (2, 3)
    out, _ = call()
    assert "snapshots" in out
    assert "3.0 KB" in out


@pytest.mark.usefixtures("job")
def test_one_version_alone() -> None:
    for version in ("20", "latest-1", "1700000000002-7"):
        assert {each["checkpoint"] for each in call_json("--version", version)["versions"]} == {"1700000000002-7"}
    assert "is not retained" in call("--version", "10", status=1)[1]


def test_a_backend_without_a_marker_in_every_task(home: Path) -> None:
    with closing(StateJob(home, layouts={"first": "task string json", "third": "task string json"})) as job:
        job.commit({0: {b"k": b"0"}})
    found = {each["store"]: each for each in call_json()["versions"]}
    assert (found["third"]["backend"], found["third"]["versions"]) == (None, [])
    row = next(line.split() for line in call()[0].splitlines() if "third" in line)
    assert row[3:] == ["-", "0/3", "-"]


def test_a_damaged_log_is_said(job: StateJob, home: Path) -> None:
    path = home / "jobs" / job.paths.checkpoint(3)
    path.write_bytes(path.read_bytes()[:-9])
    out, error = call()
    assert "1700000000002-7" in out
    assert "the checkpoint log is damaged" in error


def test_a_job_without_checkpoints(home: Path) -> None:
    with closing(StateJob(home)):
        facts = call_json()
    assert (facts["versions"], facts["objects"]) == ([], [])


def test_an_own_backend_describes_its_markers_and_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but its factory says what they are."""
    source = (
        "from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory\n"
        "class Own(ChangelogFilesFactory):\n"
        "    def marker_text(self, marker):\n"
        "        return f'own {marker}'\n"
        "    def kind_of(self, name):\n"
        "        return 'owls' if name.startswith('own/') else None\n"
    )
    (tmp_path / "described_backend.py").write_text(source)
    (tmp_path / "broken_backend.py").write_text("raise ZeroDivisionError")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert marker_text("described_backend:Own", "7") == "own 7"
    sizes = {"f/0/own/7": 1, "f/0/1.1.delta": 2, "f/0/x": 3}
    named = ["described_backend:Own", "broken_backend:Own"]
    found = {(each.backend, each.kind): each.count for each in stored_objects("s", "f", sizes, named)}
    assert found == {("described_backend:Own", "owls"): 1, ("changelog-files", "deltas"): 1, (None, "other"): 1}
    assert {each.kind for each in stored_objects("s", "f", sizes)} == {"deltas", "other"}
    assert marker_text("broken_backend:Own", "7") == "7"


def test_the_configuration_names_every_backend_there_is() -> None:
    assert set(BACKENDS) == set(built_in())


def test_names_and_markers_of_nobody() -> None:
    sizes = {"f/s": 1, "f/x/1.1.delta": 2, "f/0/sub/1.1.delta": 3, "f/0/1.1.delta": 4, "f/10/1.1.delta": 5}
    found = stored_objects("s", "f", sizes)
    assert [(each.task, each.backend, each.kind, each.size_bytes) for each in found] == [
        (None, None, "other", 1), (None, "changelog-files", "deltas", 2),
        (0, None, "other", 3), (0, "changelog-files", "deltas", 4), (10, "changelog-files", "deltas", 5),
    ]  # fmt: skip
    (shared,) = stored_objects("s", "f", {f"f/0/files/1-1700000000001-0-{'ab' * 32}": 9})
    assert (shared.backend, shared.kind) == ("changelog-files", "snapshot files")
    assert marker_text("none", "not json") == "not json"
    for backend in ("none", "changelog-files", "blob", "changelog-stream"):
        assert marker_text(backend, "[1]") == "[1]"
        assert len(marker_text(backend, "x" * 200)) == 40
    assert span_text(["10.1", "9.2", "9.10"]) == "9.2 to 10.1"
