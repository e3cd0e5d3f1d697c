"""Copies of a store on the host: only one that is whole, and of exactly the checkpoint that is asked for, is used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.checkpoint.record import CheckpointId
from penstock.errors import CorruptError, RetryableError
from penstock.objects.open import open_store
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory, ChangelogFilesRestore
from penstock.state.kept import KeptStore, StoreAtCheckpoint
from penstock.state.restore import LocalCopies, tasks_with_copies
from penstock.testing.state_backend_harness import BackendHarness

FILES = {"CURRENT": b"MANIFEST-1\n", "000007.sst": b"sorted" * 100, "sub/000008.sst": b"more" * 50, "empty": b""}
MARKERS = {"blob": "7-1000-1.index", "changelog-files": "3-7"}
FIRST, SECOND, THIRD = CheckpointId(1000, 1), CheckpointId(1000, 2), CheckpointId(2000, 0)


@pytest.fixture
def copies(tmp_path: Path) -> LocalCopies:
    return LocalCopies(tmp_path / "store")


def publish(copies: LocalCopies, folder: Path, checkpoint_id: CheckpointId, **changed: bytes) -> Path:
    """Publish the files, some changed; the folder they lie in now."""
    made = folder / "store" / f"making-{checkpoint_id}"
    for name, data in {**FILES, **changed}.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(data)
    copies.publish(checkpoint_id, MARKERS, made)
    assert not made.exists(), "the folder is moved"
    return folder / "store" / f"copy-{checkpoint_id}"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_comes_back_as_it_was_published(copies: LocalCopies, tmp_path: Path) -> None:
    source = publish(copies, tmp_path, FIRST)
    assert copies.take(FIRST, MARKERS, tmp_path / "live") is True
    assert content(tmp_path / "live") == FILES
    for name in FILES:
        shared = (tmp_path / "live" / name).stat().st_ino == (source / name).stat().st_ino
        assert shared == name.endswith(".sst"), f"{name}: what an engine writes to must not be the copy's own"


def test_a_copy_of_another_commit_with_the_same_id_is_not_used(copies: LocalCopies, tmp_path: Path) -> None:
    """A driver that was replaced published it, and could not write its record."""
    publish(copies, tmp_path, FIRST)
    assert not copies.take(FIRST, {"blob": "8-1000-1.index", "changelog-files": "3-8"}, tmp_path / "live")
    assert not copies.take(FIRST, {}, tmp_path / "live")
    assert copies.take(FIRST, {"changelog-files": "3-7"}, tmp_path / "live"), "a backend was dropped since"


def test_what_is_done_to_the_working_copy_does_not_reach_the_copy(copies: LocalCopies, tmp_path: Path) -> None:
    publish(copies, tmp_path, FIRST)
    assert copies.take(FIRST, MARKERS, tmp_path / "live")
    (tmp_path / "live" / "CURRENT").write_bytes(b"MANIFEST-2\n")
    (tmp_path / "live" / "000007.sst").unlink()
    assert LocalCopies(tmp_path / "store").take(FIRST, MARKERS, tmp_path / "again")
    assert content(tmp_path / "again") == FILES


def test_only_exactly_the_checkpoint_counts(copies: LocalCopies, tmp_path: Path) -> None:
    publish(copies, tmp_path, SECOND)
    for other in (FIRST, THIRD, CheckpointId(1000, 20)):
        assert copies.take(other, MARKERS, tmp_path / "live") is False
        assert not (tmp_path / "live").exists()


def test_a_host_has_tasks_with_copies_and_with_side_stores(tmp_path: Path) -> None:
    (tmp_path / "counts" / "4").mkdir(parents=True)
    publish(LocalCopies(tmp_path / "counts" / "4"), tmp_path, FIRST)
    for folder in ("planes/side-7", "planes/side-11-private-3-c", "airlines/side-all-0", "planes/9"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "CURRENT").touch()
    (tmp_path / "planes" / "side-8").mkdir()
    assert tasks_with_copies(tmp_path) == (4, 7)


def test_each_checkpoint_has_its_own(copies: LocalCopies, tmp_path: Path) -> None:
    publish(copies, tmp_path, FIRST)
    publish(copies, tmp_path, THIRD, CURRENT=b"MANIFEST-9\n")
    publish(copies, tmp_path, SECOND, CURRENT=b"MANIFEST-5\n")
    assert copies.ids() == [FIRST, SECOND, THIRD]
    for checkpoint_id, current in ((FIRST, b"MANIFEST-1\n"), (SECOND, b"MANIFEST-5\n"), (THIRD, b"MANIFEST-9\n")):
        assert copies.take(checkpoint_id, MARKERS, tmp_path / str(checkpoint_id))
        assert content(tmp_path / str(checkpoint_id)) == {**FILES, "CURRENT": current}


def test_files_that_two_copies_share_are_checked_in_both(copies: LocalCopies, tmp_path: Path) -> None:
    first = publish(copies, tmp_path, FIRST)
    made = tmp_path / "store" / "making"
    made.mkdir()
    (made / "000007.sst").hardlink_to(first / "000007.sst")
    copies.publish(SECOND, MARKERS, made)
    shared = tmp_path / "store" / f"copy-{SECOND}" / "000007.sst"
    shared.write_bytes(shared.read_bytes()[:-1] + b"?")
    for checkpoint_id in (FIRST, SECOND):
        with pytest.raises(CorruptError, match=r"000007\.sst` of a local copy is missing or damaged"):
            copies.take(checkpoint_id, MARKERS, tmp_path / f"live-{checkpoint_id}")


def test_publishing_again_replaces_it(copies: LocalCopies, tmp_path: Path) -> None:
    publish(copies, tmp_path, FIRST)
    publish(copies, tmp_path, FIRST, CURRENT=b"MANIFEST-3\n")
    assert copies.take(FIRST, MARKERS, tmp_path / "live")
    assert content(tmp_path / "live")["CURRENT"] == b"MANIFEST-3\n"


def test_without_its_description_there_is_no_copy(copies: LocalCopies, tmp_path: Path) -> None:
    """The description is written last: a process that was killed before has made no copy."""
    publish(copies, tmp_path, FIRST)
    description = tmp_path / "store" / f"copy-{FIRST}.json"
    description.rename(description.with_suffix(".json.new"))
    assert copies.ids() == []
    assert copies.take(FIRST, MARKERS, tmp_path / "live") is False
    copies.keep_only(FIRST)
    assert not description.with_suffix(".json.new").exists()


DAMAGES = [
    (name, damage)
    for name, data in FILES.items()
    for damage in ("flipped", "shorter", "longer", "gone", "a folder")
    if data or damage not in {"flipped", "shorter"}
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_file_is_refused(copies: LocalCopies, tmp_path: Path, name: str, damage: str) -> None:
    path = publish(copies, tmp_path, FIRST) / name
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "flipped":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "shorter":
            path.write_bytes(data[:-1])
        case "longer":
            path.write_bytes(data + b"\0")
        case "a folder":
            path.mkdir()
    with pytest.raises(CorruptError, match=f"{name}` of a local copy is missing or damaged"):
        copies.take(FIRST, MARKERS, tmp_path / "live")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00",
        "{}",
        '{"format": 2}',
        '{"format": 2, "markers": {"blob": "7-1000-1.index"}, "files": null}',
        '{"format": 2, "markers": {"blob": "7-1000-1.index"}, "files": 5}',
        '{"format": 2, "markers": {"blob": "7-1000-1.index"}, "files": {}}',
        '{"format": 2, "markers": {"blob": "7-1000-1.index"}, "files": ["abc"]}',
        '{"format": 2, "markers": {"blob": "7-1000-1.index"}, "files": {"CURRENT": 5}}',
        '{"format": 2, "markers": {"blob": "7-1000-1.index"}, "files": {"CURRENT": [1]}}',
        '{"format": 2, "markers": {"blob": "7-1000-1.index"}, "files": {"CURRENT": [11, "0", 3]}}',
        '{"format": 2, "markers": {"blob": "7-1000-1.index"}, "files": {"CURRENT": [11, "0"]}}',
    ],
)
def test_a_damaged_description_is_refused(copies: LocalCopies, tmp_path: Path, text: str) -> None:
    publish(copies, tmp_path, FIRST)
    (tmp_path / "store" / f"copy-{FIRST}.json").write_text(text)
    with pytest.raises(CorruptError, match="local copy"):
        copies.take(FIRST, MARKERS, tmp_path / "live")


def test_a_description_of_a_later_format_is_no_copy(copies: LocalCopies, tmp_path: Path) -> None:
    publish(copies, tmp_path, FIRST)
    description = tmp_path / "store" / f"copy-{FIRST}.json"
    description.write_text(json.dumps({**json.loads(description.read_text()), "format": 3}))
    assert copies.take(FIRST, MARKERS, tmp_path / "live") is False


def test_older_copies_go_and_nothing_else(copies: LocalCopies, tmp_path: Path) -> None:
    for checkpoint_id in (FIRST, SECOND, THIRD):
        publish(copies, tmp_path, checkpoint_id)
    (tmp_path / "store" / "live-3-c1").mkdir()
    (tmp_path / "store" / "making-3-c1-1-1").mkdir()
    copies.keep_only(SECOND)
    assert copies.ids() == [SECOND]
    left = {path.name for path in (tmp_path / "store").iterdir()}
    assert left == {f"copy-{SECOND}", f"copy-{SECOND}.json", "live-3-c1", "making-3-c1-1-1"}
    copies.keep_only(None)
    assert copies.ids() == []
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"live-3-c1", "making-3-c1-1-1"}


@pytest.mark.parametrize("call", [lambda c: c.keep_only(None), lambda c: c.keep_only(FIRST), lambda c: c.ids()])
def test_a_folder_that_is_not_there_has_no_copies(copies: LocalCopies, call: Callable[[LocalCopies], object]) -> None:
    assert not call(copies)


NAME = "changelog-files"


def test_a_step_that_was_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def contexts(_: str) -> BackendContext:
        return harness.context(2)

    def cut_short(*_: object) -> bool:
        raise RetryableError("cancelled")

    progress = RestoreProgress(threading.Event(), lambda _: None)
    with (
        closing(open_store(f"memory://{tmp_path.name}")) as objects,
        closing(BackendHarness(ChangelogFilesFactory(), objects, tmp_path)) as harness,
        closing(harness.backup(1)) as task,
    ):
        markers = [task.commit(first={b"k": b"%d" % number})["first"] for number in range(3)]
        first, second, third = (StoreAtCheckpoint(harness.next_id(), {NAME: marker}) for marker in markers)
        copy = KeptStore.made("first", first, contexts, tmp_path / "copy", harness.open_engine, progress)
        assert copy.advance(first, contexts, progress)
        with monkeypatch.context() as patch:
            patch.setattr(ChangelogFilesRestore, "advance", cut_short)
            with pytest.raises(RetryableError):
                copy.advance(second, contexts, progress)
        assert not copy.advance(first, contexts, progress)
        assert copy.advance(third, contexts, progress)
        assert copy.checkpoint_id == third.checkpoint_id
        assert copy.engine().get(b"k") == b"2"
        copy.remove()
        assert not (tmp_path / "copy").exists()
