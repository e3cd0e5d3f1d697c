"""When `make demo-crash` kills: only after a commit that is newer than the kill before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from examples import running
from examples.running import Crashes

JOB = Crashes("flights", ())


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_a_kill_waits_for_a_batch_that_was_committed_since_the_last_one(
    driver: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any] | None] = [None, {"batch": 3, "id": "1-0"}, {"batch": 3, "id": "2-0"}]
    commits = iter([*seen, {"batch": 5, "id": "3-0"}])
    monkeypatch.setattr(running, "last_commit", lambda _: next(commits))
    monkeypatch.setattr(running, "containers", lambda _: [1])
    assert JOB.await_commit(driver, 3)["id"] == "3-0"


def test_a_job_that_ends_before_there_is_something_to_kill_is_no_success(
    driver: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "last_commit", lambda _: driver.kill())
    with pytest.raises(SystemExit, match="nothing to kill"):
        JOB.await_commit(driver, 0)
