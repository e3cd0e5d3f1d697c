"""The dashboard in a job's driver: where its token is, and where it is not."""

from __future__ import annotations

import http.client
import logging
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.base.plugins import DISPLAYS, load
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.dashboard.displays import serve
from penstock.driver.job import JobPage
from penstock.job.paths import JobPaths

CHOSEN = "chosen-by-somebody-0"


def configured(home: Path, **more: str) -> JobConfig:
    keys = {"job.dashboard.port": "0", **more}
    return load_config(overrides=keys, environ={"PENSTOCK_HOME": str(home)}, default_job_name="flights")


def status(port: int, token: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/home", headers={} if token is None else {"Authorization": f"Bearer {token}"})
    found = connection.getresponse().status
    connection.close()
    return found


def test_a_driver_finds_the_page_by_name() -> None:
    found: Callable[..., JobPage] = serve
    assert load(DISPLAYS["dashboard"]) is found


def test_the_token_is_in_a_file_of_the_user_not_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve(configured(tmp_path), JobPaths("flights", "1"), lambda: None)
    try:
        place = tmp_path / "state" / "logs" / "dashboard-flights-1.address"
        assert f"dashboard: http://127.0.0.1:{served.port}/ (with its token in `{place}`)" in caplog.text
        address, _, token = place.read_text().strip().partition("#token=")
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert address == f"http://127.0.0.1:{served.port}/"
        assert (status(served.port, None), status(served.port, token)) == (401, 200)
        assert token not in caplog.text
    finally:
        served.close()
    assert not place.exists()


def test_a_chosen_token_is_written_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve(configured(tmp_path, **{"job.dashboard.token": CHOSEN}), JobPaths("flights", "1"), lambda: None)
    try:
        assert (status(served.port, None), status(served.port, CHOSEN)) == (401, 200)
        assert CHOSEN not in caplog.text + served.printed_url + served.logged_url
        assert not list(tmp_path.rglob("*.address"))
    finally:
        served.close()
