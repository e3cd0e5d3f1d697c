"""An upload that is under way when the epoch is left stops, and what follows in the next epoch is exact."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import RetryableError
from penstock.objects.open import open_store
from penstock.state.backends.registry import backend_factory
from penstock.system.local import LocalSystem
from penstock.testing.state_backend_harness import BackendHarness


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["changelog-files", "blob", "changelog-stream"])
def test_an_upload_is_given_up_when_the_epoch_is_left(tmp_path: Path, backend: str) -> None:
    systems = {"local": LocalSystem("local", str(tmp_path / "streams"))}
    objects = open_store(str(tmp_path / "jobs"))
    harness = BackendHarness(backend_factory(backend), objects, tmp_path / "engines", systems=systems)
    with closing(objects), closing(harness):
        task = harness.backup(1)
        first = task.commit(first={b"a": b"1"})
        task.leaving.set()
        with pytest.raises(RetryableError, match=r"given up|cancelled"):
            task.commit(first={b"b": b"2"})
        task.close()
        markers = harness.backup(2, first).commit(first={b"c": b"3"})
        assert harness.restore(markers["first"]) == {b"a": b"1", b"c": b"3"}
