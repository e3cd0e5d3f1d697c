"""A copy whose step was cut short is of use for later checkpoints, and for none before."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import RetryableError
from penstock.objects.open import open_store
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.state.backends.changelog_files.restore import ChangelogFilesRestore
from penstock.state.kept.store import KeptStore, StoreAtCheckpoint
from penstock.testing.state_backend_harness import BackendHarness

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
