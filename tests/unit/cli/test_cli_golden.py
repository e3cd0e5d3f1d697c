"""Commands that look at a job or change it: all of their text and JSON, and the page of the job.

With PENSTOCK_GOLDEN=write, the test writes the files in place of comparing them.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock import admin
from penstock.base.retry import SystemClock
from penstock.checkpoint import record
from penstock.cli.main import app
from penstock.cli.watch import screen_of
from penstock.dashboard import requests as lookups
from penstock.dashboard.view import list_document
from penstock.dashboard.watch import look_at
from penstock.dashboard.work import History
from penstock.job.shown import Failure, RunFailure, failure_board
from penstock.start.startpoint_manager import TTL_MS, StartpointManager
from tests.support.jobs.shown_job import NOW_MS, ShownJob
from tests.support.tools.cli import own_home, published

FILES = Path(__file__).parent / "golden"
JOB = "contract"


@pytest.fixture(autouse=True)
def alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same user, host and moment in every run."""
    own_home(tmp_path, monkeypatch)
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: NOW_MS)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(psutil.Process, "username", lambda _: "user")
    monkeypatch.setattr(StartpointManager.__init__, "__defaults__", (TTL_MS, lambda: NOW_MS))
    monkeypatch.setattr(record, "_NANOS", 1)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ShownJob]:
    with closing(ShownJob(tmp_path)) as job:
        job.show_run()
        yield job


Check = Callable[[str, str], None]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Compares a text with that in a file, or writes it there."""

    def check(name: str, text: str) -> None:
        found = plain(text.replace(str(tmp_path), "FOLDER"))
        file = FILES / f"{name}.txt"
        if os.environ.get("PENSTOCK_GOLDEN") == "write":
            FILES.mkdir(exist_ok=True)
            file.write_text(found, "utf-8")
        assert found == file.read_text("utf-8"), f"PENSTOCK_GOLDEN=write makes {file} again"

    return check


def plain(text: str) -> str:
    """Without what is different in each run, and without blanks at the ends of lines."""
    text = re.sub(r"\b(?!(\w)\1{31})[0-9a-f]{32}\b", "U" * 32, text)
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b(?<!000000000001)", "U" * 36, text)
    text = re.sub(r"\b(logs/contract-1-|penstock-contract-1-)[0-9a-f]+", r"\1UID", text)
    text = re.sub(r"\b20(2[4-9]|[3-9]\d)-\d\d-\d\dT[\d:.]+Z", "T" * 24, text)
    text = re.sub(r'("askedMs": )\d+', r"\1T", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def said(*arguments: str, stdin: str | None = None) -> str:
    """A call, its output, and what it said."""
    result = CliRunner().invoke(app, arguments, input=stdin)
    status = "" if result.exit_code == 0 else f"[{result.exit_code}]"
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    more = f"--- standard error ---\n{result.stderr}" if result.stderr else "\n"
    return f"$ penstock {' '.join(arguments)} {status}\n{result.stdout}{more}"


def both(*arguments: str) -> str:
    return said(*arguments) + said(*arguments, "--json")


LOOKS = {
    "status": ("status", JOB),
    "status_all": ("status",),
    "status_metrics": ("status", JOB, "--metrics"),
    "checkpoint_list": ("checkpoint", "list", JOB),
    "checkpoint_show": ("checkpoint", "show", JOB),
    "startpoint_list": ("startpoint", "list", JOB),
    "state_list": ("state", "list", JOB),
    "state_verify": ("state", "verify", JOB, "--version", "1700000000003-7"),
    "state_gc": ("state", "gc", JOB, "--dry-run"),
    "state_get": ("state", "get", JOB, "second", "0x62", "--hex"),
    "state_scan": ("state", "scan", JOB, "first"),
    "state_diff": ("state", "diff", JOB, "second", "--from", "1700000000002-7", "--to", "latest"),
    "stream_list": ("stream", "list"),
    "stream_describe": ("stream", "describe", "in"),
    "stream_tail": ("stream", "tail", "in", "-n", "2"),
    "table_versions": ("table", "versions", JOB),
    "config_keys": ("config", "keys", "standby"),
}


"""These have --json."""
TEXTS = {
    "checkpoint_export": ("checkpoint", "export", JOB),
    "startpoint_export": ("startpoint", "export", JOB),
    "state_list_tasks": ("state", "list", JOB, "--tasks"),
}


@pytest.mark.usefixtures("job")
def test_commands_that_look(check: Check) -> None:
    for name, call in LOOKS.items():
        check(name, both(*call))
    for name, call in TEXTS.items():
        check(name, said(*call))


CHANGES: dict[str, list[tuple[str, ...]]] = {
    "checkpoint_set": [("checkpoint", "set", JOB, "--offsets", "offsets.json", "--yes")],
    "checkpoint_import": [("checkpoint", "import", JOB, "lines.jsonl", "--yes")],
    "startpoint_set": [
        ("startpoint", "set", JOB, "--stream", "in", "--partition", "0", "--oldest"),
        ("startpoint", "list", JOB),
    ],
    "startpoint_delete": [("startpoint", "delete", JOB, "--stream", "in", "--partition", "1")],
    "drain": [("drain", JOB, "--run", "next"), ("drain", JOB, "--run", "next"), ("status", JOB)],
    "drain_cancel": [("drain", JOB), ("drain", JOB, "--cancel")],
    "stop": [("stop", JOB)],
    "table_use": [("table", "use", JOB, "planes", "1"), ("table", "versions", JOB, "planes")],
    "job_delete": [("job", "delete", JOB, "--yes")],
    "stream_retain": [("stream", "retain", "in", "--retention", "7d", "--yes"), ("stream", "describe", "in")],
    "stream_delete": [("stream", "delete", "out", "--yes"), ("stream", "delete", "in", "--yes")],
}


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_command_that_changes_something(name: str, as_json: bool, check: Check, job: ShownJob) -> None:
    Path("offsets.json").write_text(json.dumps({"local.in": {"0": 2}}))
    lines = CliRunner().invoke(app, ("checkpoint", "export", JOB)).stdout
    Path("lines.jsonl").write_text(lines)
    more = ("--json",) if as_json else ()
    calls = [said(*call, *more) for call in CHANGES[name]]
    calls += [] if name == "drain_cancel" else [said("job", "audit", JOB, *more)]  # two records of one moment
    check(f"{name}_json" if as_json else name, "".join(calls))


def test_a_stream_that_is_made(check: Check) -> None:
    published(4)
    call = ("stream", "create", "flights", "--partitions", "4")
    check("stream_create", said(*call) + both("stream", "describe", "flights") + both("stream", "list"))


@pytest.mark.parametrize("drains", [False, True])
def test_a_job_that_runs(drains: bool, check: Check, job: ShownJob) -> None:
    job.run(drains=drains)
    check("status_drains" if drains else "status_runs", both("status", JOB, "--no-wait") + both("status", "--no-wait"))


def test_a_job_that_failed(check: Check, job: ShownJob) -> None:
    failure = Failure(NOW_MS, "KeyError: 'miles'", "stream `local.in` partition 1 offset 7", "Traceback ...")
    failure_board(job.objects, job.paths).put(RunFailure(job.state.claim.epoch, failure))
    check("status_failed", both("status", JOB))


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("how", ["stopped", "drains"])
def test_the_page(how: str, width: int, check: Check, job: ShownJob) -> None:
    if how == "drains":
        job.run(drains=True)
    history = History()
    with admin.open_job(JOB) as found, StringIO() as drawn:
        page = look_at(found, history, job.live if how == "drains" else None)
        Console(file=drawn, width=width).print(screen_of(page, width))
        check(f"screen_{how}_{width}", drawn.getvalue())
        check(f"page_{how}", json.dumps(page, indent=1))


def test_the_page_of_all_jobs_and_the_lookups(check: Check, job: ShownJob) -> None:
    with admin.open_job(JOB) as found:
        documents: list[Any] = [list_document([admin.status(found)]), lookups.sizes(found, {})]
        documents.append(lookups.entries(found, {"store": "first"}))
    check("page_others", json.dumps(documents, indent=1))


def test_a_notebook(check: Check, job: ShownJob) -> None:
    with admin.open_job(JOB) as found:
        check("notebook", admin.status(found)._repr_html_().replace("<tr>", "\n<tr>"))
