"""Objects of an outbox that no record will ever name."""

from __future__ import annotations

from pathlib import Path

from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.outbox.driver import outbox_garbage

PATHS = JobPaths("a", "1")


def test_objects_of_the_present_epoch_may_be_of_a_commit_in_flight(tmp_path: Path) -> None:
    objects = open_store(str(tmp_path / "root"))
    names = ["3-5-0-0-0", "3-6-0-0-0", "4-7-0-0-0", "4-8-0-0-0", "5-9-0-0-0", "left-by-hand"]
    for name in names:
        objects.put_if_absent(PATHS.outbox(name), b"")
    assert outbox_garbage(objects, PATHS, 4, frozenset({"3-6-0-0-0", "4-8-0-0-0"})) == [PATHS.outbox("3-5-0-0-0")]
    objects.close()
