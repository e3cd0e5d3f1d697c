"""Starts that take another state than the last one are in the audit log."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import admin
from penstock.cli.run import _audited
from penstock.cli.shared.options import Call
from tests.support.jobs.example_job import ExampleJob


def test_a_start_that_goes_back_or_resets_has_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    ExampleJob(tmp_path / "home", tmp_path / "kept")

    def records() -> list[tuple[str, str, dict[str, str]]]:
        with admin.open_job("flights") as job:
            found = [each for each in admin.audit(job) if isinstance(each, admin.AuditRecord)]
        return [(each.action, each.outcome, dict(each.changes)) for each in found]

    before = records()
    with _audited(Call(), "flights-1", None, []):
        pass
    assert records() == before
    with _audited(Call(), "flights-1", "17-5", ["hours"]):
        pass
    with pytest.raises(RuntimeError), _audited(Call(), "flights-1", "17-5", []):
        raise RuntimeError
    goes_back = {"checkpoint": "the last one -> 17-5"}
    assert [each for each in records() if each not in before] == [
        ("run", "done", {**goes_back, "operator hours": "reset"}),
        ("run", "failed", goes_back),
    ]
