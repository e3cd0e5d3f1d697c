"""Commands over a checkpoint with the section of a wing that is not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import admin
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.sections import Sections, WrittenSection
from penstock.errors import IncompatibleError
from tests.support.stores.stopped_job import PATHS, StoppedJob, call, replaced_sections, saved, ssp


@pytest.fixture
def job(home: Path) -> StoppedJob:
    job = StoppedJob(home)
    job.run(saved(1, (1, 2), ended=None), saved(2))
    return job


def append_with(job: StoppedJob, section: WrittenSection) -> str:
    return str(replaced_sections(CheckpointLog(job.objects, PATHS), Sections({"gifts": section})).id)


@pytest.mark.parametrize("needed", [True, False])
def test_it_is_listed_shown_and_exported(job: StoppedJob, needed: bool) -> None:
    newest = append_with(job, WrittenSection({"wrapped": 3}, needed))
    assert newest in call("list", "flights")[0]
    with admin.open_job("flights") as found:
        listed = admin.checkpoints(found)
        assert admin.read_checkpoint(found).id == newest
    assert [each.retained and each.problem is None for each in listed] == [True] * 3
    assert newest in call("show", "flights")[0]
    assert call("export", "flights")[0]


def test_an_edit_of_a_checkpoint_that_needs_it_is_refused(job: StoppedJob) -> None:
    older, newest = str(job.last.id), append_with(job, WrittenSection({"wrapped": 3}, needed=True))
    with admin.open_job("flights") as found:
        exported = admin.export_checkpoint(found)
        refused = rf"checkpoint {newest} cannot be restored .* `gifts`"
        with pytest.raises(IncompatibleError, match=refused):
            admin.plan_offsets(found, {ssp(0): 3})
        with pytest.raises(IncompatibleError, match=refused):
            admin.plan_import(found, exported)
        admin.write_checkpoint(admin.plan_offsets(found, {ssp(0): 3}, older))
    assert job.last.sections.written.keys() == {"replay"}


def test_an_edit_leaves_out_what_is_not_needed(job: StoppedJob) -> None:
    append_with(job, WrittenSection({"wrapped": 3}))
    with admin.open_job("flights") as found:
        admin.write_checkpoint(admin.plan_offsets(found, {ssp(0): 3}))
    assert job.last.sections.written.keys() == {"replay"}
