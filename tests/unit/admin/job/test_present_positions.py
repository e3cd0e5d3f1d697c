"""A status has the positions that a run has read while it may run, and not those that an ended one had last shown."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import admin
from penstock.job.lease import LeaseState
from tests.support.jobs.shown_job import ShownJob
from tests.support.tools.cli import own_home


@pytest.mark.parametrize(
    ("lease", "wait", "reads"),
    [
        ("held", False, True),
        ("stale", True, False),
        ("released", True, False),
        ("released", False, False),
        ("another run's", False, False),
        ("none", False, False),
    ],
)
def test_positions_of_a_run(
    tmp_path: Path, lease: str, wait: bool, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home(tmp_path, monkeypatch)
    with closing(ShownJob(tmp_path)) as job:
        job.show_run()
        job.run()
        state = LeaseState.decode(job.objects.get(job.paths.lease), job.paths.lease)
        job.objects.delete(job.paths.lease)
        if lease != "none":
            token = "0" * 32 if lease == "another run's" else state.token
            given = replace(state, token=token, released=lease == "released")
            job.objects.put_if_absent(job.paths.lease, given.encode())
        with admin.open_job("contract", assignments=[f"job.root={tmp_path / 'home' / 'jobs'}"]) as found:
            parts = [part for each in admin.status(found, wait=wait).inputs for part in each.partitions]
    assert {part.read is not None for part in parts} == {reads}
    assert {part.left == part.lag for part in parts if not reads} <= {True}
