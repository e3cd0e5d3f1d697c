"""Labels of checkpoints, as commands set, show, use and take them off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import admin
from penstock.checkpoint.log import CheckpointLog
from penstock.config.kinds import RetentionPolicy
from tests.support.stores.checkpoints import checkpoint
from tests.support.stores.stopped_job import PATHS, StoppedJob, call, call_json, saved


@pytest.fixture
def job(home: Path) -> StoppedJob:
    job = StoppedJob(home)
    job.run(saved(1, (1, 2), ended=None), saved(2, ended=None), saved(3))
    return job


def ids(job: StoppedJob) -> list[str]:
    return [str(record.id) for record in job.log.checkpoints]


def test_a_label_is_set_shown_and_taken_off(job: StoppedJob) -> None:
    first, second, last = ids(job)
    assert (
        f"checkpoint {first} of job `flights-1` now has the label `before`"
        in call("label", "flights", first, "before")[1]
    )
    assert call_json("label", "flights", "latest", "now") == {
        "job": "flights-1", "label": "now", "checkpoint": last, "changed": True, "warnings": []
    }  # fmt: skip
    call("label", "flights", "before", "again")
    listed = {each["id"]: each["labels"] for each in call_json("list", "flights")}
    assert listed == {first: ["again", "before"], second: [], last: ["now"]}
    assert "again, before" in call("list", "flights")[0]
    assert "labels" in call("show", "flights", "before")[0]
    assert call_json("show", "flights", "again")["id"] == first
    assert "no longer has the label `again`" in call("unlabel", "flights", "again")[1]
    assert call_json("show", "flights", first)["labels"] == ["before"]


def test_setting_a_label_again_changes_nothing(job: StoppedJob) -> None:
    first, *_ = ids(job)
    call("label", "flights", first, "before")
    files = job.files()
    assert call_json("label", "flights", first, "before")["changed"] is False
    assert job.files() == files
    last = ids(job)[-1]
    assert "is the label of checkpoint" in call("label", "flights", last, "before", status=1)[1]
    assert job.files() == files


@pytest.mark.parametrize("name", ["1st", "", "a b", "latest", "latest-3", "x" * 65, "fork:a", "é", "-a", "a/b", "a\n"])
def test_a_name_that_cannot_be_a_label(job: StoppedJob, name: str) -> None:
    files = job.files()
    assert "cannot be a label" in call("label", "flights", "--", "latest", name, status=2)[1]
    assert job.files() == files


def test_what_is_not_there(job: StoppedJob) -> None:
    assert "no label of that name" in call("label", "flights", "1-1", "a", status=1)[1]
    assert "no label `a`" in call("unlabel", "flights", "a", status=1)[1]


def test_a_label_stands_wherever_a_checkpoint_is_named(job: StoppedJob) -> None:
    first, *_ = ids(job)
    call("label", "flights", first, "before")
    with admin.open_job("flights") as found:
        assert str(admin.read_checkpoint(found, "before").id) == first
        assert admin.state_versions(found, version="before") == admin.state_versions(found, version=first)
        assert admin.export_checkpoint(found, "before") == admin.export_checkpoint(found, first)
    offsets = json.dumps({"dep.flights": {"0": 0}}).replace("dep.", "local.dep.")
    written = call_json("set", "flights", "--offsets", "-", "--from", "before", "--yes", text=offsets)
    assert written["origin"] == first


def test_latest_is_a_checkpoint_for_every_command(job: StoppedJob) -> None:
    first, second, last = ids(job)
    assert [call_json("show", "flights", each)["id"] for each in ("latest", "latest-1", "latest-2")] == [
        last,
        second,
        first,
    ]
    assert call_json("label", "flights", "latest-1", "here")["checkpoint"] == second
    assert "no checkpoint and no label `latest-3`" in call("show", "flights", "latest-3", status=1)[1]


def test_the_audit_log_has_both(job: StoppedJob) -> None:
    first, *_ = ids(job)
    call("label", "flights", first, "before")
    call("unlabel", "flights", "before")
    with admin.open_job("flights") as found:
        done = [(each.action, dict(each.changes)) for each in admin.audit(found) if isinstance(each, admin.AuditRecord)]
    assert done == [
        ("checkpoint label", {"before": f"none -> {first}"}),
        ("checkpoint unlabel", {"before": f"{first} -> none"}),
    ]


def test_a_checkpoint_with_a_label_takes_no_place_of_another_one(job: StoppedJob) -> None:
    policy, log = RetentionPolicy(2), CheckpointLog(job.objects, PATHS)
    claim = log.claim("run")

    def commit(number: int) -> list[int]:
        made = checkpoint(claim, 1_800_000_000_000 + number)
        log.append(replace(made, retained=log.known().retained_beside(made, policy)))
        return [record.id.millis % 1_000 for record in log.read().restorable]

    assert [commit(number) for number in (1, 2, 3)] == [[3, 1], [1, 2], [2, 3]]
    call("label", "flights", "latest", "here")
    assert commit(4) == [3, 4], "decided before the driver knew of the label"
    assert [commit(number) for number in (5, 6)] == [[3, 4, 5], [3, 5, 6]]
    call("unlabel", "flights", "here")
    assert [commit(number) for number in (7, 8)] == [[3, 6, 7], [7, 8]]


def test_a_run_that_goes_on_takes_the_labels_over(job: StoppedJob) -> None:
    first, *_ = ids(job)
    log = CheckpointLog(job.objects, PATHS)
    claim = log.claim("run")
    call("label", "flights", first, "before")
    made = checkpoint(claim, 1_800_000_000_000)
    log.append(replace(made, retained={}))
    assert [str(each.id) for each in job.log.restorable] == [first, str(made.id)]
    assert list(job.log.labels) == ["before"]
