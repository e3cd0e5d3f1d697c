"""`penstock dashboard` as another user of the host sees it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from penstock import admin
from tests.support.jobs.dashboards import request
from tests.support.jobs.example_job import ExampleJob
from tests.support.tools.cli import command

CHOSEN = "chosen-by-the-operator"


class _At:
    def __init__(self, address: str) -> None:
        self.port = urlsplit(address).port


@pytest.mark.few(1)
@pytest.mark.parametrize("chosen", ["", CHOSEN])
def test_the_token_is_printed_once_or_not_at_all_and_is_in_no_list_of_processes(
    chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_DASHBOARD_TOKEN", chosen)
    ExampleJob(tmp_path / "home", tmp_path / "kept")
    command_line = command("dashboard", "--port", "0")
    served = subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        address, _, token = served.stdout.readline().strip().partition("#token=")
        assert bool(token) != bool(chosen), "a chosen token is not printed"
        token = token or chosen
        at: Any = _At(address)
        assert request(at, "/api/home", token=None)[0] == 401
        assert request(at, "/api/home", token=token)[0] == 200
        asked = {"job": "flights-1"}
        _, planned, _ = request(at, "/api/do/drain", asked, token=token)
        confirmed = {**asked, "confirmed": True, "plan": planned["lines"]}
        assert request(at, "/api/do/drain", confirmed, token=token)[1]["done"]
        tree = [psutil.Process(served.pid), *psutil.Process(served.pid).children(recursive=True)]
        assert not any(token in " ".join(each.cmdline()) for each in tree)
    finally:
        served.send_signal(signal.SIGTERM)
        rest = "".join(served.communicate(timeout=30))
    assert token not in rest
    with admin.open_job("flights-1") as job:
        records = [each for each in admin.audit(job) if isinstance(each, admin.AuditRecord)]
        assert records[-1].program == "dashboard"
        assert not any(token in repr(each) for each in records)
    for file in (tmp_path / "home").rglob("*"):
        assert file.is_dir() or token.encode() not in file.read_bytes()
